"""Whole runs on targets of any magnitude: what the model sees, and every figure, follows the unit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch import metrics, resampling
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import write_graphset
from gcnbatch.inference.ensemble import predict
from gcnbatch.predictions import read_outputs
from gcnbatch.run_comparison.paired import differences
from gcnbatch.uncertainty import figures
from gcnbatch.uncertainty.model import Uncertainty
from tests.builders import build_graphset
from tests.training.runs import fit, lighten

GRAPHS = build_graphset(60, target="regression", n_tasks=2, missing=0.1, max_nodes=6)
POWERS = (-1000, 0, 1000)  # units of a power of two change no bit of a fraction


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    lighten(monkeypatch)


def trained(folder: Path, y: np.ndarray, *assignments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train on these targets; return metrics and history."""
    write_graphset(folder.with_suffix(".h5"), replace(GRAPHS, y=y))
    found = fit(folder.with_suffix(".h5"), folder, "split.valid=0.3", "seed=1", *assignments)
    text = (folder / "metrics.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in metrics.json")) == found
    return found, [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_runs_differ_in_the_unit_alone(tmp_path: Path) -> None:
    found = [trained(tmp_path / f"run{power}", np.ldexp(GRAPHS.y, power)) for power in POWERS]
    (_, _), (usual, history), (_, _) = found
    for power, (metrics_of, rows) in zip(POWERS, found, strict=True):
        for row, expected in zip(rows, history, strict=True):
            assert (row["train_loss"], row["valid_loss"]) == (expected["train_loss"], expected["valid_loss"])
        for part in ("train", "valid", "test"):
            for name, task in metrics_of[part]["tasks"].items():
                expected = usual[part]["tasks"][name]
                assert task["r2"] == pytest.approx(expected["r2"], abs=1e-6)  # outputs are rounded to a decimal place
                assert np.ldexp(task["rmse"], -power) == pytest.approx(expected["rmse"], rel=1e-6)
                assert np.ldexp(task["mae"], -power) == pytest.approx(expected["mae"], rel=1e-6)


def test_predictions_are_those_of_training_at_a_large_offset_and_at_a_huge_scale(tmp_path: Path) -> None:
    for name, y in (("offset", 298150000 + GRAPHS.y / 100), ("huge", 1e300 * GRAPHS.y), ("tiny", 1e-30 * GRAPHS.y)):
        trained(tmp_path / name, y)
        rows = np.array(json.loads((tmp_path / name / "splits.json").read_text())["test"])
        outputs = read_outputs(tmp_path / name / "predictions.csv", GRAPHS.header, len(rows))
        again = predict([tmp_path / name], tmp_path / f"{name}.h5", backend="cpu").outputs[rows]
        std = np.nanstd(GRAPHS.y, axis=0) * {"offset": 0.01, "huge": 1e300, "tiny": 1e-30}[name]
        assert again.dtype == outputs.dtype == np.float64
        assert len(np.unique(outputs[:, 0])) > 1
        np.testing.assert_allclose(again / std, outputs / std, rtol=1e-15, atol=1e-5)
        with Dataset(tmp_path / f"{name}.h5") as data:
            np.testing.assert_array_equal(data.y, y)


@pytest.mark.parametrize("unit", [1e-30, 1e300])
def test_uncertainty_intervals_and_comparisons_follow_the_unit(unit: float) -> None:
    draws = np.random.default_rng(0)
    y = draws.normal(size=(80, 1))
    outputs = y + 0.3 * draws.normal(size=y.shape)
    header = build_graphset(1, target="regression", n_tasks=1).header
    usual, scaled = (Uncertainty.fit(header, of * y, of * outputs) for of in (1.0, unit))
    assert scaled.half_widths(0.9)[0] / unit == pytest.approx(usual.half_widths(0.9)[0])
    of_usual = figures.evaluate(usual, y, outputs, 0.9)
    of_scaled = figures.evaluate(scaled, unit * y, unit * outputs, 0.9)
    assert (of_scaled["coverage"], of_scaled["ence"]) == pytest.approx((of_usual["coverage"], of_usual["ence"]))
    small, large = (resampling.intervals("regression", of * y, of * outputs, ["a"]) for of in (1.0, unit))
    assert small is not None
    assert large is not None
    for name, factor in (("rmse", unit), ("mae", unit), ("r2", 1.0)):
        assert np.divide(large.mean[name], factor) == pytest.approx(small.mean[name])
    scores = draws.normal(size=(5, 2))
    (of_one,), (of_unit,) = (differences(of * scores, 0.25) for of in (1.0, unit))
    assert of_unit.p == pytest.approx(of_one.p)
    assert (of_unit.low / unit, of_unit.joint_high / unit) == pytest.approx((of_one.low, of_one.joint_high))


def test_an_error_beyond_float64_has_no_figure() -> None:
    y, outputs = np.array([[1e-30], [2e-30]]), np.array([[1.7e308], [-1.7e308]])
    found = metrics.evaluate("regression", y, outputs, ["a"])
    assert found["r2"] is None
    assert found["rmse"] == pytest.approx(1.7e308)


def test_a_validation_row_far_from_the_training_rows_has_no_loss_and_training_goes_on(tmp_path: Path) -> None:
    y = GRAPHS.y.copy()
    found, _ = trained(tmp_path / "first", y)
    rows = json.loads((tmp_path / "first" / "splits.json").read_text())["valid"]
    y[rows[0], 0] = 1e300
    found, history = trained(tmp_path / "second", y)
    assert [row["valid_loss"] for row in history] == [None] * len(history)
    assert found["valid"]["tasks"]["task0"]["rmse"] > 1e298
