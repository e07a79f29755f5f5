"""Which tasks the labels of the training rows can teach, and notes on the labels of each part of a split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Split
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.text import printable

_NAMED, _NAME = 20, 40  # tasks named in a message, characters of a name
STRATIFIED = 'split.kind = "stratified" gives each part its share of rare labels'


class Range(NamedTuple):
    """Smallest and largest label of each task, (T,) float64; NaN for a task without labels."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, y: NDArray[Any]) -> Range:
        """Return those of targets (R, T)."""
        known = y >= 0 if y.dtype.kind == "i" else ~np.isnan(y)
        low, high = np.where(known, y, np.inf).min(axis=0, initial=np.inf), np.where(known, y, -np.inf)
        found = cls(low.astype(np.float64), high.max(axis=0, initial=-np.inf).astype(np.float64))
        return cls(*(np.where(np.isinf(bound), np.nan, bound) for bound in found))

    @property
    def varies(self) -> NDArray[np.bool_]:
        """Which tasks have different labels."""
        return np.asarray(self.low < self.high)


def left_out(header: Header, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which tasks (T,) the training rows cannot teach: they have no labels of them, or labels of one class."""
    found = Range.of(labels)
    return np.isnan(found.low) if header.target == "regression" else ~found.varies


def check_learnable(place: object, header: Header, y: NDArray[Any], splits: Sequence[Split]) -> None:
    """Refuse splits none of which has a task to learn; `place` names the data.

    Raises
    ------
    InputError
    """
    if all(left_out(header, y[split.train]).all() for split in splits):
        reason = "labels" if header.target == "regression" else "labels of two classes"
        got = f"no task has {reason} in the training rows"
        raise InputError(str(place), got, reason, f"Use more rows or other targets; {STRATIFIED}.")


def notes(header: Header, y: NDArray[Any], splits: Sequence[Split], kind: str) -> list[str]:
    """Return a line for each thing that users should know of the labels in the splits of a run.

    Parameters
    ----------
    y : (R, T)
        Targets of the data set.
    splits : sequence of Split
        Different splits: folds, and those of repeats.
    kind : str
        Their kind, as in the configuration.
    """
    ranges = [{part: Range.of(y[rows]) for part, rows in split.parts().items() if len(rows)} for split in splits]
    absent = np.array([left_out(header, y[split.train]) for split in splits])
    lines = list(_left_out(header, absent, ranges[0]["train"]))
    if header.target == "regression":
        return [*lines, *_equal(header, ranges)]
    poor = [line for part in ("valid", "test") for line in _poor(header, absent, ranges, part)]
    depends = bool((absent.any(axis=0) & ~absent.all(axis=0)).any())  # on the split
    lines += poor
    if kind == "random" and (poor or depends):
        lines[-1] += f"; {STRATIFIED}"
    return lines


def _left_out(header: Header, absent: NDArray[np.bool_], first: Range) -> Iterator[str]:
    every, some = (np.asarray(of) for of in (absent.all(axis=0), absent.any(axis=0)))
    if not some.any():
        return
    shown = []
    if every.any():
        shown.append(_listed(_described(header, first, every)))
    if (some & ~every).any():
        names = _listed(printable(header.task_names[task], _NAME) for task in np.flatnonzero(some & ~every))
        shown.append(f"in some of the {len(absent)} splits {names}")
    reason = "no label" if header.target == "regression" else "no labels of two classes"
    count = f"{np.count_nonzero(some):,} of {len(some):,} tasks"
    yield f"left out, as the training rows have {reason} of them: {count}: {'; '.join(shown)}"


def _described(header: Header, found: Range, tasks: NDArray[np.bool_]) -> Iterator[str]:
    """Yield the name of each of these tasks, and its only label."""
    for task in np.flatnonzero(tasks):
        name, value = printable(header.task_names[task], _NAME), float(found.low[task])
        if np.isnan(value):
            yield f"{name} (no label)"
        else:
            label = printable(header.class_names[int(value)], _NAME) if header.class_names else f"{value:g}"
            yield f"{name} (all {label})"


def _equal(header: Header, ranges: Sequence[dict[str, Range]]) -> Iterator[str]:
    """Yield a line on regression tasks whose training labels are all equal."""
    equal = np.any([of["train"].low == of["train"].high for of in ranges], axis=0)
    if equal.any():
        found = ranges[0]["train"]
        named = (f"{printable(header.task_names[task], _NAME)} = {found.low[task]:g}" for task in np.flatnonzero(equal))
        yield f"all training labels are equal, so that there is nothing to learn: {_listed(named)}"


def _poor(header: Header, absent: NDArray[np.bool_], ranges: Sequence[dict[str, Range]], part: str) -> Iterator[str]:
    """Yield a line on tasks that a part has no labels of two classes of, though training has."""
    found = [(~of[part].varies & ~own) for of, own in zip(ranges, absent, strict=True) if part in of]
    tasks = np.flatnonzero(np.any(found, axis=0)) if found else ()
    if not len(tasks):
        return
    count = sum(map(np.any, found))
    of_splits = f" of {count} of {len(found)} splits" if len(found) > 1 else ""
    means = "; means leave these splits out" if count < len(found) else ""
    names = _listed(printable(header.task_names[task], _NAME) for task in tasks)
    yield (
        f"{part} rows{of_splits}: {len(tasks):,} of {len(header.task_names):,} tasks without labels of two classes, so "
        f"without ROC-AUC there: {names}{means}"
    )


def _listed(names: Iterator[str]) -> str:
    shown = list(islice(names, _NAMED))
    more = sum(1 for _ in names)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
