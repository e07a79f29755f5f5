"""Columns beside the predictions: calibrated probabilities, intervals, sets; single runs and ensembles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from gcnbatch.errors import InputError
from gcnbatch.inference.ensemble import infer
from tests.inference.runs import numbers, read_rows, train_on
from tests.training.runs import write_set

OPTIONS = {"missing": 0.0, "max_nodes": 4}
HALF = {"valid": 0.5, "test": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets and runs of every target with many validation rows; "few" has few of them."""
    place = tmp_path_factory.mktemp("trust")
    for target in ("binary", "multiclass", "regression"):
        write_set(place / f"{target}.h5", 160, target=target, **OPTIONS)
        train_on(place / f"{target}.h5", place / target, split=HALF)
    train_on(place / "regression.h5", place / "folds", split={"valid": 0.5, "folds": 2})
    train_on(place / "binary.h5", place / "few", split={"valid": 0.05, "test": 0.1})
    return place


def columns(folder: Path, run: str, out: Path, **options: object) -> dict[str, list[str]]:
    target = run if run in ("multiclass", "binary") else "binary" if run == "few" else "regression"
    infer([folder / run], folder / f"{target}.h5", str(out), backend="cpu", quiet=True, **options)  # type: ignore[arg-type]
    rows = list(read_rows(out).values())
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize("run", ["regression", "folds"])
def test_no_number_of_a_regression_has_more_digits_than_float32_carries(folder: Path, tmp_path: Path, run: str) -> None:
    found = columns(folder, run, tmp_path / "p.csv")
    names = [name for name in found if name not in ("id", "error")]
    assert any(name.endswith("_std") for name in names) == (run == "folds")
    assert any(name.endswith("_low") for name in names)
    digits = [cell.lstrip("-").replace(".", "").lstrip("0") for name in names for cell in found[name]]
    assert max(map(len, digits)) <= 10  # 8 of the target's deviation, and those of a value beyond it


def test_binary_tasks_have_calibrated_probabilities_and_sets_of_labels(folder: Path, tmp_path: Path) -> None:
    found = columns(folder, "binary", tmp_path / "p.csv")
    assert list(found)[1:] == ["task0", "task1", "task0_calibrated", "task1_calibrated", "task0_set", "task1_set"]
    assert set(found["task0_set"]) <= {"0", "1", "0|1", "{}"}
    order = np.argsort(np.array(found["task0"], float))
    assert (np.diff(np.array(found["task0_calibrated"], float)[order]) >= -1e-6).all()


def test_classes_have_calibrated_probabilities_that_sum_to_1_and_one_set(folder: Path, tmp_path: Path) -> None:
    found = columns(folder, "multiclass", tmp_path / "p.csv", level=0.6)
    p = np.array([found[f"p(class{k})_calibrated"] for k in range(3)], float)
    np.testing.assert_allclose(p.sum(axis=0), 1, rtol=1e-5)
    assert {name for cell in found["task0_set"] for name in cell.split("|")} <= {"class0", "class1", "class2", "{}"}


@pytest.mark.parametrize("run", ["regression", "folds"])
def test_values_have_intervals_around_them_that_grow_with_the_level(folder: Path, tmp_path: Path, run: str) -> None:
    widths = []
    for level in (0.6, 0.9):
        found = {
            k: np.array(v, float) for k, v in columns(folder, run, tmp_path / "p.csv", level=level).items() if k != "id"
        }
        np.testing.assert_allclose((found["task0_low"] + found["task0_high"]) / 2, found["task0"], atol=1e-5)
        widths.append((found["task0_high"] - found["task0_low"]).mean())
    assert widths[1] > widths[0] > 0


def test_coverage_in_the_metrics_is_that_of_the_columns(folder: Path, tmp_path: Path) -> None:
    found = columns(folder, "regression", tmp_path / "p.csv")
    rows = json.loads((folder / "regression" / "splits.json").read_text())["test"]
    with h5py.File(folder / "regression.h5") as file:
        y = file["graphs/y"][:, 0][rows]
    low, high = (np.array(found[f"task0_{end}"], float)[rows] for end in ("low", "high"))
    figures = json.loads((folder / "regression" / "metrics.json").read_text())["uncertainty"]
    assert figures["level"] == 0.9
    assert figures["tasks"]["task0"]["coverage"] == pytest.approx(np.mean((low <= y) & (y <= high)), abs=0.02)


def test_too_few_validation_rows_give_no_column_and_one_message(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = columns(folder, "few", tmp_path / "p.csv", say=said.append)
    assert list(found) == ["id", "task0", "task1"]
    assert said == ["no sets at level 0.9 for task0, task1: too few validation rows"]


def test_a_run_without_uncertainty_predicts_and_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "regression", tmp_path / "old")
    (tmp_path / "old" / "uncertainty.safetensors").unlink()
    shutil.copy(folder / "regression.h5", tmp_path / "regression.h5")
    said: list[str] = []
    assert list(columns(tmp_path, "old", tmp_path / "p.csv", say=said.append)) == ["id", "task0", "task1"]
    assert said[0].endswith("old has no uncertainty.safetensors")


def test_the_level_of_training_is_that_of_the_metrics_and_the_default_of_infer(folder: Path, tmp_path: Path) -> None:
    run = train_on(folder / "regression.h5", tmp_path / "run", split={"valid": 0.4}, train={"level": 0.6, "epochs": 1})
    assert json.loads((run / "metrics.json").read_text())["uncertainty"]["level"] == 0.6
    data, out = folder / "regression.h5", tmp_path / "p.csv"

    def width(runs: list[Path], **options: Any) -> float:
        infer(runs, data, str(out), backend="cpu", quiet=True, **options)
        rows = numbers(read_rows(out), ["task0_low", "task0_high"])
        return float((rows[:, 1] - rows[:, 0]).mean())

    assert width([run]) == width([run], level=0.6) < width([run], level=0.9)
    with pytest.raises(InputError, match=r"--level: trained for 0\.6, 0\.9; expected one level of all runs"):
        width([run, folder / "regression"])
    assert width([run, folder / "regression"], level=0.8) > 0


def test_a_level_out_of_range_and_a_damaged_file_are_refused(folder: Path, tmp_path: Path) -> None:
    for level in (0.4, 1.0):
        with pytest.raises(InputError, match=r"--level: .*; expected at least 0\.5 and below 1"):
            columns(folder, "regression", tmp_path / "p.csv", level=level)
    shutil.copytree(folder / "regression", tmp_path / "bad")
    shutil.copy(folder / "binary" / "uncertainty.safetensors", tmp_path / "bad")
    shutil.copy(folder / "regression.h5", tmp_path / "regression.h5")
    with pytest.raises(InputError, match=r"uncertainty\.safetensors: scores that do not fit the model"):
        columns(tmp_path, "bad", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


def test_plain_predictions_have_no_further_columns(folder: Path, tmp_path: Path) -> None:
    assert list(columns(folder, "binary", tmp_path / "p.csv", level=None)) == ["id", "task0", "task1"]


def test_json_lines_and_hdf5_hold_the_columns_too(folder: Path, tmp_path: Path) -> None:
    for name in ("p.jsonl", "p.h5"):
        infer([folder / "binary"], folder / "binary.h5", str(tmp_path / name), backend="cpu", quiet=True)
    first = json.loads((tmp_path / "p.jsonl").read_text().splitlines()[0])
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["more/task0_calibrated"][0] == pytest.approx(first["task0_calibrated"])
        assert file["more/task0_set"][0].decode() == first["task0_set"]
