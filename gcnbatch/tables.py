"""Tables written by columns, as CSV and as Parquet.

A column is an array, or a list of texts, numbers and None. NaN, None and (in Parquet) blank texts are missing values.

- CSV: RFC 4180, UTF-8, a header line; a missing value is blank. Texts are as `gcnbatch.text.csv_cell` leaves them, with
  line breaks. Numbers have the shortest form that reads back as the same number.
- Parquet: numbers keep their type, missing values are null. A list that mixes texts and numbers becomes texts.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from gcnbatch import fileio, hdf5
from gcnbatch.errors import MachineError
from gcnbatch.machine import cores
from gcnbatch.text import csv_cell
from gcnbatch.workers.pool import WorkerDied, Workers, ahead

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = Mapping[str, "NDArray[Any] | Sequence[Any]"]
PARQUET = ".parquet"
BLOCK_CELLS = 1 << 18  # of a CSV, in memory as text at a time
SHARED_CELLS = 1 << 23  # from so many on, about 10 s of work, worker processes make the text


class Rows(Protocol):
    """Destination of rows; every part has the same columns."""

    def append(self, columns: Columns) -> None:
        """Append these rows."""


@dataclass(frozen=True)
class CsvText:
    """Rows of a CSV, and the header line above them, as text."""

    header: str
    rows: str


def write(path: fileio.StrPath, columns: Columns, parquet: bool = False, spreadsheet: bool = False) -> None:
    """Write a CSV, with `parquet` also the same table as Parquet beside it; a path with its ending is Parquet alone.

    A symbolic link is replaced, but for an `Output`. See `gcnbatch.text.csv_cell` for `spreadsheet`.

    Raises
    ------
    MachineError
        When the folder cannot be written, the disk is full, or pyarrow is not installed.
    """
    if Path(path).suffix.lower() == PARQUET:
        with fileio.atomic_path(path) as temporary, open_parquet(temporary, str(path)) as rows:
            rows.append(columns)
        return
    with fileio.atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        write_csv(stream, columns, spreadsheet)
    if parquet:
        write(Path(path).with_suffix(PARQUET), columns)


def write_csv(stream: IO[str], columns: Columns, spreadsheet: bool = False, shown: bool = False) -> None:
    """Write a table as CSV; see `gcnbatch.text.csv_cell` for `spreadsheet` and `shown`."""
    rows = CsvRows(stream)
    for text in _texts(columns, spreadsheet, shown):
        rows.write(text)


def check_parquet(what: str) -> None:
    """Refuse `what`, a key or an option that asks for Parquet, where it cannot be written.

    Raises
    ------
    MachineError
        When pyarrow is not installed.
    """
    _library("pyarrow.parquet", what)


@contextmanager
def open_parquet(path: Path, name: Path | str) -> Iterator[Rows]:
    """Open an existing empty file for rows in Parquet; messages call it `name`.

    Raises
    ------
    MachineError
        When pyarrow is not installed, or a write fails.
    """
    arrow, parquet = _library("pyarrow", str(name)), _library("pyarrow.parquet", str(name))
    with hdf5.HeldErrors(path, name) as stream, ThreadPoolExecutor(1) as thread:
        rows = _ParquetRows(arrow, parquet, stream, thread)
        yield rows
        rows.close()


class CsvRows:
    """Rows of a CSV.

    Parameters
    ----------
    stream : text stream
    begun : bool
        The stream has rows already.
    """

    def __init__(self, stream: IO[str], begun: bool = False) -> None:
        self._stream, self._begun = stream, begun

    def append(self, columns: Columns) -> None:
        """Append these rows, after a header line where the stream has none yet."""
        self.write(csv_text(columns))

    def write(self, text: CsvText) -> None:
        """Append rows as `append` does."""
        if not self._begun:
            self._stream.write(text.header)
            self._begun = True
        self._stream.write(text.rows)


def _texts(columns: Columns, *how: bool) -> Iterator[CsvText]:
    """Yield a table as CSV, in blocks of rows; `how`: the other arguments of `csv_text`."""
    count = len(next(iter(columns.values())))
    step = max(BLOCK_CELLS // len(columns), 1)
    blocks = (
        {name: values[first : first + step] for name, values in columns.items()}
        for first in range(0, max(count, 1), step)
    )
    workers = cores() if count * len(columns) >= SHARED_CELLS else 1
    if workers == 1:
        yield from (csv_text(block, *how) for block in blocks)
        return
    with Workers(workers, quiet=True) as pool:
        under_way = ((pool.submit(csv_text, block, *how), block) for block in blocks)
        for made, block in ahead(under_way, 2 * workers):
            yield _text(made, block, *how)


def _text(made: Future[CsvText], block: Columns, *how: bool) -> CsvText:
    try:
        return made.result()
    except WorkerDied:
        return csv_text(block, *how)


def csv_text(columns: Columns, spreadsheet: bool = False, shown: bool = False) -> CsvText:
    """Return rows as CSV; see `gcnbatch.text.csv_cell` for `spreadsheet` and `shown`."""

    def safe(texts: Iterable[str]) -> list[str]:
        return [csv_cell(text, spreadsheet, shown) for text in texts]

    cells = [_cells(values, safe) for values in columns.values()]
    return CsvText(_lines([safe(columns)]), _lines(list(zip(*cells, strict=True))))


def _lines(rows: Sequence[Sequence[str]]) -> str:
    """Return lines of CSV; Python's writer puts no quotes around a carriage return."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    if "\r" in text.getvalue():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    return text.getvalue()


def _cells(values: NDArray[Any] | Sequence[Any], safe: Callable[[Iterable[str]], list[str]]) -> list[str]:
    if isinstance(values, Sequence):
        return safe("" if value is None else str(value) for value in values)
    return number_texts(values) if values.dtype.kind == "f" else safe(values.tolist())


def number_texts(values: NDArray[Any]) -> list[str]:
    """Return each float as text, "" for NaN."""
    texts: list[str] = np.where(np.isnan(values), "", values.astype("U")).tolist()
    return texts


class _ParquetRows:
    """Rows that a thread writes: the library works while the caller makes the next ones."""

    def __init__(self, arrow: Any, parquet: Any, stream: hdf5.HeldErrors, thread: ThreadPoolExecutor) -> None:
        self._arrow, self._parquet, self._stream, self._thread = arrow, parquet, stream, thread
        self._writer: Any = None
        self._under_way: Future[None] | None = None

    def append(self, columns: Columns) -> None:
        self._wait()
        self._under_way = self._thread.submit(self._append, columns)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()

    def _append(self, columns: Columns) -> None:
        rows = self._arrow.table({name: self._array(values) for name, values in columns.items()})
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._stream, rows.schema)
        self._writer.write_table(rows)

    def close(self) -> None:
        self._wait()
        if self._writer is not None:
            self._writer.close()

    def _array(self, values: NDArray[Any] | Sequence[Any]) -> Any:
        if not isinstance(values, Sequence) and values.dtype.kind == "f":
            return self._arrow.array(values, from_pandas=True)
        if not isinstance(values, Sequence) and values.dtype.kind == "U":
            return self._arrow.array(values, self._arrow.string(), values == "")
        items = values if isinstance(values, Sequence) else values.tolist()
        kinds = {type(item) for item in items} - {type(None)}
        if kinds and (kinds <= {int, float} or kinds == {bool}):
            return self._arrow.array(items, self._arrow.float64() if float in kinds else None)
        return self._arrow.array([None if item in (None, "") else str(item) for item in items], self._arrow.string())


def _library(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        hint = "Install it: pip install 'gcnbatch[tables]'."
        raise MachineError(what, "pyarrow is not installed", hint=hint) from error
