"""Labels in a file of molecules that is predicted: they give metrics, and never refuse a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gcnbatch.data.importers.cells import MISSING, parse_number
from gcnbatch.data.importers.number_format import NumberFormat
from gcnbatch.data.importers.quantities import read_quantity
from gcnbatch.data.importers.units import factor
from gcnbatch.data.molecule_graphs import missing_targets
from gcnbatch.data.schema import Header
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.table import Block
from gcnbatch.text import listed, quoted


def labels_of(header: Header, task: str) -> tuple[str, ...]:
    """Return the labels of a task in the order of their numbers."""
    return header.class_names or header.label_names.get(task, ("0", "1"))


class UnknownLabels(NamedTuple):
    """Texts that are no labels of the model: their number, and row (from 0), task and text of the first."""

    number: int
    row: int
    task: str
    text: str

    def after(self, other: UnknownLabels | None, rows: int) -> UnknownLabels:
        """Return those of both, where `other` is of earlier rows and `rows` come before these."""
        if other is not None:
            return other._replace(number=other.number + self.number)
        return self._replace(row=self.row + rows)


@dataclass(frozen=True)
class LabelColumns:
    """Columns of labels in a table.

    Parameters
    ----------
    header : Header
        Of the model.
    names : dict of str
        Columns by number of the task.
    table, written : TableFormat, NumberFormat
        How the numbers are written.
    notes : tuple of str
        Columns whose names are those of tasks in another case.
    """

    header: Header
    names: dict[int, str]
    table: TableFormat = field(default_factory=TableFormat)
    written: NumberFormat = field(default_factory=NumberFormat)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], header: Header) -> LabelColumns | None:
        """Return the columns that are named like tasks, where there is no such name also in another case; or None."""
        columns, taken, unclear = dict[int, str](), list[str](), list[str]()
        for task, name in enumerate(header.task_names):
            alike = [other for other in names if other.casefold() == name.casefold()]
            if name in names:
                columns[task] = name
            elif len(alike) == 1 and alike[0] not in header.task_names:
                columns[task] = alike[0]
                taken.append(f"{quoted(alike[0])} for {quoted(name)}")
            elif alike:
                unclear.append(f"{' and '.join(map(quoted, alike))} for {quoted(name)}")
        notes = [f"labels of tasks from columns in another case: {listed(taken)}"] if taken else []
        notes += [f"no labels from columns in another case: {listed(unclear)}"] if unclear else []
        return cls(header, columns, notes=tuple(notes)) if columns or notes else None

    def with_format(self, path: Path, table: TableFormat, sample: Mapping[str, Sequence[str]]) -> LabelColumns:
        """Return the columns of a table of this format, of which `sample` has the first values of every column.

        Raises
        ------
        InputError
            When the sample can be read with either decimal sign.
        """
        texts = ((self.header.task_names[task], sample[name]) for task, name in self.names.items())
        return replace(self, table=table, written=NumberFormat.of(path, texts, table.decimal))

    def read(self, rows: Block) -> tuple[NDArray[Any], UnknownLabels | None]:
        """Return the targets (R, K), and texts that are no labels of the model: their targets are missing."""
        y, strange = missing_targets(self.header, len(rows)), list[tuple[int, int, str]]()
        for task, column in self.names.items():
            name, known, cells = self.header.task_names[task], dict[str, float | None](), rows[column]
            for row, text in enumerate(self.written.plain(name, self.table.without_missing(cells))):
                if text not in known:
                    known[text] = self._value(name, text)
                if (value := known[text]) is None:
                    strange.append((row, task, cells[row]))
                elif not math.isnan(value):
                    y[row, task] = value
        if not strange:
            return y, None
        row, task, text = min(strange)
        return y, UnknownLabels(len(strange), row, self.header.task_names[task], text)

    def _value(self, task: str, text: str) -> float | None:
        """Return the number that stands for a text, as training stored it: NaN for a missing value, None for others."""
        names = () if self.header.target == "regression" else labels_of(self.header, task)
        if text.lower() in (lower := [name.lower() for name in names]):
            return lower.index(text.lower())
        if self.header.target == "regression":
            return self._measured(task, text)
        try:
            value = parse_number(text)
        except ValueError:
            return None
        if math.isnan(value):
            return value
        if names:  # numbers that were labels: 1.0 for 1
            return lower.index(f"{value:g}") if f"{value:g}" in lower else None
        return value

    def _measured(self, task: str, text: str) -> float | None:
        """Return a number in the unit of the model's targets; one without a unit has that unit."""
        if text.lower() in MISSING:
            return math.nan
        if (found := read_quantity(text)) is None:
            return None
        unit = self.header.units.get(task, "")
        times = factor(found.unit or unit, unit)
        return None if times is None else float(Fraction(repr(found.value)) * times)
