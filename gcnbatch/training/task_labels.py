"""Which tasks the labels of the training rows can teach, and notes on the labels of each part of a split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Split
from gcnbatch.data.label_ranges import LabelRange, task_name
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.text import some_of

_NAMED = 20  # tasks in a message
STRATIFIED = 'split.kind = "stratified" gives each part its share of rare labels'


def left_out(header: Header, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which tasks (T,) the training rows cannot teach: they have no labels of them, or labels of one class."""
    found = LabelRange.of(labels)
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
    ranges = [{part: LabelRange.of(y[rows]) for part, rows in split.parts().items() if len(rows)} for split in splits]
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


def about_bounds(y: NDArray[Any], censored: NDArray[np.int8] | None) -> list[str]:
    """Return the note for targets `y (R, T)` that are bounds; `censored` has their directions, None without any."""
    bounds = 0 if censored is None else int(np.count_nonzero(censored))
    if not bounds:
        return []
    what = some_of(bounds, int(np.count_nonzero(~np.isnan(y))), "label", "is a bound", "are bounds")
    return [f"{what}: a model learns the numbers that bounds name, and metrics leave them out"]


def _left_out(header: Header, absent: NDArray[np.bool_], first: LabelRange) -> Iterator[str]:
    every, some = (np.asarray(of) for of in (absent.all(axis=0), absent.any(axis=0)))
    if not some.any():
        return
    shown = []
    if every.any():
        shown.append(_listed(first.described(header, np.flatnonzero(every))))
    if (some & ~every).any():
        names = _listed([task_name(header, task) for task in np.flatnonzero(some & ~every).tolist()])
        shown.append(f"in some of the {len(absent)} splits {names}")
    reason = "without labels" if header.target == "regression" else "without labels of two classes"
    count = _count(int(np.count_nonzero(some)), len(some))
    yield f"left out: {count} {reason} in the training rows: {'; '.join(shown)}"


def _equal(header: Header, ranges: Sequence[dict[str, LabelRange]]) -> Iterator[str]:
    """Yield a line on regression tasks whose training labels are all equal."""
    found = next((of["train"] for of in ranges if of["train"].equal.any()), None)
    if found is not None:
        named = _listed(found.described(header, np.flatnonzero(found.equal)))
        yield f"training labels that are all equal, so that there is nothing to learn: {named}"


def _poor(
    header: Header, absent: NDArray[np.bool_], ranges: Sequence[dict[str, LabelRange]], part: str
) -> Iterator[str]:
    """Yield a line on tasks that a part has no labels of two classes of, though training has."""
    found = [(~of[part].varies & ~own) for of, own in zip(ranges, absent, strict=True) if part in of]
    tasks: list[int] = np.flatnonzero(np.any(found, axis=0)).tolist() if found else []
    if not tasks:
        return
    count = sum(map(np.any, found))
    of_splits = f" of {count} of {len(found)} splits" if len(found) > 1 else ""
    means = "; means leave these splits out" if count < len(found) else ""
    names = _listed([task_name(header, task) for task in tasks])
    lacking = f"{_count(len(tasks), len(header.task_names))} without labels of two classes, so without ROC-AUC there"
    yield f"{part} rows{of_splits}: {lacking}: {names}{means}"


def _count(some: int, every: int) -> str:
    return f"{some:,} of {every:,} tasks" if every > 1 else "a task"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
