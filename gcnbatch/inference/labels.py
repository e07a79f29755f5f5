"""Labels in a file of molecules that is predicted: they give metrics, and never refuse a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.csv_tables import parse_number
from gcnbatch.data.importers.dialect import has_decimal_commas, with_points
from gcnbatch.data.molecule_graphs import missing_targets
from gcnbatch.data.schema import Header


@dataclass(frozen=True)
class LabelColumns:
    """Columns with the names of the model's tasks: position in a record by number of the task; and the decimal sign."""

    header: Header
    places: dict[int, int]
    decimal: str = "."

    @classmethod
    def of(cls, names: Sequence[str], header: Header) -> LabelColumns | None:
        """Return the columns that are named like tasks; None if there is none."""
        places = {task: names.index(name) for task, name in enumerate(header.task_names) if name in names}
        return cls(header, places) if places else None

    def with_decimal(self, path: Path, decimal: str, sample: Mapping[str, Sequence[str]]) -> LabelColumns:
        """Return the columns with this decimal sign; empty: detected in a sample of each column.

        Raises
        ------
        InputError
            When the sample can be read with either sign.
        """
        if not decimal:
            names = (self.header.task_names[task] for task in self.places)
            decimal = "," if has_decimal_commas(path, ((name, sample[name]) for name in names)) else "."
        return replace(self, decimal=decimal)

    def read(self, records: Sequence[Sequence[str]]) -> NDArray[Any]:
        """Return the targets (R, K); a text that is no label of the model is missing."""
        y = missing_targets(self.header, len(records))
        for task, place in self.places.items():
            known: dict[str, float] = {}
            for row, record in enumerate(records):
                text = record[place].strip()
                if self.decimal == ",":
                    (text,) = with_points([text])
                if text not in known:
                    known[text] = self._value(self.header.task_names[task], text)
                y[row, task] = known[text]
        return y

    def _value(self, task: str, text: str) -> float:
        """Return the number that stands for a text, as training stored it."""
        names = self.header.class_names or self.header.label_names.get(task, ())
        if text.lower() in (lower := [name.lower() for name in names]):
            return lower.index(text.lower())
        if self.header.target == "multiclass":
            return -1
        try:
            value = parse_number(text)
        except ValueError:
            return np.nan
        if names:  # numbers that were labels: 1.0 for 1
            return lower.index(f"{value:g}") if f"{value:g}" in lower else np.nan
        return value if self.header.target == "regression" or value in (0.0, 1.0) else np.nan
