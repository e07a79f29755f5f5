"""Bounds as >10 are no measured values: a model learns the numbers that they name, and no figure counts them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.baselines import runs as baselines
from gcnbatch.config import Config, resolve
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.store import Dataset
from gcnbatch.inference.ensemble import infer
from gcnbatch.training import run

NOTE = "10 of 40 labels are bounds: a model learns the numbers that bounds name, and metrics leave them out"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return a configuration whose data have a bound in every fourth row, far from the measured values."""
    rows = [f"{'C' * (row % 13 + 1)}{'ON'[row % 2]},{'>900' if row % 4 == 3 else row / 8}" for row in range(40)]
    (tmp_path / "m.csv").write_text("\n".join(["smiles,y", *rows]) + "\n")
    import_smiles(tmp_path / "m.csv", tmp_path / "m.h5", FeaturizerOptions(), target_columns=["y"], processes=1)
    tree: dict[str, Any] = {
        "data": {"path": str(tmp_path / "m.h5")},
        "model": {"widths": [4]},
        "train": {"epochs": 2},
        "split": {"valid": 0.3, "test": 0.3},
        "backend": "cpu",
    }
    return resolve(tree)


def measured_errors(folder: Path, data: Path) -> np.ndarray:
    """Return the errors of the test rows in a run that are measured values."""
    with Dataset(data) as dataset:
        assert dataset.censored is not None
        labels = dict(zip(dataset.ids, dataset.y[:, 0], strict=True))
        bounds = dict(zip(dataset.ids, dataset.censored[:, 0], strict=True))
    with (folder / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(bounds[row["id"]] for row in rows)
    return np.array([float(row["y"]) - labels[row["id"]] for row in rows if not bounds[row["id"]]])


@pytest.mark.parametrize("start", [run.start, baselines.start])
def test_metrics_of_test_rows_leave_bounds_out_and_it_is_said(tmp_path: Path, config: Config, start: Any) -> None:
    said: list[str] = []
    folder, found = start(config, tmp_path / "run", say=said.append)
    assert NOTE in said
    errors = measured_errors(folder, tmp_path / "m.h5")
    assert found["test"]["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)


def test_folds_and_validation_rows_are_scored_alike(tmp_path: Path, config: Config) -> None:
    folds = config.model_copy(update={"split": config.split.model_copy(update={"folds": 2, "test": 0.0})})
    folder, found = run.start(folds, tmp_path / "run", quiet=True)
    errors = measured_errors(folder, tmp_path / "m.h5")
    assert found["out_of_fold"]["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)
    assert found["folds"][0]["valid"]["rmse"] < 500  # bounds of 900 alone would give more


def test_a_set_and_its_table_have_the_same_metrics(tmp_path: Path, config: Config) -> None:
    folder, _ = run.start(config, tmp_path / "run", quiet=True)
    said: list[str] = []
    of_set = infer([folder], tmp_path / "m.h5", str(tmp_path / "out.csv"), quiet=True, say=said.append)
    of_table = infer([folder], tmp_path / "m.csv", str(tmp_path / "of_table.csv"), quiet=True)
    assert "metrics from 30 of 40 rows; row 4: '>900' is a bound, not a measured value (10 such cells)" in said
    assert of_set.metrics is not None
    assert of_table.metrics is not None
    assert of_set.metrics["rmse"] == of_table.metrics["rmse"]
