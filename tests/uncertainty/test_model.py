"""Uncertainty of a model: coverage, sets, what too few rows leave out, and the stored form."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.errors import InputError
from gcnbatch.uncertainty import figures, model, plot
from gcnbatch.uncertainty.model import Uncertainty, p_value, quantile, rows_for
from tests.builders import build_graphset

BINARY = build_graphset(2).header
CLASSES = build_graphset(2, target="multiclass").header
VALUES = build_graphset(2, target="regression").header


def binary_rows(rows: int, seed: int, share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Labels (rows, 2), a tenth of them missing, and overconfident probabilities."""
    draws = np.random.default_rng(seed)
    z = draws.normal(size=(rows, 2)) + np.log(share / (1 - share))
    y = (draws.random((rows, 2)) < 1 / (1 + np.exp(-z))).astype(np.float32)
    y[draws.random(y.shape) < 0.1] = np.nan
    return y, (1 / (1 + np.exp(-3 * z))).astype(np.float32)


def class_rows(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    z = draws.normal(size=(rows, 3))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > draws.random((rows, 1))).argmax(axis=1)[:, None].astype(np.int32)
    y[::10] = -1
    return y, (np.exp(3 * z) / np.exp(3 * z).sum(axis=1, keepdims=True)).astype(np.float32)


def value_rows(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    y = draws.normal(size=(rows, 2)).astype(np.float32)
    outputs = (y + draws.normal(size=y.shape) * [0.5, 20.0]).astype(np.float32)
    y[::7, 0] = np.nan
    return y, outputs


ROWS = {"binary": (BINARY, binary_rows), "multiclass": (CLASSES, class_rows), "regression": (VALUES, value_rows)}


@pytest.mark.parametrize("target", ["binary", "multiclass"])
def test_blocks_of_rows_have_the_figures_of_all_at_once(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    header, rows = ROWS[target]
    fitted, tested = Uncertainty.fit(header, *rows(3000, 0)), rows(1001, 1)
    whole, calibrated = figures.evaluate(fitted, *tested, 0.9), fitted.calibrated(tested[1])
    monkeypatch.setattr(model, "BLOCK_VALUES", 50)
    assert figures.evaluate(fitted, *tested, 0.9) == whole
    np.testing.assert_array_equal(fitted.calibrated(tested[1]), calibrated)


def test_ranks_of_quantiles_and_p_values_follow_the_definition() -> None:
    scores = np.arange(1, 10, dtype=np.float32)  # 1 … 9
    assert quantile(scores, 0.9) == 9
    assert quantile(scores, 0.5) == 5
    assert np.isnan(quantile(scores[:8], 0.9))
    assert [rows_for(level) for level in (0.5, 0.8, 0.9, 0.95, 0.99)] == [1, 4, 9, 19, 99]
    np.testing.assert_allclose(p_value(scores, np.array([0.0, 9.0, 9.5, np.nan])), [1.0, 0.2, 0.1, np.nan])


@pytest.mark.parametrize("target", ROWS)
@pytest.mark.parametrize("level", [0.6, 0.9])
def test_intervals_and_sets_cover_their_level_on_new_rows(target: str, level: float) -> None:
    header, rows = ROWS[target]
    found = figures.evaluate(Uncertainty.fit(header, *rows(3000, 0)), *rows(3000, 1), level)
    assert found["coverage"] == pytest.approx(level, abs=0.03)
    for task in found["tasks"].values():
        assert task["coverage"] == pytest.approx(level, abs=0.03)
    assert found["notes"] == []


def test_the_rare_label_is_covered_as_well_as_the_common_one() -> None:
    uncertainty = Uncertainty.fit(BINARY, *binary_rows(6000, 0, share=0.03))
    y, outputs = binary_rows(6000, 1, share=0.03)
    for task, label in product((0, 1), (0, 1)):
        inside = uncertainty.p_values(task, outputs[y[:, task] == label, task])[:, label] > 0.1
        assert inside.mean() == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("target", ["binary", "multiclass"])
def test_calibration_lowers_the_error_of_overconfident_probabilities(target: str) -> None:
    header, rows = ROWS[target]
    found = figures.evaluate(Uncertainty.fit(header, *rows(3000, 0)), *rows(3000, 1), 0.9)
    assert found["ece"] > 0.1
    assert found["ece_calibrated"] < 0.25 * found["ece"]
    assert found["brier_calibrated"] < found["brier"]


def test_intervals_have_the_width_of_each_tasks_errors() -> None:
    uncertainty = Uncertainty.fit(VALUES, *value_rows(4000, 0))
    np.testing.assert_allclose(uncertainty.half_widths(0.9), [0.5 * 1.645, 20 * 1.645], rtol=0.05)
    assert uncertainty.calibrated(value_rows(3, 1)[1]) is None
    found = figures.evaluate(uncertainty, *value_rows(4000, 1), 0.9)
    assert found["ence"] < 0.05
    assert found["tasks"]["task1"]["width"] == pytest.approx(2 * uncertainty.half_widths(0.9)[1])


def test_too_few_validation_rows_are_told_and_nothing_is_made_up() -> None:
    y, outputs = binary_rows(60, 0)
    y[:, 1] = 0
    y[:8, 1] = 1
    uncertainty = Uncertainty.fit(BINARY, y, outputs)
    found = figures.evaluate(uncertainty, *binary_rows(50, 1), 0.9)
    assert found["notes"] == [
        "task 'task1' is not calibrated: 8 validation rows of the rarer class; 10 are needed",
        "task 'task1' has no set: 8 validation rows of the rarer label; 9 are needed",
    ]
    assert found["tasks"]["task1"]["coverage"] is None
    assert found["tasks"]["task1"]["ece_calibrated"] is None
    assert np.isnan(uncertainty.calibrated(outputs)[:, 1]).all()  # type: ignore[index]
    few = figures.evaluate(Uncertainty.fit(VALUES, *value_rows(8, 0)), *value_rows(50, 1), 0.9)
    assert few["coverage"] is None
    assert few["notes"][0] == "task 'task0' has no interval: 6 validation rows; 9 are needed"
    one = figures.evaluate(Uncertainty.fit(VALUES, *value_rows(2, 0)), *value_rows(50, 1), 0.9)
    assert one["notes"][0] == "task 'task0' has no interval: 1 validation row; 9 are needed"


def test_without_calibrated_tasks_the_overall_error_bins_all_tasks_together() -> None:
    y, outputs = binary_rows(40, 0)
    uncertainty = Uncertainty.fit(BINARY, y[:3], outputs[:3])
    assert uncertainty.calibrated(outputs) is None
    found = figures.evaluate(uncertainty, y, outputs, 0.9)
    known = ~np.isnan(y)
    assert found["ece"] == pytest.approx(figures.reliability(y[known], outputs[known]).ece, rel=1e-9)
    assert found["ece"] != np.mean([of["ece"] for of in found["tasks"].values()])


def test_test_rows_without_labels_have_no_figures() -> None:
    for header, rows in ROWS.values():
        y, outputs = rows(200, 0)
        missing = np.full_like(y, -1 if y.dtype.kind == "i" else np.nan)
        found = figures.evaluate(Uncertainty.fit(header, y, outputs), missing, outputs, 0.9)
        assert found["coverage"] is None


def test_one_bin_per_tenth_and_the_error_weighs_them_by_their_rows() -> None:
    y = np.array([False, True, True, True])
    found = figures.reliability(y, np.array([0.05, 0.15, 0.95, 1.0]))
    np.testing.assert_allclose(found.predicted, [0.05, 0.15, 0.975])
    np.testing.assert_allclose(found.observed, [0, 1, 1])
    assert found.ece == pytest.approx((0.05 + 0.85 + 2 * 0.025) / 4)


@pytest.mark.parametrize("target", ROWS)
def test_the_stored_form_gives_the_same_columns_and_a_plot_is_drawn(target: str, tmp_path: Path) -> None:
    header, rows = ROWS[target]
    fitted = Uncertainty.fit(header, *rows(300, 0))
    again = Uncertainty.read("file", header, fitted.arrays(), fitted.about())
    y, outputs = rows(100, 1)
    if target == "regression":
        np.testing.assert_array_equal(again.half_widths(0.8), fitted.half_widths(0.8))
    else:
        np.testing.assert_array_equal(again.calibrated(outputs), fitted.calibrated(outputs))
        values = outputs[:, 0] if target == "binary" else outputs
        np.testing.assert_array_equal(again.p_values(0, values), fitted.p_values(0, values))
    plot.draw(again, y, outputs, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 3000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, d: a.pop("scores"), "scores that do not fit the model"),
        (lambda a, d: a.update(segments=a["segments"][:-1]), "scores that do not fit the model"),
        (lambda a, d: a.update(segments=a["segments"][::-1].copy()), "scores that do not fit the model"),
        (lambda a, d: a.update(scores=a["scores"].astype(np.float64)), "scores that do not fit the model"),
        (lambda a, d: a.update(scores=a["scores"][::-1].copy()), "scores: numbers that are not sorted"),
        (lambda a, d: a["scores"].__setitem__(0, -0.5), "scores: -0.5 to 0.9.*; expected numbers from 0 to 1"),
        (lambda a, d: a["scores"].__setitem__(-1, np.inf), "scores: .* to inf; expected numbers from 0 to 1"),
        (lambda a, d: d["calibrators"].__setitem__(0, {"kind": "temperature", "scale": 1e300}), "calibrators"),
        (lambda a, d: d["calibrators"].__setitem__(0, {"kind": "isotonic", "x": [0.1], "y": [2.0]}), "calibrators"),
        (lambda a, d: d["calibrators"].pop(), "scores that do not fit the model"),
        (lambda a, d: d["calibrators"].__setitem__(0, {"kind": "python"}), "calibrators.0"),
        (lambda a, d: d.clear(), "'calibrators': missing; expected the uncertainty"),
    ],
)
def test_a_damaged_file_is_refused(change: Any, message: str) -> None:
    fitted = Uncertainty.fit(BINARY, *binary_rows(200, 0))
    arrays, about = fitted.arrays(), copy.deepcopy(fitted.about())
    change(arrays, about)
    with pytest.raises(InputError, match=f"^file: .*{message}"):
        Uncertainty.read("file", BINARY, arrays, about)
