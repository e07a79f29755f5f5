"""Metrics that ignore missing labels, and the outputs that they are computed from.

A metric that the labels do not define (ROC-AUC of a task with one class, R² of constant values) is None, never 0.5 or
0. Means leave it out; a mean over no task is None. If a labelled entry has a NaN or infinite output, all metrics of its
task and the mean over tasks are None, and the number of such entries is reported. So the results hold no NaN and are
strict JSON. A task that training left out has NaN outputs in all rows: its metrics are None, and means leave it out.

Dimensions: R rows, K tasks, C classes; also M models and B weightings of the rows. Binary outputs are probabilities
(R, K), multiclass ones (R, C), regression values (R, K). A probability of 0.5 or more predicts the positive class. A
multiclass prediction is the class of the largest probability, the first one of equals.

`figures` computes all metrics, of many tasks, models or resamples at once, in float64. scikit-learn's functions check
their arguments for milliseconds, too long for thousands of tasks and for every epoch, and its import takes a second, as
long as a small model trains on a GPU. The tests compare.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.errors import InputError
from gcnbatch.ranking import Bool, Float64, Ranking, Weights, group_sums, rank_correlation, roc_auc

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
    "spearman": "Spearman ρ",
}
_LOWER_IS_BETTER = {"loss", "rmse", "mae"}
_IN_UNITS = ("rmse", "mae")
METRICS: dict[Target, tuple[str, ...]] = {
    "binary": ("roc_auc", "pr_auc", "accuracy", "balanced_accuracy", "f1", "mcc"),
    "multiclass": ("accuracy", "balanced_accuracy", "f1", "mcc", "roc_auc"),
    "regression": ("rmse", "mae", "r2", "spearman"),
}
_CELLS = 1 << 15  # rows x columns that are computed at once


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
        - regression: rmse, mae, r2, spearman (rank correlation); for several tasks only r2 and spearman, as the units
          of errors differ;

        then "labelled" (number of labels), "undefined" (names of tasks that lack a metric), "non_finite" (labelled
        entries whose output is NaN or infinite), "left_out" (names of tasks that training left out), and "tasks"
        (name -> metrics, "labelled", for binary "positives") or, for multiclass, "classes" (name -> numbers of rows
        "labelled", "predicted", "correct").
    """
    absent = left_out(outputs) if target != "multiclass" else np.zeros(1, bool)
    y = without_tasks(y, absent)
    found = figures(target, y, outputs)
    by_task = [{name: _or_none(of[task]) for name, of in found.items()} for task in range(len(task_names))]
    labelled = _is_labelled(target, y).sum(axis=0).tolist()
    result: dict[str, Any] = {
        name: _or_none(mean_over_tasks(target, y, outputs, found[name]).item())
        for name in averaged(target, len(task_names))
    }
    result["labelled"] = sum(labelled)
    result["undefined"] = [name for name, of in zip(task_names, by_task, strict=True) if None in of.values()]
    result["non_finite"] = int(np.count_nonzero(_is_lost(target, y, outputs)))
    result["left_out"] = [name for name, is_absent in zip(task_names, absent, strict=True) if is_absent]
    if target == "multiclass":
        result["classes"] = _count_classes(y[:, 0], outputs, class_names)
        return result
    result["tasks"] = {
        name: {**of, "labelled": count} for name, of, count in zip(task_names, by_task, labelled, strict=True)
    }
    if target == "binary":
        for name, count in zip(task_names, (y == 1).sum(axis=0).tolist(), strict=True):
            result["tasks"][name]["positives"] = count
    return result


def score(metric: str, target: Target, y: NDArray[Any], outputs: NDArray[np.floating]) -> float | None:
    """Return the mean over tasks of one metric, as `evaluate` does, without computing the others."""
    return scores(metric, target, y[None], outputs[None])[0]


def scores(metric: str, target: Target, y: NDArray[Any], outputs: NDArray[np.floating]) -> list[float | None]:
    """Return the `score` of each of M models.

    Parameters
    ----------
    y : (M, R, K), or (M, R, 1) of classes
        Labels; missing in rows that only other models have.
    outputs : (M, R, K) or (M, R, C)
    """
    values = figures(target, y, outputs, names=(metric,))[metric]
    return [_or_none(mean) for mean in mean_over_tasks(target, y, outputs, values)]


def mean_over_tasks(target: Target, y: NDArray[Any], outputs: NDArray[np.floating], values: Float64) -> Float64:
    """Return the means over tasks of what `figures` returned: over the tasks where the metric is defined.

    NaN where it is defined for no task, and for a model with a labelled output that is not finite. A task that training
    left out counts as one where the metric is not defined.
    """
    means, is_lost = nan_mean(values, axis=y.ndim - 2), _is_lost(target, y, outputs).any(axis=(-2, -1))
    return np.where(is_lost.reshape(is_lost.shape + (1,) * (means.ndim - is_lost.ndim)), np.nan, means)


def left_out(outputs: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which columns of `outputs (…, R, K)` are NaN in all rows, (…, K); none where all outputs are NaN."""
    lost = np.isnan(outputs)
    absent: Bool = lost.all(axis=-2)
    return absent & ~absent.all(axis=-1, keepdims=True)


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
    for labels, p in zip(y.T, outputs.T, strict=True):
        known = ~np.isnan(labels)
        positive = labels[known] == 1
        if positive.all() or not positive.any() or not np.isfinite(p[known]).all():
            found.append(None)
            continue
        _, group = np.unique(-p[known], return_inverse=True)
        rows, hits = (np.cumsum(np.bincount(group, of)) for of in (None, positive))
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

    wide = np.array(logits, dtype=np.float64)
    if target == "binary":
        special.expit(wide, out=wide)
    elif target == "multiclass":
        with np.errstate(invalid="ignore"):  # inf - inf: the row becomes NaN, which `evaluate` counts
            wide = special.softmax(wide, axis=-1)
    outputs: NDArray[np.float32] = wide.astype(np.float32)
    return outputs


# ------------------------------------------------------------------------------------------------ monitored metric


def averaged(target: Target, tasks: int) -> tuple[str, ...]:
    """Return the metrics that have a mean over tasks: errors of several regression tasks differ in their units."""
    return ("r2", "spearman") if target == "regression" and tasks > 1 else METRICS[target]


def default_monitor(target: Target, tasks: int = 1) -> str:
    """Return the validation metric that picks the best epoch by default."""
    if target == "regression" and tasks > 1:
        return "r2"
    defaults: dict[Target, str] = {"binary": "roc_auc", "multiclass": "accuracy", "regression": "rmse"}
    return defaults[target]


def of_kind(figures: Collection[str]) -> tuple[str, ...]:
    """Return the metrics of the kind of target that has these figures, in their usual order."""
    return METRICS["binary" if "pr_auc" in figures else "regression" if "r2" in figures else "multiclass"]


def main_metric(figures: Collection[str]) -> str:
    """Return the one of these figures that picks the best epoch by default; "" if it is not among them."""
    kind = of_kind(figures)
    return next((name for name in (kind[0], "r2") if name in kind and name in figures), "")


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


# ------------------------------------------------------------------------------------------------ figures


def figures(
    target: Target,
    y: NDArray[Any],
    outputs: NDArray[np.floating],
    weights: Weights | None = None,
    names: Collection[str] = (),
) -> dict[str, Float64]:
    """Compute metrics of every task, of one model or of M, with each row counted once or by B weightings.

    Parameters
    ----------
    target, y, outputs
        As for `evaluate`; of M models (M, R, K), or (M, R, 1) and (M, R, C).
    weights : (R, B) float64 or float32, optional
        How often each row counts. Where it counts 0 times it is as if it were missing. float32 is faster; its sums are
        exact for whole numbers below 2^24.
    names : collection of str
        Metrics to compute; empty: all of the target.

    Returns
    -------
    dict
        By name (K,), for M models (M, K), for weightings (K, B) or (M, K, B) float64; K is 1 for classes. NaN where the
        metric is not defined, and for a task with a labelled output that is not finite.
    """
    wanted = [name for name in METRICS[target] if not names or name in names]
    *leading, rows, tasks = y.shape
    models = math.prod(leading)
    cells = rows * (1 if weights is None else weights.shape[1])
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # beyond the range of float64, or not defined
        if target == "multiclass":
            found = _of_classes(y.reshape(models, rows), outputs.reshape(models, *outputs.shape[-2:]), weights, wanted)
        else:
            of_tasks = _of_labels if target == "binary" else _of_values
            columns = (np.ascontiguousarray(np.moveaxis(of, -1, -2)) for of in (y, outputs))
            labels, values = (of.reshape(models * tasks, rows) for of in columns)
            parts = [of_tasks(labels[part], values[part], weights, wanted) for part in _blocks(len(labels), cells)]
            found = {name: np.concatenate([part[name] for part in parts]) for name in wanted}
    shape = (*leading, tasks, *(() if weights is None else weights.shape[1:]))
    return {name: np.where(np.isfinite(found[name]), found[name], np.nan).reshape(shape) for name in wanted}


def nan_mean(values: Float64, axis: int) -> Float64:
    """Return the means of the values that are defined, NaN where none is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: Float64 = np.where(known, values, 0.0).sum(axis=axis) / known.sum(axis=axis)
    return mean


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _is_labelled(target: Target, y: NDArray[Any]) -> Bool:
    return y >= 0 if target == "multiclass" else ~np.isnan(y)


def _is_lost(target: Target, y: NDArray[Any], outputs: NDArray[np.floating]) -> Bool:
    """Return which labels have an output that is NaN or infinite, in the shape of `y`; none of tasks left out."""
    finite = np.isfinite(outputs)
    if finite.all():
        return np.zeros(y.shape, bool)
    if target == "multiclass":
        return (y >= 0) & ~finite.all(axis=-1, keepdims=True)
    return ~np.isnan(y) & ~finite & ~left_out(outputs)[..., None, :]


def _blocks(columns: int, cells: int) -> Iterator[slice]:
    """Yield ranges of columns, of so many cells each, that are computed at once; one at least."""
    size = max(1, _CELLS // max(cells, 1))
    yield from (slice(start, start + size) for start in range(0, max(columns, 1), size))


def _of_labels(
    y: NDArray[Any], p: NDArray[np.floating], weights: Weights | None, names: Collection[str]
) -> dict[str, Float64]:
    """Return metrics of probabilities `p (N, R)` of labels `y (N, R)`, a row of each for a task."""
    known = ~np.isnan(y)
    known &= (np.isfinite(p) | ~known).all(axis=1, keepdims=True)
    positive, found = y == 1, dict[str, Float64]()
    if "roc_auc" in names and "pr_auc" not in names:
        found["roc_auc"] = roc_auc(known, positive, p, weights)
    elif "pr_auc" in names:
        ranking = Ranking(known, positive, p, weights)
        found = {name: getattr(ranking, name)() for name in ("roc_auc", "pr_auc") if name in names}
    if not found.keys() >= set(names):
        counts = _Counts.of(known, positive, p >= 0.5, 2, weights)
        found |= counts.metrics()
        found["f1"] = counts.where_several(counts.f1[:, 1])
    return found


def _of_classes(
    y: NDArray[Any], p: NDArray[np.floating], weights: Weights | None, names: Collection[str]
) -> dict[str, Float64]:
    """Return metrics of probabilities `p (M, R, C)` of classes `y (M, R)`."""
    models, rows, classes = p.shape
    known = y >= 0
    known &= (np.isfinite(p).all(axis=2) | ~known).all(axis=1, keepdims=True)
    found = _Counts.of(known, y, np.argmax(p, axis=2), classes, weights).metrics()
    if "roc_auc" in names:
        areas = []
        for part in _blocks(classes, models * (rows if weights is None else weights.size)):
            numbers = np.arange(classes)[part, None]
            one_class = np.repeat(known, len(numbers), axis=0)
            is_class = (y[:, None] == numbers).reshape(one_class.shape)
            own = np.moveaxis(p[..., part], 2, 1).reshape(one_class.shape)
            area = roc_auc(one_class, is_class, own, weights)
            areas.append(area.reshape(models, len(numbers), *area.shape[1:]))
        found["roc_auc"] = nan_mean(np.concatenate(areas, axis=1), axis=1)
    return found


def _of_values(
    y: NDArray[Any], values: NDArray[np.floating], weights: Weights | None, names: Collection[str]
) -> dict[str, Float64]:
    """Return metrics of `values (N, R)` for targets `y (N, R)`, a row of each for a task.

    Squares of large numbers overflow. So each task is first divided by a power of two, which is exact.
    """
    known = ~np.isnan(y)
    known &= (np.isfinite(values) | ~known).all(axis=1, keepdims=True)
    y, values = (np.where(known, of, 0.0).astype(np.float64) for of in (y, values))
    unit = np.frexp(np.maximum(np.abs(y), np.abs(values)).max(axis=1, initial=0.0))[1]
    y, values = (np.ldexp(of, -unit[:, None]) for of in (y, values))
    column, row = np.nonzero(known)
    centre = group_sums(column, len(y), row, None, y[known]) / known.sum(axis=1)
    error, centred = (values - y)[known], (y - centre[:, None])[known]
    powers = (None, np.abs(error), error**2, centred, centred**2)
    rows, absolute, squares, first, second = (group_sums(column, len(y), row, weights, of) for of in powers)
    spread = second - first**2 / rows
    scale = unit if weights is None else unit[:, None]
    found = {
        "rmse": np.ldexp(np.sqrt(squares / rows), scale),
        "mae": np.ldexp(absolute / rows, scale),
        "r2": 1 - squares / np.where(spread > 1e-12 * second, spread, np.nan),
    }
    return found | ({"spearman": rank_correlation(known, y, values, weights)} if "spearman" in names else {})


def spearman(x: NDArray[np.floating], y: NDArray[np.floating]) -> float | None:
    """Return the rank correlation of finite numbers (n,); None where it is not defined, as all of one are equal."""
    return _or_none(rank_correlation(np.ones((1, len(x)), bool), x[None], y[None])[0]) if len(x) else None


class _Counts(NamedTuple):
    """Weights of the rows by class, each (N, C) or (N, C, B): with the label, predicted as it, and both."""

    true: Float64
    predicted: Float64
    both: Float64

    @classmethod
    def of(
        cls, known: Bool, labels: NDArray[Any], predicted: NDArray[Any], classes: int, weights: Weights | None
    ) -> _Counts:
        column, row = np.nonzero(known)
        first, true, guess = column * classes, labels[known].astype(np.intp), predicted[known].astype(np.intp)
        right = true == guess
        groups = ((first + true, right), (first + true, ~right), (first + guess, ~right))
        sums = (group_sums(group[of], len(known) * classes, row[of], weights) for group, of in groups)
        both, missed, wrong = (of.reshape(len(known), classes, *of.shape[1:]) for of in sums)
        return cls(both + missed, both + wrong, both)

    @property
    def f1(self) -> Float64:
        return 2 * self.both / (self.true + self.predicted)

    def where_several(self, values: Float64) -> Float64:
        """Return the values where the labels have more than one class, NaN elsewhere."""
        return np.where((self.true > 0).sum(axis=1) > 1, values, np.nan)

    def metrics(self) -> dict[str, Float64]:
        rows, right = self.true.sum(axis=1), self.both.sum(axis=1)
        covariance = right * rows - (self.true * self.predicted).sum(axis=1)
        variances = (rows**2 - (self.true**2).sum(axis=1)) * (rows**2 - (self.predicted**2).sum(axis=1))
        mcc = covariance / np.sqrt(np.where(variances > 0, variances, np.inf))
        several = {"balanced_accuracy": nan_mean(self.both / self.true, 1), "f1": nan_mean(self.f1, 1), "mcc": mcc}
        return {"accuracy": right / rows, **{name: self.where_several(of) for name, of in several.items()}}


def _count_classes(y: NDArray[Any], outputs: NDArray[Any], class_names: Sequence[str]) -> dict[str, dict[str, int]]:
    known = y >= 0
    labels, predicted = y[known], np.where(np.isfinite(outputs).all(axis=1), np.argmax(outputs, axis=1), -1)[known]
    rows = {"labelled": labels, "predicted": predicted[predicted >= 0], "correct": labels[labels == predicted]}
    counts = {key: np.bincount(of, minlength=len(class_names)).tolist() for key, of in rows.items()}
    return {name: {key: of[number] for key, of in counts.items()} for number, name in enumerate(class_names)}
