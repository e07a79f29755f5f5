"""Labels in a file of molecules that is predicted: they give metrics, and never refuse a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.csv_tables import MISSING, parse_number
from gcnbatch.data.importers.dialect import NumberFormat, TableFormat
from gcnbatch.data.importers.quantities import read_quantity
from gcnbatch.data.importers.units import factor
from gcnbatch.data.molecule_graphs import missing_targets
from gcnbatch.data.schema import Header


@dataclass(frozen=True)
class LabelColumns:
    """Columns with the names of the model's tasks.

    Parameters
    ----------
    header : Header
        Of the model.
    places : dict of int
        Positions in a record by number of the task.
    table, written : TableFormat, NumberFormat
        How the numbers are written.
    """

    header: Header
    places: dict[int, int]
    table: TableFormat = field(default_factory=TableFormat)
    written: NumberFormat = field(default_factory=NumberFormat)

    @classmethod
    def of(cls, names: Sequence[str], header: Header) -> LabelColumns | None:
        """Return the columns that are named like tasks; None if there is none."""
        places = {task: names.index(name) for task, name in enumerate(header.task_names) if name in names}
        return cls(header, places) if places else None

    def with_format(self, path: Path, table: TableFormat, sample: Sequence[Sequence[str]]) -> LabelColumns:
        """Return the columns of a table of this format, of which `sample` are records.

        Raises
        ------
        InputError
            When the sample can be read with either decimal sign.
        """
        names = self.header.task_names
        texts = {names[task]: [record[place].strip() for record in sample] for task, place in self.places.items()}
        return replace(self, table=table, written=NumberFormat.of(path, texts.items(), table.decimal))

    def read(self, records: Sequence[Sequence[str]]) -> NDArray[Any]:
        """Return the targets (R, K); a text that is no label of the model is missing."""
        y = missing_targets(self.header, len(records))
        for task, place in self.places.items():
            name, known = self.header.task_names[task], dict[str, float]()
            texts = self.table.without_missing([record[place].strip() for record in records])
            for row, text in enumerate(self.written.plain(name, texts)):
                if text not in known:
                    known[text] = self._value(name, text)
                y[row, task] = known[text]
        return y

    def _value(self, task: str, text: str) -> float:
        """Return the number that stands for a text, as training stored it."""
        names = self.header.class_names or self.header.label_names.get(task, ())
        if text.lower() in (lower := [name.lower() for name in names]):
            return lower.index(text.lower())
        if self.header.target == "multiclass":
            return -1
        if self.header.target == "regression":
            return self._measured(task, text)
        try:
            value = parse_number(text)
        except ValueError:
            return np.nan
        if names:  # numbers that were labels: 1.0 for 1
            return lower.index(f"{value:g}") if f"{value:g}" in lower else np.nan
        return value if value in (0.0, 1.0) else np.nan

    def _measured(self, task: str, text: str) -> float:
        """Return a number in the unit of the model's targets; one without a unit has that unit."""
        found = None if text.lower() in MISSING else read_quantity(text)
        if found is None:
            return np.nan
        unit = self.header.units.get(task, "")
        times = factor(found.unit or unit, unit)
        return np.nan if times is None else float(Fraction(repr(found.value)) * times)
