"""Converts texts or numbers of a table into targets as the format stores them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.cells import check_stored_labels, check_stored_names
from gcnbatch.data.importers.labels import class_codes, read_classes
from gcnbatch.data.importers.quantities import Quantities, QuantityColumn
from gcnbatch.data.schema import TARGET_TYPES, Target
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.errors import InputError
from gcnbatch.text import counted, listed, quoted


@dataclass(frozen=True)
class Targets:
    """Targets as the format stores them.

    Parameters
    ----------
    y : (R, K)
        See `GraphSet`.
    kind : str
    task_names : tuple of K str
        As in the header line.
    class_names, label_names, units
        As in `Header`.
    censored : int8, (R, K), or None
        As in `GraphSet`.
    notes : tuple of str
        For the user.
    """

    y: NDArray[Any]
    kind: Target
    task_names: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    label_names: dict[str, tuple[str, str]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    censored: NDArray[np.int8] | None = None
    notes: tuple[str, ...] = ()

    def in_header(self) -> dict[str, Any]:
        """Return the fields of a Header that describe these targets."""
        names = {"task_names": self.task_names, "class_names": self.class_names, "label_names": self.label_names}
        return {"target": self.kind, **names, "units": self.units}


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
    table : TableFormat or None
        Further texts of missing values.

    Raises
    ------
    InputError
        For a name that cannot be stored, a column without any value, text that is not a number, a binary value other
        than 0 and 1, classes in more than one column, or classes that nearly all occur once.
    """

    def __init__(self, path: Path, names: Sequence[str], kind: Target | None, table: TableFormat | None = None) -> None:
        if kind == "multiclass" and len(names) != 1:
            got = f"{len(names)} target columns for --task multiclass"
            raise InputError(str(path), got, "one column of classes", "Name it with --target-columns.")
        check_stored_names(path, names)
        self._path, self.names, self._kind, self._table = path, tuple(names), kind, table or TableFormat()
        self._known: dict[str, str] = {}
        self._texts: list[str] = []  # of classes, each different one once in memory
        self._columns = [QuantityColumn(path, name) for name in names]

    def add(self, columns: Sequence[Sequence[str]], before: int = 0) -> None:
        """Add rows, after `before` others, as the texts of each column."""
        columns = [self._table.without_missing(texts) for texts in columns]
        if self._kind == "multiclass":
            self._texts += [self._known.setdefault(text, text) for text in columns[0]]
            return
        for column, texts in zip(self._columns, columns, strict=True):
            column.add(texts, before)

    def finish(self) -> Targets:
        """Return the targets of all rows."""
        if self._kind == "multiclass":
            return self._of_classes()
        return joined_targets(self._path, self.names, [column.finish() for column in self._columns], self._kind)

    def _of_classes(self) -> Targets:
        (name,), reading = self.names, read_classes(self._texts)
        if not reading.classes:
            raise _no_value(self._path, name)
        check_stored_labels(self._path, name, reading.classes)
        check_classes(self._path, name, reading.classes, reading.labelled)
        notes = missing_notes([reading.missing], True)
        return Targets(class_codes(reading, self._texts), "multiclass", self.names, reading.classes, notes=notes)


def check_classes(path: Path, name: str, classes: Sequence[str], labelled: int) -> None:
    """Refuse a single class, and classes of fewer than two rows each on average: nothing can be learned of them.

    Raises
    ------
    InputError
    """
    place = f"{path}, column {quoted(name)}"
    if len(classes) < 2:
        raise InputError(place, f"only class {quoted(classes[0])}", "at least 2 classes")
    if len(classes) > 2 and labelled < 2 * len(classes):
        got = f"{len(classes):,} classes in {labelled:,} rows, such as {quoted(classes[0])}"
        hint = "If they are measured values, write each as a number, alone or with a unit."
        raise InputError(place, got, "classes of several rows each", hint)


def joined_targets(path: Path, names: Sequence[str], columns: Sequence[Quantities], kind: Target | None) -> Targets:
    """Return columns of numbers as targets; None: regression with units or bounds, else as `number_targets`.

    Raises
    ------
    InputError
        For a column without any value, and a binary value other than 0 and 1.
    """
    for name, column in zip(names, columns, strict=True):
        if np.isnan(column.values).all():
            raise _no_value(path, name)
    measured = any(column.unit or column.directions is not None for column in columns)
    y = np.stack([column.values for column in columns], axis=1)
    found = number_targets(path, names, y, kind or ("regression" if measured else None))
    notes = [note for column in columns for note in column.notes]
    notes += missing_notes([column.missing for column in columns])
    if found.kind != "regression" or not measured:
        return replace(found, notes=tuple(notes))
    exact = np.zeros(len(y), np.int8)
    directions = [exact if column.directions is None else column.directions for column in columns]
    censored = np.stack(directions, axis=1)
    units = {name: column.unit for name, column in zip(names, columns, strict=True) if column.unit}
    return replace(found, units=units, censored=censored if censored.any() else None, notes=tuple(notes))


def missing_notes(columns: Sequence[Mapping[str, int]], classes: bool = False) -> tuple[str, ...]:
    """Return a note on texts that count as missing values, with their rows by column."""
    counts = Counter[str]()
    for column in columns:
        counts.update(column)
    if not counts:
        return ()
    shown = listed(f"{quoted(text)} in {counted(count, 'cell')}" for text, count in counts.most_common())
    hint = "; where one is a class, give it another name" if classes else ""
    return (f"counted as missing: {shown}{hint}",)


def _no_value(path: Path, name: str) -> InputError:
    return InputError(f"{path}, column {quoted(name)}", "no value in any row", "a target with values")


def number_targets(path: Path, names: Sequence[str], y: NDArray[np.float64], kind: Target | None) -> Targets:
    """Convert numbers `y (R, K)`, NaN where missing, into binary or regression targets.

    None means binary if every value is 0, 1 or missing, else regression.

    Raises
    ------
    InputError
        Names the row of a value that does not fit.
    """
    other = ~(np.isnan(y) | (y == 0.0) | (y == 1.0))
    wrong = (other if kind == "binary" else np.zeros_like(other)) | np.isinf(y)
    if wrong.any():
        row, task = (int(i) for i in np.argwhere(wrong)[0])
        place = f"{path}, row {row + 1}, column {quoted(names[task])}"
        if np.isinf(y[row, task]):
            raise InputError(place, f"{y[row, task]:g}", "a finite number, or blank where missing")
        raise InputError(place, f"{y[row, task]:g}", "0, 1 or blank", "Use --task regression.")
    found: Target = kind or ("regression" if other.any() else "binary")
    return Targets(y.astype(TARGET_TYPES[found][0]), found, tuple(names))
