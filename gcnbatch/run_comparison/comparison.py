"""The comparison: scores by block, differences of all pairs, and the files of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gcnbatch import fileio, folders, metrics, tables
from gcnbatch.errors import InputError, nearest
from gcnbatch.pages.document import REPORT
from gcnbatch.predictions import read_outputs
from gcnbatch.run_comparison import paired
from gcnbatch.run_comparison.content import ComparisonContent, Pair, RunScores
from gcnbatch.run_comparison.paired import Difference
from gcnbatch.run_comparison.report import draw, render
from gcnbatch.run_comparison.runs import Block, ComparedRun, overlap, read_runs, scores_by_block
from gcnbatch.text import figure
from gcnbatch.training import run_files
from gcnbatch.training.finished import block_name
from gcnbatch.training.reports import PREDICTIONS

CONTENT, PLOT = "comparison.json", "comparison.png"
FOLDS = "Differences within folds; joint intervals of all pairs by Tukey's HSD, corrected for rows that folds share"
ONE_SPLIT = (
    "One split: intervals by resampling its test rows; they do not cover another split or seed (see train --folds)"
)


def compare(
    folders_of_runs: Sequence[Path],
    out: Path | None = None,
    metric: str = "",
    level: float = 0.95,
    parquet: bool = False,
) -> tuple[Path, ComparisonContent]:
    """Compare finished runs and write ``comparison.json``, ``scores.csv``, a plot and a page; return the folder.

    Parameters
    ----------
    metric : str
        A metric of the test rows; empty: the one that picks the best epoch by default.
    level : float
        Confidence level, between 0 and 1.
    parquet : bool
        Also write ``scores.parquet``.

    Raises
    ------
    InputError
        When the runs cannot be compared, or a score is not defined.
    """
    if parquet:
        tables.check_parquet("--parquet")
    runs = read_runs(folders_of_runs)
    with folders.results(out, "compare-runs", whole=True) as (target, _):
        chosen = _metric(runs, metric)
        blocks = sorted({fit.block for fit in runs[0].fits})
        scores = np.array([_column(run, blocks, chosen) for run in runs]).T
        if len(blocks) > 1:
            pairs, method = paired.differences(scores, overlap(runs[0].fits), level), FOLDS
        else:
            pairs, method = _one_split(runs, chosen, level), ONE_SPLIT
        found = ComparisonContent(
            metric=chosen,
            level=level,
            method=method,
            runs=[_run(run, own.tolist()) for run, own in zip(runs, scores.T, strict=True)],
            blocks=[block_name(*block) for block in blocks],
            pairs=[_pair(pair, runs, chosen, level) for pair in pairs],
        )
        fileio.write_json(target / CONTENT, found.model_dump())
        about = run_files.write_environment(target)
        columns: tables.Columns = {
            "run": [run.name for run in runs for _ in blocks],
            "repeat": [repeat or None for repeat, _ in blocks] * len(runs),
            "fold": [fold or None for _, fold in blocks] * len(runs),
            chosen: scores.T.ravel().tolist(),
        }
        tables.write(target / "scores.csv", columns, parquet)
        draw(found, target / PLOT)
        fileio.write_text(target / REPORT, render(found, target / PLOT, about))
    return target, found


def report(folder: Path) -> Path:
    """Write the page of a comparison again from its files; return its path.

    Raises
    ------
    InputError
        When a file is missing or damaged.
    """
    place = folder / CONTENT
    found = run_files.read_as(place, ComparisonContent, "a comparison")
    fileio.write_text(folder / REPORT, render(found, folder / PLOT, run_files.read_environment(folder)))
    return folder / REPORT


def _metric(runs: Sequence[ComparedRun], name: str) -> str:
    tables = [fit.metrics.get("test", {}) for run in runs for fit in run.fits]
    known = [key for key, value in tables[0].items() if isinstance(value, float) and all(key in of for of in tables)]
    if name and name not in known:
        raise InputError(f"--metric {name}", "no such figure of the test rows", hint=nearest(name, known))
    if name:
        return name
    if chosen := metrics.main_metric(known):
        return chosen
    raise InputError(str(runs[0].folder), "no figure of the test rows that all runs have", "runs with test rows")


def _column(run: ComparedRun, blocks: Sequence[Block], metric: str) -> list[float]:
    values = scores_by_block(run.fits, metric)
    for block in blocks:
        if values[block] is None:
            place = run.folder / block_name(*block)
            raise InputError(str(place), f"no {metric} of the test rows", "a number", "Choose another --metric.")
    return [float(values[block] or 0.0) for block in blocks]


def _one_split(runs: Sequence[ComparedRun], metric: str, level: float) -> list[Difference]:
    with runs[0].data.open() as data:
        if metric not in metrics.METRICS[data.header.target]:
            raise InputError(f"--metric {metric}", "given for one split", "a metric of the target")
        rows = runs[0].fits[0].split.test
        outputs = [
            np.mean([read_outputs(fit.folder / PREDICTIONS, data.header, len(rows)) for fit in run.fits], axis=0)
            for run in runs
        ]
        return paired.resampled(metric, data.header.target, data.measured[rows], outputs, level)


def _run(run: ComparedRun, scores: list[float]) -> RunScores:
    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
    mean = float(np.mean(scores))
    return RunScores(name=run.name, model=run.model, folder=str(run.folder), scores=scores, mean=mean, std=std)


def _pair(pair: Difference, runs: Sequence[ComparedRun], metric: str, level: float) -> Pair:
    first, second = one, other = runs[pair.first].name, runs[pair.second].name
    mean, low, high = (figure(value, signed=True) for value in (pair.mean, pair.joint_low, pair.joint_high))
    verdict = f"no difference shown between {one} and {other}"
    if pair.shown:
        if (pair.mean > 0) != metrics.higher_is_better(metric):
            one, other = other, one
        verdict = f"{one} is better than {other}"
    return Pair(
        first=first,
        second=second,
        difference=pair.mean,
        interval=(pair.low, pair.high),
        joint_interval=(pair.joint_low, pair.joint_high),
        p=pair.p,
        verdict=f"{verdict} ({metrics.label(metric)} {mean}, {level:.0%} from {low} to {high})",
    )
