"""The model of a table: names, and rows in blocks of columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.errors import InputError
from gcnbatch.text import counted, quoted

MAX_COLUMNS = 1 << 16
WHOLE = "(?:0|[1-9][0-9]{0,17}+)"  # a whole number without sign or leading zeros
_WHOLE_LINES = re.compile(rf"(?:{WHOLE}\n)*+")

Column = list[str] | NDArray[np.int64]  # texts as they are, or numbers where all are plain whole numbers


def whole_numbers(texts: list[str]) -> NDArray[np.int64] | None:
    """Return the numbers if all texts are whole numbers without sign or leading zeros, of at most 18 digits."""
    joined = "\n".join(texts) + "\n"
    if joined.count("\n") != len(texts) or not _WHOLE_LINES.fullmatch(joined):
        return None
    return np.fromstring(joined, dtype=np.int64, sep=" ")  # a blank stands for any white space


def with_numbers(ids: Sequence[str], before: int) -> list[str]:
    """Return ids as they are; a blank one is the number of its row, after `before` others."""
    return [text if text.strip() else str(row) for row, text in enumerate(ids, before + 1)]


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table, after `before` others."""

    before: int
    columns: dict[str, Column]

    @classmethod
    def of(cls, before: int, names: Sequence[str], records: Sequence[Sequence[str]]) -> Block:
        """Return rows that are given one by one."""
        columns = map(list, zip(*records, strict=True)) if records else ([] for _ in names)
        return cls(before, dict(zip(names, columns, strict=True)))

    def texts(self, name: str) -> list[str]:
        """Return a column as the unchanged texts."""
        column = self.columns[name]
        return column if isinstance(column, list) else list(map(str, column.tolist()))

    def __getitem__(self, name: str) -> list[str]:
        """Return a column as texts without surrounding blanks."""
        return list(map(str.strip, self.texts(name)))

    def column(self, name: str) -> Column:
        """Return a column as numbers, or as texts without surrounding blanks."""
        return self[name] if isinstance(self.columns[name], list) else self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class Table:
    """An open table, whose rows can be read once. They are numbered from 1, without the header line and empty lines.

    Attributes
    ----------
    path : Path
    names : tuple of str
        The columns.
    notes : list of str
        What was detected or left out, for the user; complete when the rows have been read.
    """

    def __init__(
        self, path: Path, names: Sequence[str], blocks: Iterable[Block] = (), notes: Iterable[str] = ()
    ) -> None:
        self.path, self.names, self.notes = path, tuple(names), list(notes)
        self._blocks = blocks

    def blocks(self) -> Iterator[Block]:
        """Yield the rows, block by block."""
        yield from self._blocks

    def chunks(self, size: int, names: Sequence[str], skip: int = 0) -> Iterator[Block]:
        """Yield the rows after the first `skip` as the unchanged texts of some columns, in blocks of `size` rows."""
        columns: dict[str, list[str]] = {name: [] for name in names}
        before = skip
        for block in self.blocks():
            if block.before + len(block) <= skip:
                continue
            first = max(skip - block.before, 0)
            columns = {name: texts + block.texts(name)[first:] for name, texts in columns.items()}
            count = len(next(iter(columns.values())))
            whole = count - count % size
            for start in range(0, whole, size):
                yield Block(before + start, {name: texts[start : start + size] for name, texts in columns.items()})
            columns = {name: texts[whole:] for name, texts in columns.items()}
            before += whole
        if any(columns.values()):
            yield Block(before, dict(columns))

    def columns(self) -> dict[str, list[str]]:
        """Return all rows as the unchanged texts of each column."""
        columns: dict[str, list[str]] = {name: [] for name in self.names}
        for block in self.blocks():
            for name in self.names:
                columns[name] += block.texts(name)
        return columns


class Fields:
    """The columns of a table. Those without a name must be blank; they are left out, as are blank surplus fields.

    Attributes
    ----------
    names : tuple of str
    notes : tuple of str
        What is left out, for the user.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path, self._width = path, len(names)
        self._kept = [place for place, name in enumerate(names) if name.strip()]
        self.names = checked_names(path, [names[place] for place in self._kept])
        unnamed = len(names) - len(self._kept)
        what = f"{unnamed:,} blank column{'s' if unnamed > 1 else ''} without a name left out"
        self.notes = (what,) if unnamed else ()

    def tidy(self, records: list[list[str]], before: int) -> list[list[str]]:
        """Return the named fields of consecutive records, after `before` others.

        Raises
        ------
        InputError
            For a record with fewer fields, or with a value in a column without a name.
        """
        if len(self._kept) == self._width and not set(map(len, records)) - {self._width}:
            return records
        unnamed = sorted(set(range(self._width)).difference(self._kept))
        for row, record in enumerate(records, before + 1):
            place = f"{self._path}, row {row}"
            if len(record) < self._width or any(map(str.strip, record[self._width :])):
                hint = "Delete the lines above the header line, if there are any." if self._width == 1 else ""
                raise InputError(place, counted(len(record), "field"), f"{self._width}, as in the header line", hint)
            if wrong := [column for column in unnamed if record[column].strip()]:
                got = f"column {wrong[0] + 1} has no name, but the value {quoted(record[wrong[0]])}"
                hint = "Delete lines above the header line, or name the column."
                raise InputError(place, got, "a name in the header line", hint)
        return [[record[place] for place in self._kept] for record in records]


def checked_names(path: Path, names: Sequence[str]) -> tuple[str, ...]:
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
            raise InputError(str(path), f"column {position + 1} has no name", "a name for each column")
        if len(name) > csv.field_size_limit():
            got = f"the name of column {position + 1} has {len(name):,} characters"
            raise InputError(str(path), got, f"at most {csv.field_size_limit():,}")
        if name in known:
            raise InputError(str(path), f"two columns are named {quoted(name)}", "different names")
        known.add(name)
    return stripped
