"""CSV and its relatives: RFC 4180, any delimiter, with one clear error for each fault."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

import numpy as np

from gcnbatch.data.tables import files
from gcnbatch.data.tables.files import TextFile, open_text
from gcnbatch.data.tables.layout import TableFormat, detect_layout
from gcnbatch.data.tables.table import WHOLE, Block, Fields, Table
from gcnbatch.errors import InputError

ROW_INDEX = "(row index)"  # a first column without a name, as pandas writes it
BLOCK_FIELDS = 1 << 17  # fields per block of a table
RECORDS = 300  # converted to columns at a time: 700 objects, a list and its iterator each, trigger garbage collection
MOST_CHARS = 1 << 24  # characters per block, if its fields are long


@contextmanager
def open_delimited(path: Path, asked: TableFormat, advance: Callable[[int], object], index: bool) -> Iterator[Table]:
    """Open a text table; see `gcnbatch.data.tables.formats.open_table`.

    Raises
    ------
    InputError
        For an empty file, a repeated name, a row of another length, bad quoting.
    """
    layout = detect_layout(path, asked)
    with open_text(path, asked.encoding) as file:
        file.skip(layout.skipped)
        table = _Delimited(file, layout.sign, layout.skipped, advance)
        try:
            table.read_names(index, layout.marked)
            table.notes[:0] = layout.notes(asked)
            yield table
        except csv.Error as error:
            got = str(error)
            if "field limit" in got:
                got = f"a field of more than {csv.field_size_limit():,} characters"
            raise InputError(f"{path}, line {table.line}", got, "CSV with RFC 4180 quoting") from error


class _Delimited(Table):
    """An open text table, of which `skipped` lines were left out; `advance` is called with the number of bytes read."""

    def __init__(self, file: TextFile, sign: str, skipped: int, advance: Callable[[int], object]) -> None:
        super().__init__(file.path, ())
        self._file, self._sign, self._lines, self._advance = file, sign, skipped, advance
        self._rows = self._done = self._bytes = 0  # rows, records with blank ones, bytes
        self._taken: list[list[str]] = []  # records of a block; it grows while the reader runs
        self._text = io.StringIO()
        self._texts = self._bounded()
        self._reader = csv.reader(chain.from_iterable(self._texts), strict=True, delimiter=sign)

    def _bounded(self) -> Iterator[io.StringIO]:
        """Yield the text in blocks of lines; refuse a record that does not end."""
        done, begun = -1, 0
        while text := self._file.block():
            self._tidy()  # so many records could be far too wide
            if done != self._done + len(self._taken):
                done, begun = self._done + len(self._taken), self._file.chars
            if self._file.chars - begun > files.MAX_ROW:
                raise self._file.too_long("row", self._rows + len(self._tidy()) + 1)
            self._text = io.StringIO(text, newline="")
            yield self._text

    def read_names(self, index: bool, marked: bool) -> None:
        """Read the header line.

        With `index`, a first column without a name is called ROW_INDEX; with `marked`, the line begins with ``#``.
        """
        names = next((record for record in self._reader if any(map(str.strip, record))), [])
        if not names:
            raise InputError(str(self.path), "empty file", "a CSV table with a header line")
        if marked:
            names[0] = names[0].lstrip("#").strip() or "#"
        if index and len(names) > 1 and not names[0].strip():
            names[0] = ROW_INDEX
        self._fields = Fields(self.path, names)
        self.names = self._fields.names
        self.notes += self._fields.notes

    @property
    def line(self) -> int:
        """Number of lines read."""
        return self._lines + self._reader.line_num

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in blocks of about BLOCK_FIELDS fields; the first ones as numbers, if all are whole."""
        yield from self._number_blocks()
        rows = max(1, BLOCK_FIELDS // len(self.names))
        while True:
            before, begun, columns = self._rows, self._file.chars, [list[str]() for _ in self.names]
            while len(columns[0]) < rows and self._file.chars - begun < MOST_CHARS and (records := self._take(rows)):
                for column, texts in zip(columns, zip(*records, strict=True), strict=True):
                    column.extend(texts)
                del records
            self._report()
            if not columns[0]:
                return
            yield Block(before, dict(zip(self.names, columns, strict=True)))

    def _number_blocks(self) -> Iterator[Block]:
        """Yield the rows up to the first block of text with anything but plain whole numbers."""
        if self._fields.notes:  # a column that must be blank
            return
        line = rf"{WHOLE}(?:{re.escape(self._sign)}{WHOLE}){{{len(self.names) - 1}}}\n"
        plain = re.compile(f"(?:{line})*+")
        while text := self._text.read() or self._file.block():
            unix = text.replace("\r\n", "\n")
            unix += "" if unix.endswith("\n") else "\n"
            if not plain.fullmatch(unix):
                self._lines += self._reader.line_num
                texts = chain([io.StringIO(text, newline="")], self._texts)
                self._reader = csv.reader(chain.from_iterable(texts), strict=True, delimiter=self._sign)
                return
            numbers = np.fromstring(unix.replace("\n", self._sign), np.int64, sep=self._sign)
            columns = map(np.copy, numbers.reshape(-1, len(self.names)).T)  # a view would keep the others
            block = Block(self._rows, dict(zip(self.names, columns, strict=True)))
            yield block
            self._rows += len(block)
            self._done += len(block)
            self._lines += len(block)
            self._report()

    def _take(self, most: int) -> list[list[str]]:
        """Return the next records that are not blank; none at the end."""
        records: list[list[str]] = []
        while not records:
            self._taken.extend(islice(self._reader, min(most, RECORDS)))
            if not self._taken:
                break
            records = self._tidy()
            self._rows += len(records)
            self._done += len(self._taken)
            self._taken.clear()
        return records

    def _tidy(self) -> list[list[str]]:
        records = list(filter(None, self._taken))
        return self._fields.tidy(records, self._rows) if records else []

    def _report(self) -> None:
        """Call `advance` with the number of bytes read since the last call."""
        done = self._file.position()
        self._advance(done - self._bytes)
        self._bytes = done
