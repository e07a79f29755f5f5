"""Targets that a program gives as an array, in the form of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.api.arrays import to_host
from gcnbatch.data.importers.targets import Targets
from gcnbatch.data.schema import TARGET_TYPES, UNLABELLED, Target
from gcnbatch.errors import InputError


def targets(
    y: Any, rows: int, task: Target | None, task_names: Sequence[str] | None, class_names: Sequence[str]
) -> Targets:
    """Return the targets of `rows` rows.

    Parameters
    ----------
    y : array-like, (R,) or (R, K), or None
        NaN or None where missing; classes from 0, -1, NaN or None where missing.
    task : {"binary", "regression", "multiclass"} or None
        None: binary if all are 0, 1 or missing, else regression.
    task_names, class_names : sequence of str
        None or empty: ``task0`` …, ``0`` ….

    Raises
    ------
    InputError
        For other shapes and values.

    Examples
    --------
    >>> found = targets([[0, None], [1, 2.5]], 2, None, None, ())
    >>> found.kind, found.task_names, found.y.tolist()
    ('regression', ('task0', 'task1'), [[0.0, nan], [1.0, 2.5]])
    >>> found = targets([2, 0, -1], 3, "multiclass", ["topic"], ["a", "b", "c"])
    >>> found.y.tolist(), found.class_names
    ([[2], [0], [-1]], ('a', 'b', 'c'))
    """
    if y is None:
        return Targets(np.full((rows, 1), np.nan, TARGET_TYPES["binary"][0]), "binary", (UNLABELLED,))
    values = _numbers(y)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) != rows or not values.shape[1]:
        raise InputError("y", f"shape {values.shape}", f"({rows},) or ({rows}, K): a row per row of the data")
    names = tuple(task_names or [f"task{column}" for column in range(values.shape[1])])
    if len(names) != values.shape[1]:
        raise InputError("task_names", f"{len(names)} names", f"{values.shape[1]}, one per column of y")
    if task == "multiclass":
        return _classes(values, names, class_names)
    kind: Target = task or ("binary" if bool(np.isin(values[~np.isnan(values)], (0, 1)).all()) else "regression")
    expected = "0, 1 or NaN" if kind == "binary" else "finite numbers or NaN"
    wrong = ~(np.isnan(values) | ((values == 0) | (values == 1) if kind == "binary" else np.isfinite(values)))
    _refuse(values, wrong, expected)
    return Targets(values.astype(TARGET_TYPES[kind][0]), kind, names)


def _numbers(y: Any) -> NDArray[np.float64]:
    """Return the values as float64, with NaN for None."""
    array = to_host(y, "y")
    if array.dtype.kind == "c":
        raise InputError("y", "complex numbers", "numbers")
    try:
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError("y", str(error), "numbers; NaN or None where missing") from error


def _classes(values: NDArray[np.float64], names: tuple[str, ...], class_names: Sequence[str]) -> Targets:
    if len(names) != 1:
        raise InputError("y", f"{len(names)} columns of classes", "one")
    codes = np.where(np.isnan(values), -1, values)
    count = len(class_names) or int(codes.max(initial=0)) + 1
    _refuse(values, (codes < -1) | (codes >= count) | (codes != np.round(codes)), f"a class 0 to {count - 1}, or -1")
    known = tuple(map(str, class_names or range(count)))
    if count < 2:
        raise InputError("y", "only one class", "at least 2")
    return Targets(codes.astype(np.int32), "multiclass", names, known)


def _refuse(values: NDArray[np.float64], wrong: NDArray[np.bool_], expected: str) -> None:
    if wrong.any():
        row, column = (int(at) for at in np.argwhere(wrong)[0])
        raise InputError(f"y[{row}, {column}]", f"{values[row, column]:g}", expected)
