"""Intervals of metrics by resampling are repeatable and sensible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch import metrics, resampling
from gcnbatch.data.schema import Target

TARGETS: tuple[Target, ...] = ("binary", "multiclass", "regression")
OUTPUTS = 3


def table(target: Target, rows: int = 60, ties: bool = True) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return targets with blanks and outputs that know a little of them, with ties."""
    rng = np.random.default_rng(5)
    if target == "multiclass":
        y = rng.integers(-1, OUTPUTS, size=(rows, 1))
        return y, rng.dirichlet(np.ones(OUTPUTS), size=rows).astype(np.float32)
    y = (
        rng.normal(5, 2, size=(rows, OUTPUTS))
        if target == "regression"
        else rng.integers(0, 2, size=(rows, OUTPUTS)) * 1.0
    )
    outputs = y + rng.normal(size=y.shape) if target == "regression" else np.clip(0.4 * y + rng.random(y.shape), 0, 1)
    y[rng.random(y.shape) < 0.2] = np.nan
    return y, (np.round(outputs, 1) if ties else outputs).astype(np.float32)


def evaluated(target: Target, y: NDArray[Any], outputs: NDArray[np.float32]) -> list[dict[str, Any]]:
    names = [f"t{k}" for k in range(OUTPUTS)]
    found = metrics.evaluate(target, y, outputs, names[: y.shape[1]], names)
    return [found] if target == "multiclass" else list(found["tasks"].values())


@pytest.mark.parametrize("target", TARGETS)
def test_intervals_hold_the_figure_and_shrink_with_more_rows(target: Target) -> None:
    widths = []
    for rows in (60, 600):
        y, outputs = table(target, rows, ties=False)
        names = [f"t{k}" for k in range(y.shape[1])]
        found = resampling.intervals(target, y, outputs, names)
        assert found is not None
        assert found == resampling.intervals(target, y, outputs, names)
        value = evaluated(target, y, outputs)[0][metrics.METRICS[target][0]]
        interval = found.tasks["t0"][metrics.METRICS[target][0]]
        assert interval is not None
        assert interval[0] < value < interval[1]
        widths.append(interval[1] - interval[0])
    assert widths[1] < widths[0] / 2


def test_a_task_without_finite_outputs_has_no_interval_nor_has_the_mean() -> None:
    y, outputs = table("binary")
    outputs[np.flatnonzero(~np.isnan(y[:, 1]))[0], 1] = np.nan
    found = resampling.intervals("binary", y, outputs, ["a", "b", "c"])
    assert found is not None
    assert found.mean["roc_auc"] is None
    assert set(found.tasks["b"].values()) == {None}
    assert found.tasks["a"]["roc_auc"] is not None


def test_too_many_rows_are_not_resampled() -> None:
    rows = resampling.WORK // resampling.FEWEST + 1
    assert resampling.intervals("regression", np.zeros((rows, 1)), np.zeros((rows, 1), np.float32), ["a"]) is None
