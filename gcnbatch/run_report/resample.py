"""Confidence intervals of a run's figures, by resampling its test rows.

A resample draws R rows of R with replacement; row r then counts ``weights[r]`` times. All figures of many resamples are
computed at once from these weights, which is hundreds of times faster than to evaluate each resample. With weights of 1
they are those of `gcnbatch.training.metrics`.

The intervals cover other test rows from the same source. They do not cover another split or another seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.data.schema import Target
from gcnbatch.moments import in_units, unit_of
from gcnbatch.training import metrics

RESAMPLES, FEWEST = 1000, 100
WORK = 20_000_000  # resamples x rows x outputs
LEVEL = 0.95
_CHUNK = 2_000_000  # weights in memory

Interval = tuple[float, float] | None
Weights = NDArray[np.float32]
Figures = dict[str, NDArray[np.float64]]


class Intervals(NamedTuple):
    """Intervals of the means over tasks, and of each task, by metric; None where a figure is not defined."""

    resamples: int
    mean: dict[str, Interval]
    tasks: dict[str, dict[str, Interval]]


def intervals(
    target: Target, y: NDArray[Any], outputs: NDArray[np.floating], task_names: Sequence[str]
) -> Intervals | None:
    """Return the 95 % intervals of all metrics; None for more rows than can be resampled quickly (200,000 / outputs).

    Parameters
    ----------
    target, y, outputs, task_names
        As in `metrics.evaluate`.
    """
    rows = len(y)
    resamples = min(RESAMPLES, WORK // max(outputs.size, 1))
    if not rows or resamples < FEWEST:
        return None
    absent = metrics.left_out(outputs)
    own = y if target == "multiclass" else metrics.without_tasks(y, absent)
    tasks = [_task(target, *column) for column in _columns(target, own, outputs)]
    draws = philox.generator(0, "bootstrap")
    parts: list[list[Figures]] = []
    size = max(1, _CHUNK // rows)
    for start in range(0, resamples, size):
        weights = _weights(draws, min(size, resamples - start), rows)
        parts.append([task(weights) for task in tasks])
    whole = [
        {name: np.concatenate([part[k][name] for part in parts]) for name in parts[0][k]} for k in range(len(tasks))
    ]
    names = metrics.averaged(target, len(tasks))
    known = [
        of for of, is_absent in zip(whole, absent if target != "multiclass" else (False,), strict=True) if not is_absent
    ]
    return Intervals(
        resamples,
        {name: _interval(_mean(np.array([of[name] for of in known]))) if all(known) else None for name in names},
        {
            task: {name: _interval(values) for name, values in of.items()}
            for task, of in zip(task_names, whole, strict=True)
        },
    )


def figures(target: Target, y: NDArray[Any], outputs: NDArray[np.floating], weights: Weights) -> list[Figures]:
    """Return the figures of each task by metric for each column of `weights (R, B)`, NaN where not defined."""
    return [_task(target, *column)(weights) for column in _columns(target, y, outputs)]


def _weights(draws: np.random.Generator, resamples: int, rows: int) -> Weights:
    """Return how often each resample (B) has each row, (R, B): sums over rows are then sums of contiguous vectors."""
    drawn = draws.integers(rows, size=(rows, resamples)) * resamples + np.arange(resamples)
    return np.bincount(drawn.ravel(), minlength=rows * resamples).reshape(rows, resamples).astype(np.float32)


def _columns(target: Target, y: NDArray[Any], outputs: NDArray[Any]) -> list[tuple[NDArray[np.int64], Any, Any]]:
    """Return the labelled rows, their labels and their outputs, for each task."""
    if target == "multiclass":
        known = np.flatnonzero(y[:, 0] >= 0)
        return [(known, y[known, 0], outputs[known].astype(np.float64))]
    columns = []
    for k in range(y.shape[1]):
        known = np.flatnonzero(~np.isnan(y[:, k]))
        columns.append((known, y[known, k].astype(np.float64), outputs[known, k].astype(np.float64)))
    return columns


def _task(target: Target, rows: NDArray[np.int64], y: Any, outputs: Any) -> Callable[[Weights], Figures]:
    """Return the function of weights (R, B) that computes a task's figures."""
    if not len(rows) or not np.isfinite(outputs).all():
        return lambda weights: {}
    if target == "binary":
        return _Binary(rows, y, outputs)
    return _Classes(rows, y, outputs) if target == "multiclass" else _Values(rows, y, outputs)


class _Ranking:
    """Areas under the curves of a task.

    Only outputs that a positive has are thresholds where a curve rises. So the labelled rows fall into 3 G + 1 sets for
    G such thresholds in ascending order: positives at each, negatives at each, negatives below, between and above them.
    A sparse matrix with a row per set sums the weights of all sets at once.
    """

    def __init__(self, rows: NDArray[np.int64], positive: NDArray[np.bool_], outputs: NDArray[np.float64]) -> None:
        thresholds = np.unique(outputs[positive])
        self._count = len(thresholds)
        place = np.searchsorted(thresholds, outputs)
        equal = np.append(thresholds, np.nan)[place] == outputs
        self._sets = np.where(positive, place, place + np.where(equal, 1, 2) * self._count)
        self._rows = rows

    def areas(self, weights: Weights) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ROC-AUC and average precision (B)."""
        at, shape = np.stack((self._sets, self._rows)), (3 * self._count + 1, len(weights))
        sums = sp.csr_array((np.ones(len(self._rows), np.float32), at), shape=shape) @ weights
        positives, equal, between = np.split(sums, (self._count, 2 * self._count))
        above = _from_top(equal + between[1:]) - equal  # negatives of larger output than each threshold
        negatives = above[:1] + equal[:1] + between[:1] if self._count else between
        all_positives = _from_top(positives)
        every = positives.sum(axis=0, dtype=np.float64)
        wins = positives * (negatives - above - equal / 2)
        precision = positives * all_positives / np.maximum(all_positives + above + equal, 1)
        pairs = every * negatives[0]
        return wins.sum(axis=0, dtype=np.float64) / pairs, precision.sum(axis=0, dtype=np.float64) / every


def _from_top(sums: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sums of each row and all rows below it (G, B)."""
    return np.cumsum(sums[::-1], axis=0)[::-1]


def _indicators(rows: NDArray[np.int64], sets: Sequence[NDArray[Any]], total: int) -> NDArray[np.float32]:
    """Return a matrix (sets, total) that sums the weights of the labelled rows of each set."""
    found = np.zeros((len(sets), total), np.float32)
    found[:, rows] = sets
    return found


class _Binary:
    """Figures of a binary task."""

    def __init__(self, rows: NDArray[np.int64], y: NDArray[np.float64], outputs: NDArray[np.float64]) -> None:
        positive, predicted = y == 1, outputs >= 0.5
        self._rows, self._ranking = rows, _Ranking(rows, positive, outputs)
        cells = (positive & predicted, ~positive & predicted, positive & ~predicted, ~positive & ~predicted)
        self._cells = cells

    def __call__(self, weights: Weights) -> Figures:
        with np.errstate(invalid="ignore", divide="ignore"):
            tp, fp, fn, tn = (_indicators(self._rows, self._cells, len(weights)) @ weights).astype(np.float64)
            roc_auc, pr_auc = self._ranking.areas(weights)
            both = np.where((tp + fn > 0) & (fp + tn > 0), 1.0, np.nan)
            found = {
                "roc_auc": roc_auc,
                "pr_auc": pr_auc,
                "accuracy": (tp + tn) / (tp + fp + fn + tn),
                "balanced_accuracy": (tp / (tp + fn) + tn / (fp + tn)) / 2,
                "f1": 2 * tp / (2 * tp + fp + fn),
                "mcc": np.nan_to_num((tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))),
            }
        return {name: values if name == "accuracy" else values * both for name, values in found.items()}


class _Classes:
    """Figures of a multiclass task."""

    def __init__(self, rows: NDArray[np.int64], y: NDArray[Any], outputs: NDArray[np.float64]) -> None:
        classes = np.arange(outputs.shape[1])
        true, predicted = y[:, None] == classes, np.argmax(outputs, axis=1)[:, None] == classes
        self._rows = rows
        self._counts = [part.T for part in (true, predicted, true & predicted)]
        self._rankings = {number: _Ranking(rows, true[:, number], outputs[:, number]) for number in np.unique(y)}

    def __call__(self, weights: Weights) -> Figures:
        with np.errstate(invalid="ignore", divide="ignore"):
            sums = (_indicators(self._rows, part, len(weights)) @ weights for part in self._counts)
            true, predicted, right = (part.astype(np.float64) for part in sums)
            rows, correct = true.sum(axis=0), right.sum(axis=0)
            cross = correct * rows - (true * predicted).sum(axis=0)
            spread = (rows**2 - (predicted**2).sum(axis=0)) * (rows**2 - (true**2).sum(axis=0))
            several = np.where((true > 0).sum(axis=0) > 1, 1.0, np.nan)
            areas = [ranking.areas(weights)[0] for ranking in self._rankings.values()]
            found = {
                "accuracy": correct / rows,
                "balanced_accuracy": _mean(right / true) * several,
                "f1": _mean(2 * right / (true + predicted)) * several,
                "mcc": np.nan_to_num(cross / np.sqrt(spread)) * several,
                "roc_auc": _mean(np.array(areas)) * several,
            }
        return found


class _Values:
    """Figures of a regression task."""

    def __init__(self, rows: NDArray[np.int64], y: NDArray[np.float64], outputs: NDArray[np.float64]) -> None:
        self._unit = unit_of(y, outputs)
        y, outputs = in_units(self._unit, y, outputs)
        error, centred = outputs - y, y - y.mean()
        self._rows = rows
        self._sums = np.stack((np.ones_like(y), np.abs(error), error**2, centred, centred**2))

    def __call__(self, weights: Weights) -> Figures:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            n, absolute, squares, first, second = self._sums @ weights[self._rows]
            spread = second - first**2 / n
            r2 = 1 - squares / np.where(spread > 1e-12 * second, spread, np.nan)
            rmse, mae = (np.ldexp(of, self._unit) for of in (np.sqrt(squares / n), absolute / n))
            return {"rmse": rmse, "mae": mae, "r2": r2}


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over rows of the values that are defined."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: NDArray[np.float64] = np.where(known, values, 0.0).sum(axis=0) / known.sum(axis=0)
    return mean


def _interval(values: NDArray[np.float64]) -> Interval:
    """Return the central 95 % of the defined values; None if fewer than half are defined."""
    known = values[np.isfinite(values)]
    if 2 * len(known) <= len(values):
        return None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
