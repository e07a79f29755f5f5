"""Smallest and largest label of each task: tasks whose labels do not differ have nothing to learn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.schema import Header
from gcnbatch.text import printable

_NAME = 40  # characters of a name in a message


def known_labels(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which targets are not missing: NaN, or -1 for classes."""
    return y >= 0 if y.dtype.kind == "i" else ~np.isnan(y)


class LabelRange(NamedTuple):
    """Smallest and largest label of each task, (T,) float64; NaN for a task without labels."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, y: NDArray[Any]) -> LabelRange:
        """Return those of targets (R, T)."""
        y = np.where(known_labels(y), y, np.nan) if y.dtype.kind == "i" else y
        of_tasks = np.ascontiguousarray(y.T)  # so ten times faster
        low, high = (of.reduce(of_tasks, axis=1, initial=np.nan) for of in (np.fmin, np.fmax))  # which ignore NaN
        return cls(low.astype(np.float64), high.astype(np.float64))

    def joined(self, other: LabelRange) -> LabelRange:
        """Return those of the labels of both."""
        return LabelRange(np.fmin(self.low, other.low), np.fmax(self.high, other.high))

    @property
    def varies(self) -> NDArray[np.bool_]:
        """Which tasks have different labels."""
        return np.asarray(self.low < self.high)

    @property
    def equal(self) -> NDArray[np.bool_]:
        """Which tasks have labels that are all equal."""
        return np.asarray(self.low == self.high)

    def described(self, header: Header, tasks: Iterable[int]) -> list[str]:
        """Return the name of each of these tasks and its only label."""
        return [f"{task_name(header, task)} ({self._only(header, task)})" for task in tasks]

    def _only(self, header: Header, task: int) -> str:
        value = float(self.low[task])
        if np.isnan(value):
            return "no label"
        return f"all {printable(header.class_names[int(value)], _NAME) if header.class_names else f'{value:g}'}"


def task_name(header: Header, task: int) -> str:
    """Return the name of a task for a message."""
    return printable(header.task_names[task], _NAME)
