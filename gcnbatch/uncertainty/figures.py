"""Figures of uncertainty on test rows: calibration errors, Brier scores, coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.schema import Header
from gcnbatch.moments import root_mean_square
from gcnbatch.text import counted, quoted
from gcnbatch.uncertainty.model import Uncertainty, in_blocks, labelled, rows_for

BINS = 10


class Reliability(NamedTuple):
    """Bins of equal width of predicted probabilities: mean prediction, frequency of the label, share of the rows."""

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    share: NDArray[np.float64]

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean distance of prediction and frequency, by share."""
        return float(np.sum(self.share * np.abs(self.predicted - self.observed)))


def reliability(y: NDArray[np.bool_], p: NDArray[Any]) -> Reliability:
    """Return the bins of probabilities `p (n,)` of labels `y (n,)` that are not empty."""
    bins = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    used = count > 0
    sums = [np.bincount(bins, weights=values.astype(np.float64), minlength=BINS)[used] for values in (p, y)]
    return Reliability(sums[0] / count[used], sums[1] / count[used], count[used] / max(len(y), 1))


def evaluate(uncertainty: Uncertainty, y: NDArray[Any], outputs: NDArray[np.floating], level: float) -> dict[str, Any]:
    """Return the entry ``uncertainty`` of metrics.json, from test rows.

    Parameters
    ----------
    y, outputs
        As in `metrics.evaluate`.
    level : float
        Level of intervals and sets.

    Returns
    -------
    dict
        - binary, multiclass: ``ece`` and ``brier`` before, ``ece_calibrated`` and ``brier_calibrated`` after
          calibration; ``coverage`` of the label by its set, ``set_size``. ECE and Brier score of a multiclass set are
          those of the class of largest probability and of all classes;
        - regression: ``coverage`` and ``ence`` (expected normalised calibration error: root mean square error against
          the validation rows' one); ``width`` of the interval by task.

        The overall ``ece`` bins the entries of all calibrated tasks together, of all tasks where none is; the other
        overall figures are means over tasks. A figure that cannot be computed is None. ``notes`` say what was not done.
    """
    header = uncertainty.header
    columns = labelled(header, y, outputs)
    if header.target == "regression":
        tasks = _regression(uncertainty, columns, level)
        overall: dict[str, Any] = {}
    else:
        probabilities = uncertainty.calibrated(outputs)
        after = None if probabilities is None else labelled(header, y, probabilities)
        tasks, overall = _classification(uncertainty, columns, after, level)
    names = list(dict.fromkeys(key for of in tasks.values() for key in of if key not in ("calibration", "width")))
    means = {key: mean_of_defined([of.get(key) for of in tasks.values()]) for key in names}
    what = "interval" if header.target == "regression" else "set"
    rarer = " of the rarer label" if header.target == "binary" else ""
    notes = [
        f"task {quoted(name)} has no {what}: {counted(count, 'validation row')}{rarer}; {rows_for(level)} are needed"
        for name, count in uncertainty.lacking_tasks(level).items()
    ]
    return {"level": level, **means, **overall, "tasks": tasks, "notes": uncertainty.notes + notes}


def reliability_columns(
    header: Header, y: NDArray[Any], probabilities: NDArray[np.float32]
) -> list[tuple[NDArray[np.bool_], NDArray[np.float32]]]:
    """Return, for each task, what a reliability diagram compares: whether the label came, and its probability."""
    columns = labelled(header, y, probabilities)
    return [_confidence(*column) for column in columns] if header.target == "multiclass" else columns


def _confidence(y: NDArray[Any], p: NDArray[np.float32]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    top = p.argmax(axis=1)
    return top == y, p[np.arange(len(y)), top]


def _classification(
    uncertainty: Uncertainty, columns: list[Any], after: list[Any] | None, level: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    header = uncertainty.header
    tasks: dict[str, Any] = {}
    pooled: dict[str, list[Any]] = {"ece": [], "ece_calibrated": []}
    for k, (name, (labels, values)) in enumerate(zip(header.task_names, columns, strict=True)):
        calibrator = uncertainty.calibrators[k]
        figures: dict[str, Any] = {"calibration": calibrator.kind if calibrator else None}
        states = {"": values, "_calibrated": after[k][1] if after and calibrator else None}
        for ending, p in states.items():
            if p is None or not len(labels):
                figures |= {f"ece{ending}": None, f"brier{ending}": None}
                continue
            came = _confidence(labels, p) if p.ndim == 2 else (labels, p)
            figures |= {f"ece{ending}": reliability(*came).ece, f"brier{ending}": _brier(labels, p)}
            if calibrator or not any(uncertainty.calibrators):
                pooled[f"ece{ending}"].append(came)
        tasks[name] = figures | _sets(uncertainty, k, labels, values, level)
    overall = {}
    for key, parts in pooled.items():
        if parts:
            overall[key] = reliability(*(np.concatenate(side) for side in zip(*parts, strict=True))).ece
    return tasks, overall


def _brier(y: NDArray[Any], p: NDArray[Any]) -> float:
    """Return the mean squared distance of probabilities from the label, over classes summed."""
    if p.ndim == 1:
        return float(np.mean((p - y) ** 2))
    distances = in_blocks(lambda p, y: np.sum((p - np.eye(p.shape[1])[y]) ** 2, axis=1), p, y)
    return float(np.mean(distances))


def _sets(uncertainty: Uncertainty, task: int, y: NDArray[Any], p: NDArray[Any], level: float) -> dict[str, Any]:
    """Return coverage and mean size of the sets of a task's labelled rows."""
    binary = uncertainty.header.target == "binary"
    own = uncertainty.scores[2 * task : 2 * task + 2] if binary else uncertainty.scores
    if not len(y) or min(map(len, own)) < rows_for(level):
        return {"coverage": None, "set_size": None}

    def of_rows(p: NDArray[Any], y: NDArray[Any]) -> NDArray[np.int64]:
        """Return whether each row's set has its label, and the size of the set: (n, 2)."""
        inside = uncertainty.p_values(task, p) > 1 - level
        return np.stack([inside[np.arange(len(y)), y.astype(np.int64)], inside.sum(axis=1)], axis=1)

    coverage, size = in_blocks(of_rows, p, y).mean(axis=0)
    return {"coverage": float(coverage), "set_size": float(size)}


def _regression(uncertainty: Uncertainty, columns: list[Any], level: float) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for name, (labels, values), scores in zip(uncertainty.header.task_names, columns, uncertainty.scores, strict=True):
        half = uncertainty.half_widths(level)[len(tasks)]
        error = np.abs(labels - values).astype(np.float64)
        sigma = root_mean_square(scores.astype(np.float64)) if len(scores) else 0.0
        known = len(labels) > 0
        tasks[name] = {
            "coverage": float(np.mean(error <= half)) if known and not math.isnan(half) else None,
            "width": None if math.isnan(half) else 2 * half,
            "ence": abs(root_mean_square(error) - sigma) / sigma if known and sigma else None,
        }
    return tasks


def mean_of_defined(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if all are."""
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
