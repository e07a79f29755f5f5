"""Converts texts or numbers of a table into targets as the format stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.csv_tables import (
    MISSING,
    check_stored_labels,
    check_stored_names,
    numbers,
    sorted_labels,
)
from gcnbatch.data.schema import TARGET_TYPES, Target
from gcnbatch.errors import InputError
from gcnbatch.text import quoted


@dataclass(frozen=True)
class Targets:
    """Targets as the format stores them: ``y (R, K)`` (see GraphSet), their kind, and names as in the header."""

    y: NDArray[Any]
    kind: Target
    task_names: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    label_names: dict[str, tuple[str, str]] = field(default_factory=dict)


class TargetColumns:
    """Converts text columns into targets, block by block.

    Parameters
    ----------
    path : Path
        The table, for messages.
    names : list of str
        The target columns.
    kind : str
        None means binary if every value is 0, 1 or missing, else regression.

    Raises
    ------
    InputError
        For a name that cannot be stored, a column without any value, text that is not a number, a binary value other
        than 0 and 1, or classes in more than one column.
    """

    def __init__(self, path: Path, names: Sequence[str], kind: Target | None) -> None:
        if kind == "multiclass" and len(names) != 1:
            got = f"{len(names)} target columns for --task multiclass"
            raise InputError(str(path), got, "one column of classes", "Name it with --target-columns.")
        check_stored_names(path, names)
        self._path, self.names, self._kind = path, tuple(names), kind
        self._classes: dict[str, int] = {}  # in the order of their appearance
        self._blocks: list[NDArray[Any]] = []
        self._valued = np.zeros(len(names), dtype=bool)
        self._found: Target = kind or "binary"

    def add(self, columns: Sequence[list[str]], before: int = 0) -> None:
        """Add rows, after `before` others, as the texts of each column."""
        if self._kind == "multiclass":
            known = self._classes
            number = {
                text: -1 if text.lower() in MISSING else known.setdefault(text, len(known)) for text in columns[0]
            }
            codes = np.fromiter(map(number.__getitem__, columns[0]), np.int32, len(columns[0]))[:, None]
            self._valued |= (codes >= 0).any()
            self._blocks.append(codes)
            return
        pairs = zip(self.names, columns, strict=True)
        y = np.stack([numbers(self._path, name, column, before) for name, column in pairs], axis=1)
        targets = number_targets(self._path, self.names, y, self._kind, before)
        self._valued |= ~np.isnan(y).all(axis=0)
        self._blocks.append(targets.y)
        if targets.kind != "binary":
            self._found = targets.kind

    def finish(self) -> Targets:
        """Return the targets of all rows."""
        for name, valued in zip(self.names, self._valued, strict=True):
            if not valued:
                raise InputError(f"{self._path}, column {quoted(name)}", "no value in any row", "a target with values")
        y = np.concatenate(self._blocks)
        if self._kind != "multiclass":
            return Targets(y, self._found, self.names)
        classes = sorted_labels(set(self._classes))
        check_stored_labels(self._path, self.names[0], classes)
        if len(classes) < 2:
            raise InputError(
                f"{self._path}, column {quoted(self.names[0])}",
                f"only class {quoted(classes[0])}",
                "at least 2 classes",
            )
        number = {text: position for position, text in enumerate(classes)}
        final = np.array([*(number[text] for text in self._classes), -1], dtype=np.int32)  # the last one is for -1
        return Targets(final[y], "multiclass", self.names, tuple(classes))


def number_targets(
    path: Path, names: Sequence[str], y: NDArray[np.float64], kind: Target | None, before: int = 0
) -> Targets:
    """Convert numbers `y (R, K)`, NaN where missing, into binary or regression targets, as `TargetColumns` does."""
    other = ~(np.isnan(y) | (y == 0.0) | (y == 1.0))
    if kind == "binary" and other.any():
        row, task = (int(i) for i in np.argwhere(other)[0])
        place = f"{path}, row {before + row + 1}, column {quoted(names[task])}"
        raise InputError(place, f"{y[row, task]:g}", "0, 1 or blank", "Use --task regression.")
    if np.isinf(y).any():
        row, task = (int(i) for i in np.argwhere(np.isinf(y))[0])
        place = f"{path}, row {before + row + 1}, column {quoted(names[task])}"
        raise InputError(place, f"{y[row, task]:g}", "a finite number, or blank where missing")
    found: Target = kind or ("regression" if other.any() else "binary")
    return Targets(y.astype(TARGET_TYPES[found][0]), found, tuple(names))
