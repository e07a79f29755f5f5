"""CSV tables (RFC 4180, optionally gzipped), with one clear error for each fault."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers import text_files
from gcnbatch.data.importers.names import WHOLE
from gcnbatch.data.importers.text_files import TextLines, open_text
from gcnbatch.errors import InputError
from gcnbatch.text import counted, quoted

ROW_INDEX = "(row index)"  # a first column without a name, as pandas writes it
BLOCK_FIELDS = 1 << 17  # fields per block of a table
RECORDS = 500  # records converted to columns at a time: more lists at once trigger Python's garbage collector
MOST_CHARS = 1 << 24  # characters per block, if its fields are long
MAX_COLUMNS = 1 << 16
FLOAT32_MAX = float(np.finfo(np.float32).max)
MISSING = frozenset({"", "nan", "na", "n/a", "#n/a", "<na>", "null", "-"})  # in any case


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

    def __init__(self, lines: TextLines, advance: Callable[[int], object], delimiter: str = ",") -> None:
        self.path, self._text, self._advance = lines.path, lines, advance
        self._rows = self._bytes = self._done = self._lines = 0
        self._taken: list[list[str]] = []  # records of a block; it grows while the reader runs
        self._blocks = chain.from_iterable(self._bounded())
        self._reader = csv.reader(self._blocks, strict=True, delimiter=delimiter)
        self.names: tuple[str, ...] = ()

    def _bounded(self) -> Iterator[io.StringIO]:
        """Yield the text in blocks of lines; refuse a record that does not end."""
        done, begun = -1, 0
        for lines in self._text.blocks():
            self._check(list(filter(None, self._taken)))  # 500 records could be far too wide
            if done != self._done + len(self._taken):
                done, begun = self._done + len(self._taken), self._text.chars
            if self._text.chars - begun > text_files.MAX_ROW:
                raise self._text.too_long("row", self._rows + len(list(filter(None, self._taken))) + 1)
            yield lines

    def read_names(self, index: bool = False) -> None:
        """Read the header line; with `index`, a first column without a name is called ROW_INDEX."""
        names = next(self._reader, [])
        if not names:
            raise InputError(str(self.path), "empty file", "a CSV table with a header line")
        if index and len(names) > 1 and not names[0].strip():
            names[0] = ROW_INDEX
        self.names = checked_names(self.path, names)

    @property
    def line(self) -> int:
        """Number of lines read."""
        return self._lines + self._reader.line_num

    @property
    def rows(self) -> Iterator[list[str]]:
        """Every record as a list of ``len(names)`` unchanged texts."""
        width = len(self.names)
        for record in self._reader:
            self._done += 1
            if record:
                if len(record) != width:
                    self._check([record])
                self._rows += 1
                yield record

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield the rows in blocks of about BLOCK_FIELDS fields."""
        rows = max(1, BLOCK_FIELDS // len(self.names))
        while True:
            before, begun, columns = self._rows, self._text.chars, [list[str]() for _ in self.names]
            while len(columns[0]) < rows and self._text.chars - begun < MOST_CHARS and (records := self._take(rows)):
                for column, texts in zip(columns, zip(*records, strict=True), strict=False):
                    column.extend(texts)
            self._report()
            if not columns[0]:
                return
            yield CsvBlock(before, dict(zip(self.names, columns, strict=True)))

    def _take(self, most: int) -> list[list[str]]:
        """Return the next records that are not blank; none at the end."""
        records: list[list[str]] = []
        while not records:
            self._taken.extend(islice(self._reader, min(most, RECORDS)))
            if not self._taken:
                break
            records = list(filter(None, self._taken))
            self._check(records)
            self._rows += len(records)
            self._done += len(self._taken)
            self._taken.clear()
        return records

    def number_blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield ``(rows before, numbers (n, columns))`` up to the first row with anything but plain whole numbers.

        Plain whole numbers are those of `whole_numbers`. `rows` and `blocks` yield the remaining rows.
        """
        line = rf"{WHOLE}(?:,{WHOLE}){{{len(self.names) - 1}}}\n"
        plain = re.compile(f"(?:{line})*+")
        while text := self._text.block():
            unix = text.replace("\r\n", "\n")
            unix += "" if unix.endswith("\n") else "\n"
            if not plain.fullmatch(unix):
                self._lines += self._reader.line_num
                self._reader = csv.reader(chain(io.StringIO(text, newline=""), self._blocks), strict=True)
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
            raise InputError(place, counted(len(records[at]), "field"), f"{width}, as in the header line")

    def _report(self) -> None:
        """Call `advance` with the number of bytes read since the last call."""
        done = self._text.position()
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
    with open_text(path) as lines:
        table = CsvTable(lines, advance, delimiter)
        try:
            table.read_names(index)
            yield table
        except csv.Error as error:
            got = str(error)
            if "field limit" in got:
                got = f"a field of more than {csv.field_size_limit():,} characters"
            raise InputError(f"{path}, line {table.line}", got, "CSV with RFC 4180 quoting") from error


def checked_names(path: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of columns without surrounding blanks; each must have one of its own.

    Raises
    ------
    InputError
        For more than MAX_COLUMNS columns, a column without a name, a repeated name, a name longer than a field may be.
    """
    stripped = tuple(map(str.strip, names))
    if len(stripped) > MAX_COLUMNS:
        raise InputError(str(path), f"{len(stripped):,} columns", f"at most {MAX_COLUMNS:,}")
    known: set[str] = set()
    for position, name in enumerate(stripped):
        if not name:
            hint = "Delete lines above the header line, or name the column."
            raise InputError(str(path), f"column {position + 1} has no name", "a name in the first line", hint)
        if len(name) > csv.field_size_limit():
            got = f"the name of column {position + 1} has {len(name):,} characters"
            raise InputError(str(path), got, f"at most {csv.field_size_limit():,}")
        if name in known:
            raise InputError(str(path), f"two columns are named {quoted(name)}", "different names")
        known.add(name)
    return stripped


def check_stored_names(path: Path, names: Iterable[str]) -> None:
    """Refuse columns whose names a data set cannot have: they hold control characters, marks of direction or the like.

    Raises
    ------
    InputError
        Names the first such column.
    """
    for name in names:
        _check_printable(path, name, name, "its name", "Rename the column.")


def check_stored_labels(path: Path, column: str, labels: Iterable[str]) -> None:
    """Refuse names of classes that a data set cannot have, as `check_stored_names` does names of columns.

    Raises
    ------
    InputError
        Names the first such label.
    """
    for label in labels:
        _check_printable(path, column, label, f"label {quoted(label)}", "Write the label without.")


def _check_printable(path: Path, column: str, text: str, what: str, hint: str) -> None:
    if not text.isprintable():
        raise InputError(f"{path}, column {quoted(column)}", f"invisible characters in {what}", "printable ones", hint)


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
                place = f"{path}, row {before + row + 1}, column {quoted(name)}"
                raise InputError(place, quoted(text), "a finite number, or blank where missing") from None
    return np.array([known[text] for text in column], dtype=np.float64)


def finite_numbers(path: Path, name: str, column: Sequence[str], before: int) -> NDArray[np.float64]:
    """Return a column of finite 32-bit numbers, none missing; see `numbers`."""
    values = numbers(path, name, column, before)
    wrong = np.flatnonzero(~(np.abs(values) <= FLOAT32_MAX))
    if len(wrong):
        row = int(wrong[0])
        place = f"{path}, row {before + row + 1}, column {quoted(name)}"
        raise InputError(place, quoted(column[row]), "a 32-bit floating-point number")
    return values


def sorted_labels(labels: set[str]) -> list[str]:
    """Sort texts by value if all are numbers, else as texts."""
    try:
        return sorted(labels, key=lambda text: (float(text), text))
    except ValueError:
        return sorted(labels)
