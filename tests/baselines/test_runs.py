"""Runs of the baseline: rows of `train`, files, refusals, and the comparison beside a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.baselines import runs as baseline
from gcnbatch.baselines import verdict as verdicts
from gcnbatch.baselines.molecule_features import MoleculeFeatures, molecule_features
from gcnbatch.config import resolve
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.guard import Lost
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.training.finished import FinishedFit, read_fits
from tests.builders import build_graphset
from tests.cli.conftest import call
from tests.inference.runs import import_table, molecule_table, train_on
from tests.parquet import assert_same_table
from tests.training.runs import lighten, write_set

__all__ = ["call"]
COLUMNS = ("structure", ("even", "third"))


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    lighten(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 40 molecules, its data set, and a run with folds on it."""
    place = tmp_path_factory.mktemp("baseline")
    data = import_table(molecule_table(place / "m.csv"), place / "m.h5", FeaturizerOptions())
    train_on(data, place / "folds", split={"folds": 2})
    return place


def config(data: Path, **split: object):
    return resolve({"data": {"path": str(data)}, "parquet": True, "split": {"valid": 0.2, "test": 0.3, **split}})


def test_a_baseline_has_the_rows_and_files_of_a_run_and_the_table_gives_the_same(folder: Path, tmp_path: Path) -> None:
    train_on(folder / "m.h5", tmp_path / "run")
    _, metrics = baseline.start(config(folder / "m.h5"), tmp_path / "set", 5)
    baseline.start(config(folder / "m.csv"), tmp_path / "table", 5, *COLUMNS)
    run, own, table = (tmp_path / name for name in ("run", "set", "table"))
    for name in ("splits.json", "metrics.json", "predictions.csv", "data.sha256", "env.json"):
        assert (own / name).is_file()
    assert (own / "splits.json").read_bytes() == (run / "splits.json").read_bytes()
    assert (own / "predictions.csv").read_bytes() == (table / "predictions.csv").read_bytes()
    assert metrics["model"] == "random forest"
    assert metrics["split"] == json.loads((run / "metrics.json").read_text())["split"]
    assert metrics == json.loads((own / "metrics.json").read_text())


def test_folds_are_those_of_train_and_every_row_is_predicted(folder: Path, tmp_path: Path) -> None:
    _, metrics = baseline.start(config(folder / "m.h5", folds=2), tmp_path / "b", 5)
    for one, other in zip(read_fits(tmp_path / "b"), read_fits(folder / "folds"), strict=True):
        for part in ("train", "valid", "test"):
            np.testing.assert_array_equal(one.split.parts()[part], other.split.parts()[part])
    assert len((tmp_path / "b" / "predictions.csv").read_text().splitlines()) == 41
    for place in ("", "fold1"):
        assert_same_table(tmp_path / "b" / place / "predictions.csv")
    assert metrics["mean"]["test"].keys() == metrics["std"]["test"].keys()
    assert metrics["out_of_fold"]["labelled"] == 80


def test_repeats_are_those_of_train(folder: Path, tmp_path: Path) -> None:
    train_on(folder / "m.h5", tmp_path / "run", split={"folds": 2, "repeats": 2})
    baseline.start(config(folder / "m.h5", folds=2, repeats=2), tmp_path / "b", 5)
    own, other = read_fits(tmp_path / "b"), read_fits(tmp_path / "run")
    assert [fit.block for fit in own] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for fit, same in zip(own, other, strict=True):
        assert fit.folder.name == same.folder.name
        assert (fit.folder / "splits.json").read_bytes() == (same.folder / "splits.json").read_bytes()


def test_beside_a_run_the_baseline_uses_its_rows_and_metrics_say_who_wins(folder: Path) -> None:
    said: list[str] = []
    metrics = baseline.add_to_run(folder / "folds", 5, said.append)
    entry = metrics["baseline"]
    assert entry["metric"] == "roc_auc"
    assert entry["folds"] == 2
    assert entry["winner"] == ("run" if entry["run"] > entry["baseline"] else "baseline")
    assert entry["low"] <= entry["difference"] <= entry["high"]
    assert json.loads((folder / "folds" / "metrics.json").read_text()) == metrics
    assert [fit.folder.name for fit in read_fits(folder / "folds" / "baseline")] == ["fold1", "fold2"]
    assert "baseline: 5 trees for fold2" in said


def test_rows_without_features_are_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def features(smiles: list[str], options: FeaturizerOptions, **_: object) -> MoleculeFeatures:
        found = molecule_features(smiles, options)
        return MoleculeFeatures(found.x, (Lost(3, "crashes RDKit (SIGSEGV)"),))

    monkeypatch.setattr(baseline, "molecule_features", features)
    said: list[str] = []
    baseline.start(config(folder / "m.h5"), tmp_path / "b", 5, say=said.append)
    assert "1 row has zeros for all features; the first is M3: crashes RDKit (SIGSEGV)" in said


@pytest.mark.parametrize(
    ("target", "own", "its", "winner", "sentence"),
    [
        (
            "binary",
            0.9,
            0.8,
            "run",
            "The model beats the baseline: a random forest has test ROC-AUC 0.8000 against 0.9",
        ),
        ("binary", 0.7, 0.8, "baseline", "The baseline wins: a random forest has test ROC-AUC 0.8000 against 0.7000"),
        ("regression", 0.7, 0.8, "run", "The model beats the baseline: a random forest has test RMSE 0.8000"),
        ("binary", 0.8, 0.8, "none", "The baseline is as good: a random forest has test ROC-AUC 0.8000"),
        ("binary", None, 0.8, None, "The baseline (random forest) has no ROC-AUC on the test rows."),
    ],
)
def test_the_verdict_says_plainly_which_is_better(target, own, its, winner, sentence) -> None:
    header = build_graphset(2, target=target, n_tasks=1).header
    metric = "rmse" if target == "regression" else "roc_auc"
    run, other = ([FinishedFit(0, 0, Path(), {"test": {metric: value}})] for value in (own, its))  # type: ignore[arg-type]
    found = verdicts.verdict(header, run, other)
    assert found["winner"] == winner
    assert found["verdict"].startswith(sentence)


def test_refusals_name_what_is_missing(folder: Path, tmp_path: Path) -> None:
    write_set(tmp_path / "plain.h5")
    for configured, columns, message in (
        (config(tmp_path / "plain.h5"), (), r"plain\.h5: no SMILES in it; expected a data set of molecules"),
        (resolve({}), (), "^--data: missing; expected molecules"),
        (config(folder / "m.h5"), COLUMNS, "given with .*m.h5; expected a table of molecules"),
    ):
        with pytest.raises(InputError, match=message):
            baseline.start(configured, tmp_path / "none", 5, *columns)
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="synthetic data"):
        baseline.check_data(resolve({"data": {"synthetic": "quickstart"}}))


def test_a_run_whose_data_changed_gets_no_baseline(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "copy.h5"
    data.write_bytes((folder / "m.h5").read_bytes())
    run = train_on(data, tmp_path / "run")
    import_table(molecule_table(tmp_path / "other.csv", 39), data, FeaturizerOptions())
    with pytest.raises(InputError, match=r"copy\.h5: changed since the run"):
        baseline.add_to_run(run, 5)


def test_the_commands_print_table_verdict_and_path(folder: Path, tmp_path: Path, call) -> None:
    out = tmp_path / "b"
    code, printed, errors = call("baseline", "--data", folder / "m.h5", "-o", out, "--trees", 5, "--seed", 3)
    assert (code, printed.splitlines()[-1]) == (0, str(out)), errors
    assert "scikit-learn, random split, seed 3: 32 / 4 / 4 rows; random forest" in printed
    options = ["--set", "model.widths=[4]", "--epochs", 1, "--backend", "cpu", "--baseline"]
    code, printed, errors = call("train", "--data", folder / "m.h5", "-o", tmp_path / "r", *options)
    assert code == 0, errors
    assert "a random forest has test ROC-AUC" in printed
    write_set(tmp_path / "plain.h5")
    code, _, errors = call("train", "--data", tmp_path / "plain.h5", "-o", tmp_path / "no", "--baseline")
    assert (code, (tmp_path / "no").exists()) == (2, False)
    assert "no SMILES in it" in errors


def test_smiles_survive_import_splits_and_copies(folder: Path) -> None:
    with Dataset(folder / "m.h5") as dataset:
        smiles = dataset.smiles()
    assert smiles is not None
    assert smiles[:2] == ["CCO", "c1ccccc1"]
    assert len(smiles) == 40
