"""Confidence intervals of metrics, by resampling test rows (the bootstrap).

A resample draws R rows of R with replacement; row r then counts ``weights[r]`` times. `metrics.figures` computes the
metrics of many resamples at once from these weights, hundreds of times faster than one resample after the other.

The intervals cover other test rows from the same source. They do not cover another split or another seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import metrics, philox
from gcnbatch.ranking import Float64, Weights

if TYPE_CHECKING:
    from gcnbatch.data.schema import Target

RESAMPLES, FEWEST = 1000, 100
WORK = 20_000_000  # resamples x rows x outputs
LEVEL = 0.95
_CHUNK = 500_000  # weights in memory

Interval = tuple[float, float] | None


class Intervals(NamedTuple):
    """Intervals of the means over tasks, and of each task, by metric; None where a figure is not defined."""

    resamples: int
    mean: dict[str, Interval]
    tasks: dict[str, dict[str, Interval]]


def intervals(
    target: Target, y: NDArray[Any], outputs: NDArray[np.floating], task_names: Sequence[str]
) -> Intervals | None:
    """Return the 95 % intervals of metrics; None for more rows than can be resampled quickly (200,000 / outputs).

    Spearman's correlation has none: the ranks of all resamples take five times as long as all other metrics.

    Parameters
    ----------
    target, y, outputs, task_names
        As in `metrics.evaluate`.
    """
    resamples = min(RESAMPLES, WORK // max(outputs.size, 1))
    if not len(y) or resamples < FEWEST:
        return None
    names = [name for name in metrics.METRICS[target] if name != "spearman"]
    found = figures(target, y, outputs, resamples, names)
    means = {
        name: interval(metrics.mean_over_tasks(target, y, outputs, found[name]))
        for name in metrics.averaged(target, len(task_names))
        if name in names
    }
    return Intervals(
        resamples,
        means,
        {task: {name: interval(of[number]) for name, of in found.items()} for number, task in enumerate(task_names)},
    )


def figures(
    target: Target, y: NDArray[Any], outputs: NDArray[np.floating], resamples: int, names: Sequence[str] = ()
) -> dict[str, Float64]:
    """Return the metrics of each task in each resample by name, (K, resamples); the draws depend on R alone.

    Parameters
    ----------
    target, y, outputs, names
        As in `metrics.figures`.
    """
    parts = [metrics.figures(target, y, outputs, weights, names) for weights in _weights(len(y), resamples)]
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


def interval(values: Float64, level: float = LEVEL) -> Interval:
    """Return the central part of the values that are defined; None if half or more are not."""
    known = values[np.isfinite(values)]
    return central(known, level) if 2 * len(known) > len(values) else None


def central(values: Float64, level: float = LEVEL) -> tuple[float, float]:
    """Return the central part of numbers, one at least."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _weights(rows: int, resamples: int) -> Iterator[Weights]:
    """Yield how often each resample has each row, (rows, B): sums over rows are then sums of contiguous vectors."""
    draws = philox.generator(0, "bootstrap")
    for start in range(0, resamples, size := max(1, _CHUNK // rows)):
        count = min(size, resamples - start)
        drawn = draws.integers(rows, size=(rows, count)) * count + np.arange(count)
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float32)
