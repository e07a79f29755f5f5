"""Metrics that ignore missing labels, and the outputs that they are computed from.

A metric that the labels do not define (ROC-AUC of a task with one class, R² of constant values) is None, never 0.5 or
0. Means leave it out; a mean over no task is None. If a labelled entry has a NaN or infinite output, all metrics of its
task and the mean over tasks are None, and the number of such entries is reported. So the results hold no NaN and are
strict JSON. A task that training left out has NaN outputs in all rows: its metrics are None, and means leave it out.

Dimensions: R rows, K tasks, C classes. Binary outputs are probabilities (R, K), multiclass ones (R, C), regression
values (R, K). A probability of 0.5 or more predicts the positive class. A multiclass prediction is the class of the
largest probability, the first one of equals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import moments
from gcnbatch.errors import InputError
from gcnbatch.uncertainty.figures import mean_of_defined

if TYPE_CHECKING:
    from gcnbatch.data.schema import Target

_LABELS = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "average precision",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "mcc": "MCC",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}
_LOWER_IS_BETTER = {"loss", "rmse", "mae"}
_IN_UNITS = ("rmse", "mae")
_DEFINED_FOR_CONSTANT_LABELS = {"accuracy", "rmse", "mae"}


class _Column(NamedTuple):
    """Labelled rows of one task: labels (n,); outputs (n,), or (n, C) for classes."""

    labels: NDArray[Any]
    outputs: NDArray[Any]


def evaluate(
    target: Target,
    y: NDArray[Any],
    outputs: NDArray[Any],
    task_names: Sequence[str],
    class_names: Sequence[str] = (),
) -> dict[str, Any]:
    """Compute every metric of a target kind.

    Parameters
    ----------
    target : {"binary", "multiclass", "regression"}
    y : (R, K) float with NaN where missing, or (R, 1) int with -1 where missing
    outputs : (R, K) or (R, C)
        As `activate` returns them (regression: in the unit of `y`).
    task_names : K names
    class_names : C names, for multiclass

    Returns
    -------
    dict
        The mean over tasks of each metric, by name:

        - binary: roc_auc, pr_auc (average precision), accuracy, balanced_accuracy, f1, mcc;
        - multiclass (one task): accuracy, balanced_accuracy (mean recall of the classes present), f1 (macro), mcc,
          roc_auc (one class against the rest, averaged over the classes present);
        - regression: rmse, mae, r2; for several tasks only r2, as their units differ;

        then "labelled" (number of labels), "undefined" (names of tasks that lack a metric), "non_finite" (labelled
        entries whose output is NaN or infinite), "left_out" (names of tasks that training left out), and "tasks"
        (name -> metrics, "labelled", for binary "positives") or, for multiclass, "classes" (name -> numbers of rows
        "labelled", "predicted", "correct").
    """
    absent = left_out(outputs)
    columns = _columns(target, y if target == "multiclass" else without_tasks(y, absent), outputs)
    figures = [{metric: _figure(metric, target, column) for metric in METRICS[target]} for column in columns]
    lost = [int(np.count_nonzero(~_finite_rows(column.outputs))) for column in columns]
    result: dict[str, Any] = {
        metric: None if any(lost) else mean_of_defined([of_task[metric] for of_task in figures])
        for metric in averaged(target, len(columns))
    }
    result["labelled"] = sum(len(column.labels) for column in columns)
    result["undefined"] = [name for name, of_task in zip(task_names, figures, strict=True) if None in of_task.values()]
    result["non_finite"] = sum(lost)
    places = [] if target == "multiclass" else np.flatnonzero(absent).tolist()
    result["left_out"] = [task_names[task] for task in places]
    if target == "multiclass":
        result["classes"] = _class_counts(columns[0], class_names)
        return result
    result["tasks"] = {
        name: {**of_task, "labelled": len(column.labels)}
        for name, of_task, column in zip(task_names, figures, columns, strict=True)
    }
    if target == "binary":
        for name, column in zip(task_names, columns, strict=True):
            result["tasks"][name]["positives"] = int(np.count_nonzero(column.labels))
    return result


def score(metric: str, target: Target, y: NDArray[Any], outputs: NDArray[Any]) -> float | None:
    """Return the mean over tasks of one metric, as `evaluate` does, without computing the others."""
    return scores(metric, target, y[None], outputs[None], [len(y)])[0]


def scores(
    metric: str, target: Target, y: NDArray[Any], outputs: NDArray[Any], rows: Sequence[int]
) -> list[float | None]:
    """Return the `score` of each of M models.

    Parameters
    ----------
    y : (M, R, K), or (M, R, 1) of classes
        Labels; missing in rows that only other models have.
    outputs : (M, R, K) or (M, R, C)
    rows : M numbers
        The model's rows; behind them, labels are missing.
    """
    if (metric, target) == ("roc_auc", "binary") and _are_probabilities(y, outputs):
        return _mean_roc_aucs(y, outputs)
    of_models = zip(y, outputs, rows, strict=True)
    return [_score(metric, target, labels[:count], found[:count]) for labels, found, count in of_models]


def _score(metric: str, target: Target, y: NDArray[Any], outputs: NDArray[Any]) -> float | None:
    columns = _columns(target, y, outputs)
    if not all(_finite_rows(column.outputs).all() for column in columns):
        return None
    return mean_of_defined([_figure(metric, target, column) for column in columns])


def left_out(outputs: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which columns of `outputs (R, K)` are NaN in all rows, (K,); none where all outputs are NaN."""
    lost = np.isnan(outputs)
    absent: NDArray[np.bool_] = lost.all(axis=0)
    return absent & ~absent.all()


def without_tasks(values: NDArray[Any], absent: NDArray[np.bool_]) -> NDArray[Any]:
    """Return targets or outputs (R, K) with NaN in the absent tasks (T,); of classes, T is 1."""
    if not absent.any():
        return values
    return np.where(absent, -1 if values.dtype.kind == "i" else np.nan, values).astype(values.dtype)


class Curves(NamedTuple):
    """ROC and precision-recall curves of a task, float64. Both arrays of a curve have the same length.

    A point for each distinct output as the threshold, from the largest; a ROC curve begins at (0, 0) and leaves out
    points inside straight lines. Rates and recall increase.
    """

    false_positive_rate: NDArray[np.float64]
    true_positive_rate: NDArray[np.float64]
    recall: NDArray[np.float64]
    precision: NDArray[np.float64]


def curves(y: NDArray[Any], outputs: NDArray[Any]) -> list[Curves | None]:
    """Return the curves of each task of a binary target, or None where `evaluate` returns no areas.

    Parameters
    ----------
    y : (R, K) float with NaN where missing
    outputs : (R, K)
        Probabilities.
    """
    found: list[Curves | None] = []
    for column in _columns("binary", y, outputs):
        if not _is_defined("roc_auc", column):
            found.append(None)
            continue
        rows, hits = _hits(*column)
        misses = rows - hits
        bends = (np.diff(misses, 2) != 0) | (np.diff(hits, 2) != 0)
        corners = np.concatenate([[True], bends, [True]]) if len(hits) > 2 else np.ones(len(hits), dtype=bool)
        false_positives, true_positives = (np.append(0.0, of[corners] / of[-1]) for of in (misses, hits))
        found.append(Curves(false_positives, true_positives, hits / hits[-1], hits / rows))
    return found


def activate(target: Target, logits: NDArray[Any]) -> NDArray[np.float32]:
    """Turn logits (…, K) into outputs: sigmoid (binary), softmax over K (multiclass), identity (regression).

    Computed in float64, so that large logits neither overflow nor cancel. A NaN stays NaN.
    """
    from scipy import special

    wide = np.asarray(logits, dtype=np.float64)
    if target == "binary":
        wide = special.expit(wide)
    elif target == "multiclass":
        with np.errstate(invalid="ignore"):  # inf - inf: the row becomes NaN, which `evaluate` counts
            wide = special.softmax(wide, axis=-1)
    outputs: NDArray[np.float32] = wide.astype(np.float32)
    return outputs


# ------------------------------------------------------------------------------------------------ monitored metric


def averaged(target: Target, tasks: int) -> tuple[str, ...]:
    """Return the metrics that have a mean over tasks: errors of several regression tasks differ in their units."""
    return ("r2",) if target == "regression" and tasks > 1 else METRICS[target]


def default_monitor(target: Target, tasks: int = 1) -> str:
    """Return the validation metric that picks the best epoch by default."""
    if target == "regression" and tasks > 1:
        return "r2"
    defaults: dict[Target, str] = {"binary": "roc_auc", "multiclass": "accuracy", "regression": "rmse"}
    return defaults[target]


def label(metric: str, unit: str = "") -> str:
    """Return the name of a metric for readers, with the unit of an error; its key is for files and options.

    >>> label("rmse", "uM"), label("r2", "uM")
    ('RMSE, uM', 'R²')
    """
    name = _LABELS.get(metric, metric)
    return f"{name}, {unit}" if unit and metric in _IN_UNITS else name


def common_unit(figures: Mapping[str, Any]) -> str:
    """Return the unit that all tasks of these figures share, as `gcnbatch.training.reports.evaluate` gave it."""
    tasks, units = figures.get("tasks"), set[str]()
    for of in tasks.values() if isinstance(tasks, dict) else ():
        unit = of.get("unit") if isinstance(of, dict) else None
        units.add(unit if isinstance(unit, str) else "")
    return units.pop() if len(units) == 1 else ""


def higher_is_better(metric: str) -> bool:
    """Return whether larger values of `metric` are better; `metric` may be ``"loss"``."""
    return metric not in _LOWER_IS_BETTER


def check_monitor(metric: str, target: Target, tasks: int = 1) -> str:
    """Return the metric that ``train.monitor`` selects for this target; ``"auto"`` becomes `default_monitor`.

    Raises
    ------
    InputError
        When the target has no such metric, or the metric no mean over tasks.
    """
    if metric == "auto":
        return default_monitor(target, tasks)
    if metric != "loss" and metric not in METRICS[target]:
        known = ", ".join(["auto", "loss", *METRICS[target]])
        raise InputError("train.monitor", f"'{metric}' is not defined for a {target} target", f"one of {known}")
    if metric != "loss" and metric not in averaged(target, tasks):
        known = ", ".join(["auto", "loss", *averaged(target, tasks)])
        raise InputError(
            "train.monitor", f"'{metric}' has no mean over {tasks} tasks of different units", f"one of {known}"
        )
    return metric


# ------------------------------------------------------------------------------------------------ one task


def _columns(target: Target, y: NDArray[Any], outputs: NDArray[Any]) -> list[_Column]:
    if target == "multiclass":
        known = y[:, 0] >= 0
        return [_Column(y[known, 0], outputs[known].astype(np.float64))]
    known = ~np.isnan(y)
    wide = outputs.astype(np.float64)
    columns = [_Column(y[known[:, k], k].astype(np.float64), wide[known[:, k], k]) for k in range(y.shape[1])]
    return [_Column(labels == 1, values) for labels, values in columns] if target == "binary" else columns


def _finite_rows(outputs: NDArray[Any]) -> NDArray[np.bool_]:
    finite: NDArray[np.bool_] = np.isfinite(outputs).all(axis=tuple(range(1, outputs.ndim)))
    return finite


def _is_defined(metric: str, column: _Column) -> bool:
    labels, outputs = column
    if len(labels) == 0 or not np.isfinite(outputs).all():
        return False
    return metric in _DEFINED_FOR_CONSTANT_LABELS or bool(np.any(labels != labels[0]))


def _figure(metric: str, target: Target, column: _Column) -> float | None:
    if not _is_defined(metric, column):
        return None
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # errors beyond the range of float64
        value = float(_FIGURES[target][metric](*column))
    return value if math.isfinite(value) else None


def _class_counts(column: _Column, class_names: Sequence[str]) -> dict[str, dict[str, int]]:
    predicted = np.where(_finite_rows(column.outputs), _predicted(column.outputs), -1)
    return {
        name: {
            "labelled": int(np.count_nonzero(column.labels == number)),
            "predicted": int(np.count_nonzero(predicted == number)),
            "correct": int(np.count_nonzero((column.labels == number) & (predicted == number))),
        }
        for number, name in enumerate(class_names)
    }


def _predicted(outputs: NDArray[Any]) -> NDArray[Any]:
    return outputs >= 0.5 if outputs.ndim == 1 else np.argmax(outputs, axis=1)


def _roc_auc(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    """Return the probability that a positive outranks a negative, ties counting one half (Mann-Whitney U / pairs).

    It counts the negatives below each positive. scikit-learn's `roc_auc_score` takes far longer; the tests compare.
    """
    if outputs.ndim == 2:
        return float(np.mean([_roc_auc(labels == number, outputs[:, number]) for number in np.unique(labels)]))
    positives, negatives = np.sort(outputs[labels]), np.sort(outputs[~labels])
    wins = sum(int(np.searchsorted(negatives, positives, side).sum()) for side in ("left", "right")) / 2
    return wins / (len(positives) * len(negatives))


def _are_probabilities(y: NDArray[Any], outputs: NDArray[Any]) -> bool:
    """Return whether every labelled entry has a float32 output between 0 and 1, and there are entries."""
    is_wrong = ~((outputs >= 0) & (outputs <= 1)) & ~np.isnan(y)
    return outputs.dtype == np.float32 and bool(y.size) and not is_wrong.any()


def _mean_roc_aucs(y: NDArray[Any], probabilities: NDArray[np.float32]) -> list[float | None]:
    """Return each model's mean of `_roc_auc` over tasks, to the bit; `y` and `probabilities` are (M, R, K).

    All tasks of all models are computed at once: training scores every epoch by it.

    The bits of a float32 from 0 to 1 are ascending numbers below 2^30, so output and label fit one key to sort by. A
    positive wins against the negatives below its output, and counts one half of those with the same output.
    """
    models, rows, tasks = y.shape
    known, bits = ~np.isnan(y), probabilities.view(np.uint32)
    keys = np.where(known, bits << np.uint32(2) | (y == 1), np.uint32(2**32 - 1))
    keys = np.sort(np.ascontiguousarray(keys.swapaxes(1, 2)), axis=2).ravel()
    values, labels = keys >> np.uint32(2), keys & np.uint32(3)
    is_first = np.append(True, values[1:] != values[:-1])
    is_first[::rows] = True
    groups = np.append(np.flatnonzero(is_first), len(keys))  # of one task and output
    negatives = np.append(0, np.cumsum(labels == 0))  # before each place, and in all
    positive = np.flatnonzero(labels == 1)
    group = np.searchsorted(groups, positive, "right") - 1
    twice = negatives[groups[group]] + negatives[groups[group + 1]]
    of_task = positive // rows
    every = models * tasks
    before = negatives[rows * np.arange(every + 1)]
    hits, misses = np.bincount(of_task, minlength=every), np.diff(before)
    wins = np.bincount(of_task, twice - 2 * before[of_task], every) / 2
    found = [float(won / pairs) if pairs else None for won, pairs in zip(wins, hits * misses, strict=True)]
    return [mean_of_defined(found[start : start + tasks]) for start in range(0, every, tasks)]


# scikit-learn's functions check their arguments for milliseconds, too long for thousands of tasks, and its import takes
# a second, as long as a small model trains on a GPU. The tests compare.


def _hits(labels: NDArray[Any], outputs: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rows at or above each distinct output, from the largest, and the positives among them."""
    order = np.argsort(outputs, kind="stable")[::-1]
    last = np.append(np.flatnonzero(np.diff(outputs[order])), len(order) - 1)  # of the rows with each output
    return last + 1.0, np.cumsum(labels[order], dtype=np.float64)[last]


def _pr_auc(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    rows, hits = _hits(labels, outputs)
    precision, recall = (hits / rows)[::-1], np.append((hits / hits[-1])[::-1], 0.0)
    return max(0.0, float(-np.sum(np.diff(recall) * precision)))


def _accuracy(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    return float(np.mean(_predicted(outputs) == labels))


def _balanced_accuracy(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    true, _, both = _class_totals(labels, outputs)
    return float(np.mean(both[true > 0] / true[true > 0]))


def _f1(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    true, predicted, both = _class_totals(labels, outputs)
    found = true + predicted > 0
    scores = 2.0 * both[found] / (true + predicted)[found]
    if outputs.ndim == 1:
        return float(scores[-1]) if found[1] else 0.0
    return float(np.mean(scores))


def _mcc(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    true, predicted, both = _class_totals(labels, outputs)
    rows = float(len(labels))
    variances = (rows**2 - true @ true) * (rows**2 - predicted @ predicted)
    return float((both.sum() * rows - true @ predicted) / np.sqrt(variances)) if variances else 0.0


def _class_totals(labels: NDArray[Any], outputs: NDArray[Any]) -> tuple[NDArray[np.float64], ...]:
    """Return for each class (C,) the rows that have it, that are predicted as it, and both."""
    predicted = _predicted(outputs)
    classes = 2 if outputs.ndim == 1 else outputs.shape[1]
    rows = (labels, predicted, labels[labels == predicted])
    return tuple(np.bincount(of.astype(np.intp), minlength=classes).astype(np.float64) for of in rows)


def _rmse(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    exponent = moments.unit_of(labels, outputs)
    labels, outputs = moments.in_units(exponent, labels, outputs)
    return float(np.ldexp(np.sqrt(np.mean((outputs - labels) ** 2)), exponent))


def _mae(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    exponent = moments.unit_of(labels, outputs)
    labels, outputs = moments.in_units(exponent, labels, outputs)
    return float(np.ldexp(np.mean(np.abs(outputs - labels)), exponent))


def _r2(labels: NDArray[Any], outputs: NDArray[Any]) -> float:
    labels, outputs = moments.in_units(moments.unit_of(labels, outputs), labels, outputs)
    return float(1.0 - np.sum((labels - outputs) ** 2) / np.sum((labels - labels.mean()) ** 2))


_FIGURES: dict[Target, dict[str, Callable[[NDArray[Any], NDArray[Any]], float]]] = {
    "binary": {
        "roc_auc": _roc_auc,
        "pr_auc": _pr_auc,
        "accuracy": _accuracy,
        "balanced_accuracy": _balanced_accuracy,
        "f1": _f1,
        "mcc": _mcc,
    },
    "multiclass": {
        "accuracy": _accuracy,
        "balanced_accuracy": _balanced_accuracy,
        "f1": _f1,
        "mcc": _mcc,
        "roc_auc": _roc_auc,
    },
    "regression": {"rmse": _rmse, "mae": _mae, "r2": _r2},
}
METRICS: dict[Target, tuple[str, ...]] = {target: tuple(figures) for target, figures in _FIGURES.items()}
