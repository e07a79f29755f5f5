"""The benchmark on two tiny tables: scores, published figures, going on after a stop, refusals."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import gcnbatch
from gcnbatch.baselines.forest import Forest
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import write_graphset
from gcnbatch.errors import InputError
from gcnbatch.lab.benchmark.report import table_of
from gcnbatch.lab.benchmark.results import Result
from gcnbatch.lab.benchmark.suite import find_sets, load
from gcnbatch.training import run
from gcnbatch.training.finished import read_fits
from tests.cli.conftest import call
from tests.inference.runs import SMILES
from tests.training.runs import lighten

__all__ = ["call"]


def choose(sets: Sequence[str] = (), splits: Sequence[str] = (), models: Sequence[str] = ()) -> dict[str, Any]:
    return {"sets": sets, "splits": splits, "models": models}


QUICK = choose(splits=("random",), models=("plain", "baseline"))


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    lighten(monkeypatch)
    monkeypatch.setattr("gcnbatch.lab.benchmark.report.save", lambda figure, path: path.write_bytes(b""))
    monkeypatch.setattr("gcnbatch.baselines.runs.Forest", lambda trees, seed: Forest(trees // 10, seed))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    molecules = ["C" * (i // len(SMILES)) + SMILES[i % len(SMILES)] for i in range(30)]
    (folder / "bace.csv").write_text("mol,Class\n" + "".join(f"{m},{i % 2}\n" for i, m in enumerate(molecules)))
    values = "".join(f"{m},{0.1 * i}\n" for i, m in enumerate(molecules))
    (folder / "freesolv.csv").write_text("smiles,freesolv\n" + values)
    return folder


def start(tables: Path, out: Path, choice: dict[str, Any] = QUICK, seeds: int = 2) -> list[Result]:
    found = gcnbatch.moleculenet(tables, **choice, seeds=seeds, epochs=1, backend="cpu", out=out)
    return list(found.results)


def test_the_sets_that_are_there_are_run_and_stand_beside_published_figures(tables: Path, tmp_path: Path) -> None:
    found = start(tables, tmp_path / "out")
    assert [(one.set, one.split, one.model, len(one.test)) for one in found] == [
        *(("bace", "random", "plain", 2), ("bace", "random", "baseline", 2)),
        *(("freesolv", "random", "plain", 2), ("freesolv", "random", "baseline", 2)),
    ]
    plain = json.loads((tmp_path / "out/freesolv/random/plain/metrics.json").read_text())
    assert found[2].test == [member["test"]["rmse"] for member in plain["members"]]
    assert found[2].mean == pytest.approx(plain["mean"]["test"]["rmse"])
    first, second = (read_fits(tmp_path / "out/bace/random" / model) for model in ("plain", "baseline"))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.split.test, other.split.test)
    with (tmp_path / "out/results.csv").open(newline="") as stream:
        _, *lines = csv.reader(stream)
    assert ["BACE", "random", "AttentiveFP", "roc_auc", "0.876", "", "", "", "", "jiang"] in lines
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "https://doi.org/10.1186/s13321-020-00479-8" in page
    assert json.loads((tmp_path / "out/results.json").read_text())[0]["mean"] == found[0].mean


def test_scores_of_the_scaffold_split_are_of_models_and_an_ensemble_has_one(tables: Path, tmp_path: Path) -> None:
    choice = choose(("freesolv",), ("scaffold",), ("tuned", "ensemble"))
    tuned, _, ensemble = start(tables, tmp_path / "out", choice)
    assert (len(tuned.test), len(ensemble.test), ensemble.deviation) == (2, 1, None)
    fits = read_fits(tmp_path / "out/freesolv/scaffold/ensemble")
    assert len(fits) == 10
    assert {tuple(fit.split.test) for fit in fits} == {tuple(fits[0].split.test)}
    pooled = json.loads((tmp_path / "out/freesolv/scaffold/ensemble/metrics.json").read_text())["out_of_fold"]
    assert ensemble.test == [pooled["rmse"]]
    valid = [fit.metrics["valid"]["rmse"] for fit in fits]
    assert ensemble.valid == pytest.approx(fmean(valid))


def test_an_ensemble_has_the_scores_of_its_single_models_too(tables: Path, tmp_path: Path) -> None:
    alone = start(tables, tmp_path / "alone", choose(("freesolv",), (), ("descriptors",)))
    both = start(tables, tmp_path / "both", choose(("freesolv",), (), ("descriptors", "ensemble")))
    assert not (tmp_path / "both/freesolv/random/descriptors").exists()
    shared = [one for one in both if one.model == "descriptors"]
    assert [(one.split, one.test, one.valid) for one in shared] == [(one.split, one.test, one.valid) for one in alone]
    assert [len(one.test) for one in both] == [2, 2, 2, 1]


@pytest.mark.parametrize("split", ["random", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_the_mean_of_models_runs_them_and_scores_their_mean_output(split: str, tables: Path, tmp_path: Path) -> None:
    found = {one.model: one for one in start(tables, tmp_path / "out", choose(("freesolv",), (split,), ("mean",)))}
    assert list(found) == ["descriptors", "ensemble", "baseline", "mean"]
    place, header, y = tmp_path / "out/freesolv" / split, *labels(tmp_path / "out/data/freesolv-atoms.h5")
    models, forests = (read_fits(place / model) for model in ("ensemble", "baseline"))
    expected = []
    for forest in forests:
        same = [fit.outputs(header) for fit in models if fit.block == forest.block]
        mean = (np.mean(same, axis=0) + forest.outputs(header)) / 2
        expected.append(np.sqrt(np.mean((mean - y[forest.split.test]) ** 2)))
    assert len(expected) == (2 if split == "random" else 1)
    assert found["mean"].test == pytest.approx(expected)
    assert (found["mean"].valid, found["mean"].seconds) == (None, None)


def labels(path: Path):
    with Dataset(path) as dataset:
        return dataset.header, dataset.y


@pytest.mark.slow
def test_a_recipe_tests_the_rows_of_the_other_models(tables: Path, tmp_path: Path) -> None:
    found = start(tables, tmp_path / "out", choose(("freesolv",), (), ("best", "plain")))
    best = [one for one in found if one.model == "best" and not one.member]
    assert [(one.split, len(one.test), one.interval) for one in best] == [("random", 2, None), ("scaffold", 1, None)]
    assert [one.member for one in found if one.model == "best"][:4] == ["", "kernel", "trees", "gcn"]
    for seed, plain in enumerate(read_fits(tmp_path / "out/freesolv/random/plain")):
        (own,) = read_fits(tmp_path / f"out/freesolv/random/best/seed{seed}")
        np.testing.assert_array_equal(own.split.test, plain.split.test)


@pytest.mark.slow
def test_the_mean_of_models_has_no_score_where_they_tested_different_molecules(tables: Path, tmp_path: Path) -> None:
    choice, out = choose(("freesolv",), ("random",), ("mean",)), tmp_path / "out"
    start(tables, out, choice)
    atoms, changed = out / "data/freesolv-atoms.h5", out / "data/freesolv-descriptors.h5"
    with Dataset(atoms) as dataset:
        graphs = dataset.load()
    ids = np.array([f"other {row}" for row in range(graphs.n_graphs)])
    write_graphset(changed, replace(graphs, ids=ids))
    *_, mean = start(tables, out, choice)
    assert (mean.model, mean.test, mean.mean) == ("mean", [], None)


def test_a_stopped_benchmark_goes_on_and_keeps_finished_runs(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []
    right = run.start

    def dying(config, folder, *rest, **more):
        begun.append(folder)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return right(config, folder, *rest, **more)

    monkeypatch.setattr(run, "start", dying)
    choice = choose(splits=("random",), models=("plain",))
    with pytest.raises(KeyboardInterrupt):
        start(tables, tmp_path / "out", choice)
    found = start(tables, tmp_path / "out", choice)
    assert [folder.parts[-3] for folder in begun] == ["bace", "freesolv", "freesolv"]
    (tmp_path / "out/bace/random/plain/metrics.json").unlink()  # as a run that was killed before its end
    assert [one.test for one in start(tables, tmp_path / "out", choice)] == [one.test for one in found]
    assert len(begun) == 3
    with pytest.raises(
        InputError, match=re.escape(f"--seeds: 3; expected 2, as in {tmp_path / 'out'}. Choose another")
    ):
        start(tables, tmp_path / "out", choice, seeds=3)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (choose(sets=("esoll",)), "--sets: 'esoll'; expected tox21, bbbp, bace"),
        (
            choose(models=("forest",)),
            "--models: 'forest'; expected plain, tuned, descriptors, ensemble, best, baseline, mean",
        ),
        (choose(splits=("time",)), "--splits: 'time'; expected random, scaffold"),
        (choose(sets=("lipo",)), "TABLES: no lipo.csv.gz or lipo.csv in it; expected the table of Lipophilicity"),
    ],
)
def test_unknown_names_and_missing_tables_are_refused(
    tables: Path, tmp_path: Path, choice: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        start(tables, tmp_path / "out", choice)
    assert str(error.value).startswith(message.replace("TABLES", str(tables)))
    assert not (tmp_path / "out").exists()


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no table of the suite in it; expected some of tox21\.csv\.gz, bbbp"):
        start(tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="none: no such folder; expected a folder with tables of molecules"):
        start(tmp_path / "none", tmp_path / "out")


def test_the_command_prints_the_table_and_the_folder(call, tables: Path, tmp_path: Path) -> None:
    given = ("--data", tables, "-o", tmp_path / "out", "--sets", "freesolv", "--splits", "random", "--models", "plain")
    code, out, said = call("benchmark", "moleculenet", *given, "--seeds", 1, "--epochs", 1, "--backend", "cpu")
    lines = out.splitlines()
    assert (code, lines[-1]) == (0, str(tmp_path / "out"))
    assert lines[1].split()[:2] == ["FreeSolv", "random"]
    assert lines[1].endswith("this run")
    assert said.splitlines()[0] == "FreeSolv: import of freesolv.csv"


def test_the_suite_is_whole() -> None:
    """Names in the file refer to each other, shipped configurations exist, and every published figure is shown."""
    suite = load()
    for model in suite.models.values():
        assert model.features in suite.features or model.mean_of or model.is_recipe
        assert set(model.mean_of) | ({model.part_of} - {""}) <= suite.models.keys()
        for name in suite.sets if model.config else ():
            assert model.shipped(name).is_file()
    assert suite.published.keys() == suite.sources.keys()
    for splits in suite.published.values():
        assert splits.keys() <= set(suite.splits)
        assert all(sets.keys() <= suite.sets.keys() for sets in splits.values())
    assert table_of(suite, []) == ([], [])


def test_the_suite_names_the_columns_of_the_real_tables() -> None:
    if not (folder := os.environ.get("GCNBATCH_TEST_DATA")):
        pytest.skip("GCNBATCH_TEST_DATA is not set")
    suite = load()
    for name, (table,) in find_sets(suite, Path(folder), []).items():
        raw = table.read_bytes()
        text = (gzip.decompress(raw) if table.suffix == ".gz" else raw).decode("utf-8")
        columns = next(csv.reader(text.splitlines()))
        assert set(suite.sets[name].targets) | {suite.sets[name].smiles or "smiles"} <= set(columns)
