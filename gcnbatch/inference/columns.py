"""Columns of a file of molecules that is predicted: labels and features of whole graphs.

Labels give metrics, and never refuse a row.

Graph features are computed from SMILES as for the training set, or read from columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit
from gcnbatch.data.featurizer_options import AS_WRITTEN
from gcnbatch.data.importers.cells import FLOAT32_MAX, MISSING, parse_number
from gcnbatch.data.importers.number_format import NumberFormat
from gcnbatch.data.importers.quantities import factor, read_quantity, unit_of_name
from gcnbatch.data.molecule_features import graph_feature_names, rdkit_version
from gcnbatch.data.molecule_graphs import missing_targets
from gcnbatch.data.schema import Header
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.table import Block
from gcnbatch.errors import InputError, nearest
from gcnbatch.text import QUOTED, counted, listed, printable, quoted


def labels_of(header: Header, task: str) -> tuple[str, ...]:
    """Return the labels of a task in the order of their numbers."""
    return header.class_names or header.label_names.get(task, ("0", "1"))


# What there is to say of a label. Metrics leave out those that the model does not know, and bounds. One without a unit
# counts in that of the model.
UNKNOWN, BOUND, BARE = "unknown", "bound", "bare"


class Cells(NamedTuple):
    """Cells of labels: their number, and row (from 0), task and text of the first."""

    number: int
    row: int
    task: str
    text: str

    def beside(self, other: Cells | None) -> Cells:
        """Return those of both."""
        if other is None:
            return self
        return min(other, self, key=lambda cells: cells.row)._replace(number=self.number + other.number)

    def __str__(self) -> str:
        return f"row {self.row + 1:,}: {quoted(self.text)}"

    @property
    def more(self) -> str:
        """How many they are, if there are several."""
        return f" ({self.number:,} such cells)" if self.number > 1 else ""


Remarks = Mapping[str, Cells]  # by what there is to say


def joined_remarks(parts: Iterable[tuple[int, Remarks]]) -> dict[str, Cells]:
    """Return the remarks on all parts, each given with the number of rows before it."""
    found: dict[str, Cells] = {}
    for before, remarks in parts:
        for kind, cells in remarks.items():
            found[kind] = cells._replace(row=cells.row + before).beside(found.get(kind))
    return found


def lines(remarks: Remarks, header: Header, labelled: int, rows: int) -> list[str]:
    """Return lines on the labels of so many rows, of which `labelled` give metrics of a model of this header."""
    several = len(header.task_names) > 1
    of = {kind: f" of {quoted(cells.task)}" if several else "" for kind, cells in remarks.items()}
    said = []
    if (bare := remarks.get(BARE)) is not None:
        unit = header.units[bare.task]
        said.append(f"{bare}{of[BARE]} has no unit and counts in {unit}, as the targets of the model do{bare.more}")
    left_out = []
    if (unknown := remarks.get(UNKNOWN)) is not None:
        left_out.append(f"{unknown} {_why_unknown(unknown, header)}{of[UNKNOWN]}{unknown.more}")
    if (bound := remarks.get(BOUND)) is not None:
        left_out.append(f"{bound}{of[BOUND]} is a bound, not a measured value{bound.more}")
    if left_out or 0 < labelled < rows:
        what = f"metrics from {labelled:,} of {counted(rows, 'row')}" if labelled else "no metrics"
        said.append("; ".join([what, *left_out]))
    return said


def _why_unknown(cells: Cells, header: Header) -> str:
    if header.target != "regression":
        return f"is none of the model's labels {listed(labels_of(header, cells.task))}"
    found, unit = read_quantity(cells.text), header.units.get(cells.task, "")
    if found is None or not found.unit:
        return "is no number"
    return f"is no number in {unit}, the unit of the model" if unit else "has a unit, which the model does not know"


def stored_labels(
    header: Header, trained: Header, y: NDArray[Any], censored: NDArray[np.int8] | None
) -> tuple[NDArray[Any], Remarks]:
    """Return stored targets `y (R, K)` in the units of a model, NaN for bounds; see `LabelColumns.read`.

    `header` is that of the set, whose tasks are those of the `trained` model.
    """
    if header.target != "regression" or (header.units == trained.units and censored is None):
        return y, {}
    y, signs = y.copy(), np.zeros(y.shape, np.int8) if censored is None else censored
    remarks: dict[str, Cells] = {}

    def remark(kind: str, task: int, rows: NDArray[np.bool_]) -> None:
        if rows.any():
            row, name = int(rows.argmax()), header.task_names[task]
            sign = ("", ">", "<")[signs[row, task]]  # -1: the last one
            text = f"{sign}{y[row, task]:g} {header.units.get(name, '')}"
            cells = Cells(int(np.count_nonzero(rows)), row, name, text.strip())
            remarks[kind] = cells.beside(remarks.get(kind))

    for task, name in enumerate(header.task_names):
        unit, other = (one.units.get(name, "") for one in (header, trained))
        known, bounds = ~np.isnan(y[:, task]), signs[:, task] != 0
        times = factor(unit or other, other)
        if times is None:
            remark(UNKNOWN, task, known)
            y[:, task] = np.nan
            continue
        remark(BOUND, task, bounds)
        if not unit and other:
            remark(BARE, task, known & ~bounds)
        y[bounds, task] = np.nan
        y[:, task] *= float(times)
    return y, remarks


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

    def read(self, rows: Block) -> tuple[NDArray[Any], Remarks]:
        """Return the targets (R, K), NaN or -1 for bounds and labels that the model does not know, and remarks."""
        y, remarks = missing_targets(self.header, len(rows)), dict[str, Cells]()
        for task, column in self.names.items():
            name, known, cells = self.header.task_names[task], dict[str, tuple[float, str]](), rows[column]
            for row, text in enumerate(self.written.plain(name, self.table.without_missing(cells))):
                if text not in known:
                    known[text] = self._value(name, text)
                value, kind = known[text]
                if kind:
                    remarks[kind] = Cells(1, row, name, cells[row]).beside(remarks.get(kind))
                if not math.isnan(value):
                    y[row, task] = value
        return y, remarks

    def _value(self, task: str, text: str) -> tuple[float, str]:
        """Return the number that stands for a text, as training stored it, or NaN; and what there is to say of it."""
        if self.header.target == "regression":
            return self._measured(task, text)
        names = labels_of(self.header, task)
        if text.lower() in (lower := [name.lower() for name in names]):
            return lower.index(text.lower()), ""
        try:
            value = parse_number(text)
        except ValueError:
            return math.nan, UNKNOWN
        if math.isnan(value):
            return value, ""
        if names:  # numbers that were labels: 1.0 for 1
            return (lower.index(f"{value:g}"), "") if f"{value:g}" in lower else (math.nan, UNKNOWN)
        return value, ""

    def _measured(self, task: str, text: str) -> tuple[float, str]:
        """Return a number in the unit of the model's targets, which is that of a number without a unit."""
        if text.lower() in MISSING:
            return math.nan, ""
        if (found := read_quantity(text)) is None:
            return math.nan, UNKNOWN
        unit = self.header.units.get(task, "")
        if (times := factor(found.unit or unit, unit)) is None:
            return math.nan, UNKNOWN
        if found.direction:
            return math.nan, BOUND
        is_bare = bool(unit) and not found.unit and unit_of_name(task) != unit
        return float(Fraction(repr(found.value)) * times), BARE if is_bare else ""


NOTATION = (
    "the predictions of this model depend on how a SMILES is written (brackets, explicit hydrogens), as those of older "
    "versions do; to end that, import its table again with 'gcnbatch data import smiles' and train on the new file"
)


def featurizer_notes(trained: Header, featurizer: dict[str, Any] | None) -> tuple[str, ...]:
    """Return notes on a model whose graphs depend on notations, and on graph features of another version of RDKit."""
    notes = (NOTATION,) if (trained.featurizer or {}).get("kind") == AS_WRITTEN else ()
    made, now = ((one or {}).get("rdkit") for one in (trained.featurizer, featurizer))
    if not trained.graph_feature_names or made is None or now is None or made == now:
        return notes
    shown = (printable(str(version), QUOTED) for version in (made, now))
    return (
        *notes,
        "descriptors may differ: those of the training set are of RDKit {}, these of RDKit {}".format(*shown),
    )


@dataclass(frozen=True)
class FeatureColumns:
    """Graph features of a file of molecules.

    Parameters
    ----------
    options : FeaturizerOptions
        What is computed from SMILES.
    names : tuple of str
        The user's own columns.
    table, written : TableFormat, NumberFormat
        How the numbers are written.
    notes : tuple of str
    """

    options: FeaturizerOptions
    names: tuple[str, ...]
    table: TableFormat = field(default_factory=TableFormat)
    written: NumberFormat = field(default_factory=NumberFormat)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path | str, names: Sequence[str], header: Header) -> FeatureColumns:
        """Return how the features that `header` names come from a table with these columns.

        Raises
        ------
        InputError
            When a column is missing, or RDKit computes other descriptors than for the training set.
        """
        options = FeaturizerOptions.from_header(header.featurizer)
        if not header.graph_feature_names:
            return cls(replace(options, descriptors="", fingerprints=()), (), notes=featurizer_notes(header, None))
        computed: tuple[str, ...] = ()
        if options.of_molecules:
            load_rdkit()
            computed = graph_feature_names(options)
        own = len(header.graph_feature_names) - len(computed)
        if own < 0 or header.graph_feature_names[own:] != computed:
            raise InputError(
                f"graph features of {path}",
                f"RDKit {rdkit_version()} computes {len(computed)}",
                f"those of the run, of RDKit {printable(str((header.featurizer or {}).get('rdkit')), QUOTED)}",
                "Install that version, or train again.",
            )
        for name in header.graph_feature_names[:own]:
            if name not in names:
                hint = f"{nearest(name, names)} The model reads it."
                raise InputError(str(path), f"no feature column {quoted(name)}", hint=hint)
        now = {"rdkit": rdkit_version()} if computed else None
        return cls(options, header.graph_feature_names[:own], notes=featurizer_notes(header, now))

    def with_format(self, path: Path, table: TableFormat, sample: Mapping[str, Sequence[str]]) -> FeatureColumns:
        """Return the columns of a table of this format, of which `sample` has the first values of each column."""
        written = NumberFormat.of(path, ((name, sample[name]) for name in self.names), table.decimal)
        return replace(self, table=table, written=written)

    def read(self, rows: Block) -> tuple[NDArray[np.float32] | None, dict[int, str]]:
        """Return the user's features (R, D'), None without columns, and why rows have none, by row."""
        if not self.names:
            return None, {}
        values = np.full((len(rows), len(self.names)), np.nan, np.float32)
        wrong: dict[int, str] = {}
        for column, name in enumerate(self.names):
            for row, text in enumerate(self.written.plain(name, self.table.without_missing(rows[name]))):
                try:
                    value = parse_number(text)
                except ValueError:
                    value = np.inf
                if abs(value) > FLOAT32_MAX:
                    wrong.setdefault(row, f"column {quoted(name)}: {quoted(text)} is not a number of 32 bits")
                else:
                    values[row, column] = value
        return values, wrong
