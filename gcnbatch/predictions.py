"""Tables of predictions with ids: training writes one for its test rows, `infer` for any data.

The first column is ``id``; columns that were kept from the input follow. Binary and regression sets have one column per
task: the probability, or the value in the target's unit. Multiclass sets have the predicted class under the task's
name, then a ``p(<class>)`` column per class. An ensemble or a mixture adds ``<name>_std`` after each number.
`gcnbatch.inference.trust` appends columns. Predictions from a file of molecules end with ``error``: the reason
why a row could not be read or its outputs are not finite, else blank. Such a row keeps its place, with blank numbers. A
name that is already taken gets ``_`` appended: that of a task called ``id``, or of a kept column that is called like a
task.

- ``.csv`` (and ``-``, standard output) and ``.parquet``: see `gcnbatch.tables`.
- ``.jsonl``: one JSON object per row with the columns as keys; null stands for a missing value.
- ``.h5``: ``id (R,)``, ``kept/<column> (R,)``, ``names (K,)`` and ``error (R,)`` as UTF-8 text; ``outputs (R, K)`` and,
  for an ensemble, ``std (R, K)`` with NaN where missing; ``more/<column> (R,)`` as numbers or text; ``target`` (its
  kind) as an attribute.

Values of regression are float64, probabilities and further columns of numbers float32. In text, numbers are written in
the shortest form that reads back as the same number. A task that no model has learned is blank.
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, hdf5, outputs, shown, tables
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.fileio import Output, StrPath
from gcnbatch.outputs import STDOUT, Kind
from gcnbatch.text import counted, csv_cell, json_line, listed, printable

ENDINGS = (".csv", ".jsonl", ".h5", tables.PARQUET)
TEXT_ENDINGS = (".csv", ".jsonl")
_LINE_BYTES = 1 << 22  # of a table of ours: names of 1 MiB, or an id and 4,096 numbers
OF_MODEL = "predictions of these outputs"
_HEADER_BYTES = 4 << 20  # of a first line: 4,096 names and more
_BEGINNINGS = {".csv": "id", ".jsonl": '{"id"'}
_OF_DOMAIN = ("nearest_similarity", "embedding_distance")


@dataclass(frozen=True)
class Predictions:
    """A table of R rows with K numbers each.

    Parameters
    ----------
    header : Header
        Header of the data set; it names the outputs.
    ids : (R,) str
    outputs : (R, K)
        float32 probabilities, or float64 values in the targets' unit; NaN in a row that could not be read.
    std : (R, K) or None
        Standard deviation over the members of an ensemble; of a mixture, that of a member drawn by its weight.
    errors : (R,) str or None
        Reason why a row could not be read, "" for the others.
    kept : dict of (R,) str
        Columns of the input, as they were.
    more : dict of (R,) float or str
        Further columns: calibrated probabilities, intervals, sets; NaN or "" where missing.
    smiles : sequence of R str, or None
        The molecules, which a notebook shows.
    """

    header: Header
    ids: NDArray[np.str_]
    outputs: NDArray[np.floating]
    std: NDArray[np.floating] | None = None
    errors: NDArray[np.str_] | None = None
    kept: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    smiles: Sequence[str] | None = None

    def __repr__(self) -> str:
        return f"<Predictions: {counted(len(self.ids), 'row')} of {listed(self.names)}>"

    def _repr_html_(self) -> str:
        """Return the first rows as a table with drawn molecules, for a notebook."""
        errors = [""] * len(self.ids) if self.errors is None else self.errors.tolist()
        return shown.table(self.header, self.ids.tolist(), self.smiles, self.by_output(), self.beside, errors)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs (K)."""
        return output_names(self.header)

    def take(self, rows: NDArray[np.int64]) -> Predictions:
        """Return the table of these rows, in this order."""
        return Predictions(
            self.header,
            self.ids[rows],
            self.outputs[rows],
            None if self.std is None else self.std[rows],
            None if self.errors is None else self.errors[rows],
            {name: texts[rows] for name, texts in self.kept.items()},
            {name: values[rows] for name, values in self.more.items()},
            None if self.smiles is None else [self.smiles[row] for row in rows.tolist()],
        )

    def join(self, *others: Predictions) -> Predictions:
        """Return the rows of all tables, which have the same columns."""
        every = (self, *others)

        def joined(name: str) -> NDArray[Any] | None:
            arrays = [getattr(table, name) for table in every]
            return None if any(array is None for array in arrays) else np.concatenate(arrays)

        return Predictions(
            self.header,
            np.concatenate([table.ids for table in every]),
            np.concatenate([table.outputs for table in every]),
            joined("std"),
            joined("errors"),
            {name: np.concatenate([table.kept[name] for table in every]) for name in self.kept},
            {name: np.concatenate([table.more[name] for table in every]) for name in self.more},
        )

    def by_output(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the columns (R,) of each output: ``value``, and where there are some, further kinds.

        These are ``deviation``, ``low``, ``high``, ``calibrated`` and ``set``. A multiclass task comes first, with
        ``class`` and ``set``.
        """
        found: dict[str, dict[str, NDArray[Any]]] = {}
        if self.header.target == "multiclass":
            found[self.header.task_names[0]] = {"class": self._classes()}
        for k, name in enumerate(self.names):
            own = {"value": self.outputs[:, k]} | ({} if self.std is None else {"deviation": self.std[:, k]})
            found.setdefault(name, {}).update(own)
        for name, columns in found.items():
            kinds = ("low", "high", "calibrated", "set")
            columns |= {kind: self.more[f"{name}_{kind}"] for kind in kinds if f"{name}_{kind}" in self.more}
        return found

    @property
    def beside(self) -> dict[str, NDArray[np.floating]]:
        """Columns (R,) of the applicability domain by name."""
        return {name: self.more[name] for name in _OF_DOMAIN if name in self.more}

    def _classes(self) -> NDArray[np.str_]:
        """Return the predicted class (R,) of a multiclass task, "" where it is not known."""
        known = np.isfinite(self.outputs).all(axis=1)
        best = np.where(known, np.nan_to_num(self.outputs).argmax(axis=1), 0)
        return np.where(known, np.array(self.header.class_names)[best], "")

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name: text, or numbers; "" and NaN are missing."""
        columns: dict[str, NDArray[Any]] = {"id": self.ids}

        def add(name: str, values: NDArray[Any]) -> None:
            while name in columns:
                name += "_"
            columns[name] = values

        if self.header.target == "multiclass":
            add(self.header.task_names[0], self._classes())
        for k, name in enumerate(self.names):
            add(name, self.outputs[:, k])
            if self.std is not None:
                add(f"{name}_std", self.std[:, k])
        for name, values in self.more.items():
            add(name, values)
        if self.errors is not None:
            add("error", self.errors)
        kept = {"id": columns.pop("id")}
        for name, texts in self.kept.items():
            free = name
            while free in columns or free in kept:
                free += "_"
            kept[free] = texts
        return kept | columns


def output_names(header: Header) -> tuple[str, ...]:
    """Names of the outputs (K) of models of this header."""
    if header.target == "multiclass":
        return tuple(f"p({name})" for name in header.class_names)
    return header.task_names


class Sink(ABC):
    """Destination of predictions, written part by part.

    Attributes
    ----------
    encode : callable
        Returns the rows of a table as `write` takes them. It can be pickled, so that other processes call it.
    """

    encode: Callable[[Predictions], Any]

    @abstractmethod
    def write(self, made: Sequence[Any]) -> None:
        """Append what `encode` returned for some tables; all have the same columns."""

    def append(self, table: Predictions) -> None:
        """Append these rows."""
        self.write([self.encode(table)])


def as_it_is(table: Predictions) -> Predictions:
    """Return the table: `encode` of a sink that takes tables."""
    return table


def check_ending(out: str) -> None:
    """Refuse a name whose ending is not that of a known format.

    Raises
    ------
    InputError
    """
    if out != STDOUT and Path(out).suffix.lower() not in ENDINGS:
        raise InputError(
            f"output {out}", "unknown ending", f"{', '.join(ENDINGS)}, or {STDOUT} for CSV on standard output"
        )


def check_target(out: str, header: Header, reads: Iterable[StrPath]) -> Output | None:
    """Return the file for predictions of models of this header, None for standard output; see `outputs.check`.

    Raises
    ------
    InputError
        For an unknown ending, and a file that must not be overwritten: one of `reads`, or one that is there and holds
        something else than predictions of these outputs.
    """
    check_ending(out)
    return None if out == STDOUT else outputs.check(out, Kind(OF_MODEL, partial(_is_of, header)), reads)


def check_rows(path: Path, header: Header) -> None:
    """Refuse a file in the place of rows that a killed process may have left, ``OUT.partial``.

    Their first line may be cut.

    Raises
    ------
    InputError
        When it holds something else than predictions of these outputs.
    """
    ending = path.with_suffix("").suffix.lower()

    def is_one(path: Path) -> bool:
        text = _start(path)
        return _holds(_names(text, ending), header) if "\n" in text else text.startswith(_BEGINNINGS[ending])

    outputs.check_beside(path, Kind(OF_MODEL, is_one))


def _is_of(header: Header, path: Path) -> bool:
    """Whether a file holds predictions of models of this header."""
    ending = path.suffix.lower()
    if ending == ".h5":
        from gcnbatch.data import audit  # late: it imports h5py, which reports do not need

        root = audit.root_of(path)
        return not root.format and {"id", "names", "outputs"} <= set(root.names)
    if ending == tables.PARQUET:
        from gcnbatch.data.tables.binary import parquet_names

        return _holds(list(parquet_names(path)), header)
    return _holds(_names(_start(path), ending), header)


def _start(path: Path) -> str:
    """Return the start of a text, which has the names of its columns."""
    with fileio.open_regular(path) as stream:
        return stream.read(_HEADER_BYTES).decode("utf-8", "replace")


def _names(text: str, ending: str) -> list[str]:
    """Return the names of the columns from the start of a text."""
    try:
        if ending == ".csv":
            return next(csv.reader(io.StringIO(text, newline="")), [])
        found = json.loads(text.partition("\n")[0])
    except (ValueError, csv.Error, RecursionError):
        return []
    return list(found) if isinstance(found, dict) else []


def _holds(columns: list[str], header: Header) -> bool:
    """Whether these are columns of predictions: ids, all outputs, and columns of molecules only with their errors."""
    names = (*output_names(header), *header.task_names)
    spelled = {name: (name, csv_cell(name), csv_cell(name, spreadsheet=True)) for name in names}
    if columns[:1] != ["id"] or any(not set(spelled[name]) & set(columns) for name in output_names(header)):
        return False
    ours = (*chain.from_iterable(spelled.values()), *_OF_DOMAIN)
    return columns[-1].rstrip("_") == "error" or all(name.startswith(ours) for name in columns[1:])


@contextmanager
def open_sink(out: Output | Path | None, spreadsheet: bool = False) -> Iterator[Sink]:
    """Open a file, or standard output, for writing; the file appears when the block ends without an error.

    A path is one in a folder of ours; `check_target` makes a user's path an `Output`.

    With `spreadsheet`, texts of a CSV that a spreadsheet would run as formulas begin with an apostrophe. A symbolic
    link stays, and its target is written.

    Raises
    ------
    InputError
        When standard output is closed.
    MachineError
        When the folder cannot be written or the disk is full.
    """
    if out is None:
        stream = outputs.standard_output()
        yield _Csv(tables.CsvRows(stream), spreadsheet, stream.isatty())
        return
    ending = Path(out).suffix.lower()
    with fileio.atomic_path(out) as temporary:
        if ending == ".h5":
            with hdf5.open_output(temporary, out) as (file, _):
                yield _Hdf5(file)
        elif ending == tables.PARQUET:
            with tables.open_parquet(temporary, Path(out)) as rows:
                yield _Parquet(rows)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as text:
                yield text_sink(ending, text, spreadsheet)


def text_sink(ending: str, stream: IO[str], spreadsheet: bool = False, begun: bool = False) -> Sink:
    """Return the sink of a text format; `begun`: the stream has rows already."""
    return _Csv(tables.CsvRows(stream, begun), spreadsheet) if ending == ".csv" else _JsonLines(stream)


def write_table(path: Path, table: Predictions, parquet: bool = False) -> None:
    """Write the table as CSV into a folder of ours, and with `parquet` beside it; see `tables.write`."""
    tables.write(path, table.columns(), parquet)


def read_outputs(path: StrPath, header: Header, rows: int) -> NDArray[np.floating]:
    """Return the outputs (R, K) of a CSV that `write_table` wrote without standard deviations, bit for bit.

    Raises
    ------
    InputError
        As `read_numbers`.
    """
    return read_numbers(path, header, rows, 2 if header.target == "multiclass" else 1, header.n_outputs)


def read_numbers(path: StrPath, header: Header, rows: int, first: int, count: int) -> NDArray[np.floating]:
    """Return `count` columns of outputs (R, count) of a CSV of ours, from column `first` on, bit for bit.

    The file may be a stranger's: no more is read than so many rows, each of bounded length.

    Raises
    ------
    InputError
        When it is not a table of `rows` rows of such numbers.
    """
    expected, hint = f"predictions of {counted(rows, 'row')}", "Train the fold again."
    kind = np.float64 if header.target == "regression" else np.float32
    found = 0
    try:
        with (
            io.BufferedReader(fileio.open_regular(path, expected, follow=False)) as stream,
            np.errstate(over="ignore"),  # a diverged model has outputs that are not finite
        ):
            if rows * count > (size := stream.seek(0, io.SEEK_END)):  # each number has a comma before it
                raise InputError(str(path), f"{size:,} bytes", f"{expected} with {count:,} numbers each", hint)
            stream.seek(0)
            outputs = np.empty((rows, count), dtype=kind)
            records = _records(stream)
            next(records, None)  # the header line
            for found in range(1, rows + 1):
                if (cells := next(records, None)) is None:
                    raise InputError(str(path), counted(found - 1, "row"), expected, hint)
                outputs[found - 1] = _numbers(cells[first : first + count], count)
            if next(records, None) is not None:
                raise InputError(str(path), f"more than {rows:,} rows", expected, hint)
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}, row {found}", printable(str(error), 80), expected, hint) from error
    return outputs


def _records(stream: IO[bytes]) -> Iterator[list[str]]:
    """Yield the rows of a CSV of ours; an id may have line breaks."""
    size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        while line := stream.readline(_LINE_BYTES + 1):
            size += len(line)
            if size > _LINE_BYTES:
                raise ValueError(f"a line of more than {_LINE_BYTES:,} bytes")
            yield line.decode("utf-8")

    for cells in csv.reader(lines()):
        yield cells
        size = 0


def _numbers(cells: Sequence[str], count: int) -> list[float]:
    """Return the numbers of a row; NaN where one is missing."""
    numbers = [float(cell) if cell else np.nan for cell in cells]
    if len(numbers) < count:
        raise ValueError(f"{counted(len(numbers), 'number')} in place of {count}")
    return numbers


class _Csv(Sink):
    def __init__(self, rows: tables.CsvRows, spreadsheet: bool, shown: bool = False) -> None:
        self.encode = partial(_csv_text, spreadsheet=spreadsheet, shown=shown)
        self._rows = rows

    def write(self, made: Sequence[tables.CsvText]) -> None:
        for text in made:
            self._rows.write(text)


def _csv_text(table: Predictions, spreadsheet: bool, shown: bool) -> tables.CsvText:
    return tables.csv_text(table.columns(), spreadsheet, shown)


class _Parquet(Sink):
    def __init__(self, rows: tables.Rows) -> None:
        self.encode = Predictions.columns
        self._rows = rows

    def write(self, made: Sequence[dict[str, NDArray[Any]]]) -> None:
        self._rows.append({name: np.concatenate([columns[name] for columns in made]) for name in made[0]})


class _JsonLines(Sink):
    def __init__(self, stream: IO[str]) -> None:
        self.encode = _json_text
        self._stream = stream

    def write(self, made: Sequence[str]) -> None:
        self._stream.writelines(made)


def _json_text(table: Predictions) -> str:
    columns = table.columns()
    rows = zip(*(json_values(values) for values in columns.values()), strict=True)
    return "".join(json_line(dict(zip(columns, cells, strict=True))) + "\n" for cells in rows)


class _Hdf5(Sink):
    def __init__(self, file: Any) -> None:
        self.encode = as_it_is
        self._file = file

    def write(self, made: Sequence[Predictions]) -> None:
        with hdf5.late_signals():
            for table in made:
                self._append(table)

    def _append(self, table: Predictions) -> None:
        if "names" not in self._file:
            self._file.attrs["target"] = table.header.target
            self._extend("names", table.names)
        self._extend("id", table.ids.tolist())
        for name, texts in table.kept.items():
            self._extend(f"kept/{name.replace('/', '_')}", texts.tolist())
        self._extend("outputs", table.outputs)
        if table.std is not None:
            self._extend("std", table.std)
        for name, values in table.more.items():
            self._extend(f"more/{name.replace('/', '_')}", values if values.dtype.kind == "f" else values.tolist())
        if table.errors is not None:
            self._extend("error", table.errors.tolist())

    def _extend(self, name: str, rows: Sequence[str] | NDArray[np.floating]) -> None:
        import h5py

        if not isinstance(rows, np.ndarray):
            _refuse_nul(name, rows)
        if name not in self._file:
            width = rows.shape[1:] if isinstance(rows, np.ndarray) else ()
            kind = rows.dtype if isinstance(rows, np.ndarray) else h5py.string_dtype()
            self._file.create_dataset(name, (0, *width), kind, maxshape=(None, *width), chunks=True)
        dataset = self._file[name]
        before = len(dataset)
        dataset.resize(before + len(rows), axis=0)
        dataset[before:] = rows


def _refuse_nul(name: str, texts: Sequence[str]) -> None:
    """Refuse NUL characters, at which HDF5 would end a text."""
    for text in texts:
        if "\0" in text:
            raise InputError(
                f"{name} {text!r}", "a NUL character, which HDF5 cannot hold", hint="Write .csv or .jsonl."
            )


def json_values(values: NDArray[Any]) -> list[str | float | None]:
    """Return a column as values of JSON, None for those that are missing or not finite."""
    if values.dtype.kind != "f":
        return [text or None for text in values.tolist()]
    if values.dtype == np.float64:
        return [value if math.isfinite(value) else None for value in values.tolist()]
    # Convert through text: the shortest number that reads back as a float32, not all digits of its float64.
    finite = np.isfinite(values).tolist()
    return [float(text) if known else None for text, known in zip(tables.number_texts(values), finite, strict=True)]
