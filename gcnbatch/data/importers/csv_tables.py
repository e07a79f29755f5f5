"""CSV tables (RFC 4180, optionally gzipped), with one clear error for each fault."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.names import WHOLE
from gcnbatch.errors import InputError

ROW_INDEX = "(row index)"  # a first column without a name, as pandas writes it
BLOCK_FIELDS = 1 << 17  # fields per block of a table
RECORDS = 500  # records converted to columns at a time: more lists at once trigger Python's garbage collector
BLOCK_CHARS = 1 << 20  # characters per block of a table of plain whole numbers
FLOAT32_MAX = float(np.finfo(np.float32).max)
MISSING = frozenset({"", "nan", "na", "n/a", "#n/a", "<na>", "null", "-"})  # in any case


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text file, gzipped or not.

    Raises
    ------
    InputError
        For a missing or damaged file and another encoding; also while the caller reads inside the block.
    """
    if not path.is_file():
        raise InputError(str(path), "is a folder" if path.is_dir() else "no such file", "a readable file")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield cast(TextIO, stream)
    except UnicodeDecodeError as error:
        raise InputError(
            str(path), f"byte 0x{error.object[error.start]:02x} is not UTF-8", "UTF-8 text", "Save the file as UTF-8."
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(str(path), f"damaged gzip file ({error})", hint="Copy the file again.") from error
    except PermissionError as error:
        raise InputError(str(path), "not readable", hint="Change its permissions.") from error


@dataclass(frozen=True)
class CsvBlock:
    """Consecutive rows of a table, after `before` others, as the unchanged texts of each column."""

    before: int
    columns: dict[str, list[str]]

    def __getitem__(self, name: str) -> list[str]:
        """Return a column without surrounding blanks."""
        return list(map(str.strip, self.columns[name]))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class CsvTable:
    """An open CSV file: its column names and, once, its rows, one by one or in blocks.

    Row numbers in messages count records from 1, without the header and empty lines.

    Attributes
    ----------
    path : Path
    names : tuple of str
    """

    def __init__(self, path: Path, stream: TextIO, advance: Callable[[int], object], delimiter: str = ",") -> None:
        self.path, self._stream, self._advance = path, stream, advance
        self._reader, self._lines = csv.reader(stream, strict=True, delimiter=delimiter), 0
        self._rows = self._bytes = 0
        self.names: tuple[str, ...] = ()

    def read_names(self, index: bool = False) -> None:
        """Read the header line; with `index`, a first column without a name is called ROW_INDEX."""
        self.names = tuple(name.strip() for name in next(self._reader, []))
        if not self.names:
            raise InputError(str(self.path), "empty file", "a CSV table with a header line")
        if index and len(self.names) > 1 and not self.names[0]:
            self.names = (ROW_INDEX, *self.names[1:])
        for position, name in enumerate(self.names):
            if not name:
                raise InputError(str(self.path), f"column {position + 1} has no name", "a name in the first line")
            if name in self.names[:position]:
                raise InputError(str(self.path), f"two columns are named '{name}'", "different names")

    @property
    def line(self) -> int:
        """Number of lines read."""
        return self._lines + self._reader.line_num

    @property
    def rows(self) -> Iterator[list[str]]:
        """Every record as a list of ``len(names)`` unchanged texts."""
        for record in self._reader:
            if record:
                self._check([record])
                self._rows += 1
                yield record

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield the rows in blocks of about BLOCK_FIELDS fields."""
        rows = max(1, BLOCK_FIELDS // len(self.names))
        while True:
            before, columns = self._rows, [list[str]() for _ in self.names]
            while len(columns[0]) < rows and (taken := list(islice(self._reader, min(rows, RECORDS)))):
                records = list(filter(None, taken))
                self._check(records)
                for column, texts in zip(columns, zip(*records, strict=True), strict=False):
                    column.extend(texts)
                self._rows += len(records)
            self._report()
            if not columns[0]:
                return
            yield CsvBlock(before, dict(zip(self.names, columns, strict=True)))

    def number_blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield ``(rows before, numbers (n, columns))`` up to the first row with anything but plain whole numbers.

        Plain whole numbers are those of `whole_numbers`. `rows` and `blocks` yield the remaining rows.
        """
        line = rf"{WHOLE}(?:,{WHOLE}){{{len(self.names) - 1}}}\n"
        plain = re.compile(f"(?:{line})*+")
        while text := self._stream.read(BLOCK_CHARS) + self._stream.readline():
            unix = text.replace("\r\n", "\n")
            unix += "" if unix.endswith("\n") else "\n"
            if not plain.fullmatch(unix):
                self._lines += self._reader.line_num
                self._reader = csv.reader(chain(io.StringIO(text, newline=""), self._stream), strict=True)
                return
            numbers = np.fromstring(unix.replace("\n", ","), np.int64, sep=",").reshape(-1, len(self.names))
            yield self._rows, numbers
            self._rows += len(numbers)
            self._lines += len(numbers)
            self._report()

    def _check(self, records: list[list[str]]) -> None:
        width = len(self.names)
        if set(map(len, records)) - {width}:
            at = next(at for at, record in enumerate(records) if len(record) != width)
            place = f"{self.path}, row {self._rows + at + 1}"
            raise InputError(place, f"{len(records[at])} fields", f"{width}, as in the header line")

    def _report(self) -> None:
        """Call `advance` with the number of bytes read since the last call."""
        binary = self._stream.buffer
        packed: Any = getattr(binary, "fileobj", binary)  # below gzip
        done = packed.tell()
        self._advance(done - self._bytes)
        self._bytes = done


@contextmanager
def open_table(
    path: Path, advance: Callable[[int], object] = lambda _: None, delimiter: str = ",", index: bool = False
) -> Iterator[CsvTable]:
    """Open a CSV file with a header line; rows are read on demand.

    `advance` is called with the number of bytes read, block by block. With `index`, the first column may lack a name.

    Raises
    ------
    InputError
        For an empty file, a column without a name, a repeated name, a row of another length, bad quoting.
    """
    with open_text(path) as stream:
        table = CsvTable(path, stream, advance, delimiter)
        try:
            table.read_names(index)
            yield table
        except csv.Error as error:
            raise InputError(f"{path}, line {table.line}", str(error), "CSV with RFC 4180 quoting") from error


def split_names(option: str) -> list[str]:
    """Split a comma-separated list of column names; a name with a comma is in double quotes."""
    fields = next(csv.reader([option], skipinitialspace=True), []) if option else []
    return [field.strip() for field in fields if field.strip()]


def parse_number(text: str) -> float:
    """Return a finite number, or NaN for a missing one (see MISSING).

    Raises
    ------
    ValueError
        For any other text, infinities included.
    """
    if text.lower() in MISSING:
        return float("nan")
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(text)
    return value


def numbers(path: Path, name: str, column: Sequence[str], before: int = 0) -> NDArray[np.float64]:
    """Return a column as float64 with NaN where missing; an error names the row of a text that is not a number.

    `before` is the number of rows of the table before the column's first row.
    """
    with suppress(ValueError):
        values = np.fromiter(map(float, column), np.float64, len(column))
        if np.isfinite(values).all() and "_" not in "".join(column):
            return values
    known: dict[str, float] = {}
    for row, text in enumerate(column):
        if text not in known:
            try:
                known[text] = parse_number(text)
            except ValueError:
                place = f"{path}, row {before + row + 1}, column '{name}'"
                raise InputError(place, repr(text), "a finite number, or blank where missing") from None
    return np.array([known[text] for text in column], dtype=np.float64)


def finite_numbers(path: Path, name: str, column: Sequence[str], before: int) -> NDArray[np.float64]:
    """Return a column of finite 32-bit numbers, none missing; see `numbers`."""
    values = numbers(path, name, column, before)
    wrong = np.flatnonzero(~(np.abs(values) <= FLOAT32_MAX))
    if len(wrong):
        row = int(wrong[0])
        place = f"{path}, row {before + row + 1}, column '{name}'"
        raise InputError(place, repr(column[row]), "a 32-bit floating-point number")
    return values


def sorted_labels(labels: set[str]) -> list[str]:
    """Sort texts by value if all are numbers, else as texts."""
    try:
        return sorted(labels, key=lambda text: (float(text), text))
    except ValueError:
        return sorted(labels)
