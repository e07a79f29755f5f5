"""Runs of the baseline: alone, or beside a trained run on exactly its rows.

The folder holds ``baseline.json`` (the settings), ``env.json``, ``data.sha256`` and, for the run or each of its folds,
``splits.json``, ``metrics.json``, ``predictions.csv`` and plots, as a trained run does. The forest itself is not kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, folders, tables
from gcnbatch.baselines.forest import MODEL, Forest
from gcnbatch.baselines.molecule_features import MoleculeFeatures, molecule_features
from gcnbatch.baselines.verdict import verdict
from gcnbatch.config import Config
from gcnbatch.data import splits
from gcnbatch.data.endings import is_table
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.graphs import Split
from gcnbatch.data.shards import fingerprint
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.predictions import Predictions, write_table
from gcnbatch.text import QUOTED, counted, printable
from gcnbatch.training import finished, plots, reports, run_files, targets
from gcnbatch.training.finished import BASELINE, RunData, block_name, read_fits
from gcnbatch.training.fits import SPLITS
from gcnbatch.training.plan import GENERATED, seeded
from gcnbatch.training.reports import METRICS, Report
from gcnbatch.training.run import read_config
from gcnbatch.training.summary import average, pooled

BESIDE = "baseline"
Say = Callable[[str], object]


def start(
    config: Config,
    folder: Path | None,
    trees: int = 100,
    smiles_column: str = "",
    target_columns: Sequence[str] = (),
    say: Say = lambda line: None,
    progress: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Fit the baseline to the split or folds of `config`; return its folder and metrics.

    Only ``name``, ``seed``, ``data``, ``split`` and ``parquet`` of the configuration matter. A table of molecules is
    first imported into the folder; columns that are not given are detected (see `import_smiles`), and rows that cannot
    be read are left out.

    Raises
    ------
    InputError
        When the folder is not empty, the data have no SMILES, or data and configuration do not match.
    """
    if config.parquet:
        tables.check_parquet("parquet")
    path = Path(config.data.path)
    if not config.data.path:
        raise InputError("--data", "missing", "molecules: a table with SMILES, or a data set made from one")
    with folders.results(folder, f"{config.name}-baseline", whole=True) as (target, _):
        if is_table(path):
            _import(path, target / GENERATED, smiles_column, target_columns, say)
            path = target / GENERATED
        elif smiles_column or target_columns:
            raise InputError("--smiles-column, --target-columns", f"given with {path}", "a table of molecules")
        with Dataset(path, config.data.memory_mb) as dataset:
            check_molecules(dataset)
            rows = splits.SplitRows.of(dataset, config.split.rule, config.split.similarity, not progress)
            named = _parts(config, rows)
            about_labels = targets.label_notes(dataset.header, dataset.y, list(named.values()), config.split.kind)
            about_labels += targets.about_bounds(dataset.y, dataset.censored)
            for line in (*splits.notes(config.split, rows), *about_labels):
                say(line)
            return target, _fit(target, dataset, named, config, Forest(trees, config.seed), say, progress)


def _parts(config: Config, rows: splits.SplitRows) -> dict[str, Split]:
    """Return the splits of all repeats and folds, by the names of their folders: those of `train`."""
    found = {}
    for repeat in range(config.split.repeats):
        own = seeded(config, repeat, 0)
        about = (own.split, own.seed, rows)
        for fold, part in enumerate(splits.make_splits(*about)):
            numbers = (repeat + 1) * (config.split.repeats > 1), (fold + 1) * (config.split.folds > 0)
            found[block_name(*numbers)] = part
    return found


def check_data(config: Config, path: Path | None = None) -> None:
    """Refuse data without SMILES before a run is trained that wants a baseline beside it.

    The data are at `path`; None: where the configuration says.

    Raises
    ------
    InputError
    """
    if config.data.synthetic:
        raise InputError("--baseline", f"synthetic data ({config.data.synthetic})", "molecules with SMILES")
    with Dataset(path or Path(config.data.path), config.data.memory_mb, check=False) as dataset:
        check_molecules(dataset)


def check_molecules(dataset: Dataset) -> list[str]:
    """Return the SMILES of a data set.

    Raises
    ------
    InputError
        When it has none.
    """
    if (smiles := dataset.smiles()) is None:
        raise InputError(
            str(dataset.path),
            "no SMILES in it",
            "a data set of molecules",
            "Import the molecules again with 'gcnbatch data import smiles', or give the table itself.",
        )
    return smiles


def add_to_run(folder: Path, trees: int = 100, say: Say = lambda line: None, progress: bool = False) -> dict[str, Any]:
    """Fit the baseline to the rows of a finished run, below its folder; return the run's metrics with the comparison.

    ``metrics.json`` of the run then has an entry ``baseline``. A baseline that is there already is fitted anew.

    Raises
    ------
    InputError
        When the run is not finished, or its data changed or have no SMILES.
    """
    config = read_config(folder)
    data = RunData.of(folder)
    check_data(config, data.path)
    with data.open() as dataset:
        fits = read_fits(folder, len(dataset.y))
        target = folder / BESIDE
        parts = {block_name(*fit.block): fit.split for fit in fits}
        _fit(target, dataset, parts, config, Forest(trees, config.seed), say, progress)
        metrics = run_files.read_figures(folder / METRICS)
        metrics["baseline"] = verdict(dataset.header, fits, read_fits(target))
    fileio.write_json(folder / METRICS, metrics)
    return metrics


# ------------------------------------------------------------------------------------------------ internals


def _import(path: Path, out: Path, smiles_column: str, target_columns: Sequence[str], say: Say) -> None:
    from gcnbatch.data.importers.smiles import import_smiles

    summary = import_smiles(
        path,
        out,
        FeaturizerOptions(),
        smiles_column=smiles_column,
        target_columns=list(target_columns) or None,
        skip_bad_rows=True,
    )
    for line in summary.said():
        say(line)


def _fit(
    target: Path,
    dataset: Dataset,
    parts: Mapping[str, Split],
    config: Config,
    forest: Forest,
    say: Say,
    progress: bool,
) -> dict[str, Any]:
    """Fit every part into its folder below `target`, and summarise them."""
    targets.check_learnable(dataset.path, dataset.header, dataset.y, list(parts.values()))
    smiles = check_molecules(dataset)
    say(f"baseline: fingerprints and descriptors of {counted(len(smiles), 'molecule')}")
    found = molecule_features(smiles, FeaturizerOptions.from_header(dataset.header.featurizer), progress=progress)
    if found.lost:
        say(_lost_rows(dataset, found))
    features = found.x
    folders.make(target)
    settings = {"model": MODEL, **asdict(forest), "data": str(dataset.path.resolve())}
    settings["split"] = config.split.model_dump(mode="json")
    fileio.write_json(target / BASELINE, settings)
    run_files.write_environment(target)
    fileio.write_text(target / finished.DIGEST, f"{fingerprint(dataset.path)}  {dataset.path}\n")
    outputs, results = [], []
    for place, split in parts.items():
        say(f"baseline: {counted(forest.trees, 'tree')}{' for ' + place if place else ''}")
        began = time.monotonic()
        outputs.append(forest.predict(dataset.header, features, dataset.y, split.train, dataset.sample_weight))
        course = _course(dataset, split, config, forest, time.monotonic() - began)
        results.append(_write(target / place, dataset, split, outputs[-1], course, config))
    if "" in parts:
        return results[0]
    return _summarise(target, dataset, list(parts.values()), outputs, results, config.parquet)


def _lost_rows(dataset: Dataset, features: MoleculeFeatures) -> str:
    first = features.lost[0]
    rows = counted(len(features.lost), "row has", "rows have")
    row_id = printable(str(dataset.ids[first.index]), QUOTED)
    return f"{rows} zeros for all features; the first is {row_id}: {first.reason}"


def _course(dataset: Dataset, split: Split, config: Config, forest: Forest, seconds: float) -> dict[str, Any]:
    """Return the entries of metrics.json beside the figures."""
    rows = splits.SplitRows.of(dataset, "")  # their groups are not needed
    return {
        "model": MODEL,
        "backend": "scikit-learn",
        "trees": forest.trees,
        "seconds": round(seconds, 3),
        "split": splits.describe(config.split, config.seed, rows, split),
    }


def _write(
    folder: Path,
    dataset: Dataset,
    split: Split,
    outputs: NDArray[np.floating],
    course: dict[str, Any],
    config: Config,
) -> dict[str, Any]:
    folders.make(folder)
    parts = {part: rows for part, rows in split.parts().items() if len(rows)}
    fileio.write_text(folder / SPLITS, json.dumps({part: rows.tolist() for part, rows in split.parts().items()}))
    return Report(
        folder=folder,
        header=dataset.header,
        labels={part: dataset.measured[rows] for part, rows in parts.items()},
        outputs={part: outputs[rows] for part, rows in parts.items()},
        data=dataset.path,
        test_rows=split.test,
        test_ids=dataset.ids[split.test],
        history=[],
        course=course,
        parquet=config.parquet,
        level=config.train.level,
    ).write()


def _summarise(
    folder: Path,
    dataset: Dataset,
    parts: list[Split],
    outputs: list[NDArray[np.floating]],
    results: list[dict[str, Any]],
    parquet: bool,
) -> dict[str, Any]:
    """Write mean and deviation over the parts, and the predictions of all test rows: the mean where parts share one."""
    summary = {**results[0], "folds": results, **average(results)}
    for part in ("train", "valid", "test", "uncertainty"):
        summary.pop(part, None)
    summary["seconds"] = round(sum(result["seconds"] for result in results), 3)
    summary["split"] = {**results[0]["split"], "sizes": [result["split"]["sizes"] for result in results]}
    tested = [part.test for part in parts]
    pool = pooled(tested, [found[own] for found, own in zip(outputs, tested, strict=True)])
    header, y, mean = dataset.header, pool.labels(dataset.measured), pool.mean
    summary["out_of_fold"] = reports.evaluate(header, y, mean)
    write_table(folder / reports.PREDICTIONS, Predictions(header, dataset.ids[pool.rows], mean), parquet)
    about = folder, header.target, header.class_names, y, mean, summary["out_of_fold"]
    plots.draw_tested(*about, part="test rows of all folds")
    fileio.write_json(folder / METRICS, summary)
    return summary
