"""The training rows of a mixture: targets, parts, and what is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.errors import InputError
from gcnbatch.mixture.folds import make_folds, strata
from gcnbatch.mixture.transforms import Kind, Transforms

Target = Literal["regression", "binary", "multiclass"]
Error = Callable[[NDArray[Any], NDArray[Any]], float | None]
Float64 = NDArray[np.float64]
_LEAST_WEIGHT = 1e-6  # a row of weight 0 teaches nothing that counts, and has a prediction


class Bounds(NamedTuple):
    """Targets of which only a bound is known.

    Parameters
    ----------
    values : float64, (n, T)
    directions : int8, (n, T)
        1 where the true value is above the given one, -1 where it is below, 0 where there is no bound.
    """

    values: Float64
    directions: NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Problem:
    """Targets of n training rows in T tasks.

    Parameters
    ----------
    target : {"regression", "binary", "multiclass"}
    y : (n, T) float64 with NaN where missing, or (n, 1) int with -1 where missing, for classes
        Bounds are missing here.
    folds : int8, (n,)
        Part of each row, as `make_folds` returns.
    error : callable
        Takes targets like `y`, with any number of tasks, and outputs; returns the error to make small, such as the RMSE
        or a negative ROC-AUC, or None where it is not defined. Outputs are values, or probabilities of each task or
        class.
    classes : int
        Number of classes; 0 if the target is not "multiclass".
    seed : int
    jobs : int
        Threads.
    weights : float64, (n,), or None
        Of the rows in the fits of kernel and trees, not negative. No error knows them.
    bounds : Bounds or None
        Kernel and trees learn those that predictions violate.
    kinds : tuple of kinds, or None
        The transform of each output of regression; None: the kernel chooses it.
    """

    target: Target
    y: NDArray[Any]
    folds: NDArray[np.int8]
    error: Error
    classes: int = 0
    seed: int = 0
    jobs: int = 1
    weights: Float64 | None = None
    bounds: Bounds | None = None
    kinds: tuple[Kind, ...] | None = None

    @classmethod
    def of(
        cls,
        target: Target,
        y: NDArray[Any],
        groups: NDArray[Any],
        error: Error,
        classes: int = 0,
        seed: int = 0,
        jobs: int = 1,
    ) -> Problem:
        """Return the problem with its parts made; rows of equal `groups (n,)` are in one part.

        Raises
        ------
        InputError
            When no task can be learnt, or shapes or labels do not fit.
        """
        if y.ndim != 2 or len(y) != len(groups):
            got = f"shape {y.shape}, {len(groups)} groups"
            raise InputError("targets", got, "an array (rows, tasks), and a group of each row")
        if target == "multiclass" and (y.shape[1] != 1 or y.min() < -1 or y.max() >= classes):
            got = f"{y.shape[1]} columns, labels {y.min()} to {y.max()}"
            raise InputError("classes", got, f"one column of 0 to {classes - 1}, or -1 where missing")
        if target == "binary" and not np.isin(y[~np.isnan(y)], (0, 1)).all():
            raise InputError("labels", "values other than 0 and 1", "0, 1, or NaN where missing")
        if target != "multiclass" and np.isinf(y).any():
            raise InputError("targets", "infinite values", "finite ones, or NaN where missing")
        labels = np.zeros(len(y)) if target == "regression" else strata(np.asarray(y, np.float64))
        found = cls(target, y, make_folds(groups, labels, seed), error, classes, seed, jobs)
        if not any(map(found.is_learnable, found.tasks)):
            raise InputError("targets", "no task has two different values", "labels that vary", "Use other targets.")
        return found

    @cached_property
    def values(self) -> Float64:
        """The targets (n, K) of regressions: values, labels, or one column for each class; NaN where missing."""
        if self.target != "multiclass":
            return np.asarray(self.y, np.float64)
        return np.where(self.y < 0, np.nan, (self.y == np.arange(self.classes)).astype(np.float64))

    @property
    def tasks(self) -> list[slice]:
        """Columns of `values` that are learnt together: classes, or one."""
        count = self.values.shape[1]
        return [slice(0, count)] if self.target == "multiclass" else [slice(k, k + 1) for k in range(count)]

    def rows(self, task: slice) -> NDArray[np.int64]:
        """Return the rows that have labels of a task."""
        return np.flatnonzero(~np.isnan(self.values[:, task.start]))

    def weights_of(self, rows: NDArray[np.int64]) -> Float64 | None:
        """Return the weights of rows with a mean of 1, none of them 0; None: all are 1."""
        if self.weights is None or not (mean := self.weights[rows].mean()) > 0:
            return None
        return np.maximum(self.weights[rows] / mean, _LEAST_WEIGHT)

    def is_learnable(self, task: slice) -> bool:
        """Return whether a task has different values, in at least two parts."""
        rows = self.rows(task)
        return len(np.unique(self.folds[rows])) > 1 and bool(np.ptp(self.values[rows, task], axis=0).any())

    def sharing(self, least: float = 0.5) -> list[tuple[NDArray[np.int64], list[int]]]:
        """Return groups of learnable tasks, by number, with the rows that have labels of them.

        These are tasks with labels in at least a share `least` of the rows, and tasks with the same labelled rows.
        """
        found: dict[bytes, tuple[NDArray[np.int64], list[int]]] = {}
        for task, columns in enumerate(self.tasks):
            if self.is_learnable(columns):
                rows = self.rows(columns)
                key = b"" if len(rows) >= least * len(self.y) else rows.tobytes()
                others, tasks = found.get(key, (rows, []))
                found[key] = np.union1d(others, rows), [*tasks, task]
        return list(found.values())

    def columns(self, tasks: Sequence[int]) -> NDArray[np.int64]:
        """Return the columns of `values` that these tasks have."""
        return np.concatenate([np.arange(self.tasks[task].start, self.tasks[task].stop) for task in tasks])

    def whole_error(self, outputs: Float64) -> float | None:
        """Return the error of outputs (n, K) over all tasks that can be learnt."""
        if self.target == "multiclass":
            return self.error(self.y, outputs)
        learnt = [task.start for task in self.tasks if self.is_learnable(task)]
        return self.error(self.y[:, learnt], outputs[:, learnt])

    def task_error(self, task: slice, outputs: Float64) -> float:
        """Return the error of a task's outputs (n, columns of the task); infinite where it is not defined.

        Rows without a prediction are left out.
        """
        known = ~np.isnan(outputs).any(axis=1)
        own = self.y[known] if self.target == "multiclass" else self.y[known, task]
        found = self.error(own, outputs[known])
        return np.inf if found is None else found


@dataclass(frozen=True)
class Scales:
    """The transforms of targets: without each part, and of all rows.

    Predictions for a part thus depend in nothing on its targets.
    """

    without: tuple[Transforms, ...]
    whole: Transforms

    @classmethod
    def fit(cls, problem: Problem, kinds: tuple[Kind, ...]) -> Scales:
        """Return the transforms of given kinds, one for each of K outputs."""
        parts = range(int(problem.folds.max()) + 1)
        values, folds = problem.values, problem.folds
        without = (Transforms.fit(kinds, np.where((folds == part)[:, None], np.nan, values)) for part in parts)
        return cls(tuple(without), Transforms.fit(kinds, values))

    def without_to_whole(self, part: int, columns: NDArray[np.int64], z: NDArray[Any]) -> NDArray[Any]:
        """Return values (n, C) of some columns, transformed without a part, transformed as those of all rows."""
        found = np.empty_like(z)
        for place, column in enumerate(columns):
            of_part, whole = self.without[part].each[column], self.whole.each[column]
            found[:, place] = whole.apply(of_part.invert(z[:, place]))
        return found

    def invert(self, left_out: Float64, folds: NDArray[np.int8]) -> Float64:
        """Return predictions (n, K) of left-out rows in the user's units."""
        found = np.empty_like(left_out)
        for part, transforms in enumerate(self.without):
            found[folds == part] = transforms.invert(left_out[folds == part])
        return found
