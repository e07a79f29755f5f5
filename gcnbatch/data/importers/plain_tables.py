"""The tables of ``data import csv``: CSV, or Parquet by their ending, in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.data.importers.binary_tables import ParquetColumns, open_parquet
from gcnbatch.data.importers.csv_tables import CsvBlock, open_table
from gcnbatch.data.importers.molecule_files import PARQUET_ENDINGS
from gcnbatch.data.importers.names import Column


class PlainTable(Protocol):
    """An open table, whose rows can be read once."""

    path: Path
    names: tuple[str, ...]

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield the rows as texts."""

    def number_blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield ``(rows before, numbers (n, columns))`` up to the first row with anything but plain whole numbers."""


@contextmanager
def open_plain(path: Path, advance: Callable[[int], object] = lambda _: None) -> Iterator[PlainTable]:
    """Open a table by its ending; `advance` is called with the number of bytes read, block by block.

    Raises
    ------
    InputError
        When the file is missing or damaged.
    """
    if _is_parquet(path):
        fileio.open_regular(path).close()
        for columns in open_parquet(path):
            yield _ParquetTable(path, columns, advance)
    else:
        with open_table(path, advance) as table:
            yield table


def check_plain(path: Path) -> None:
    """Refuse a path that cannot be opened; the contents of a Parquet file are not read yet."""
    if _is_parquet(path):
        fileio.open_regular(path).close()
    else:
        with open_table(path):
            pass


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(PARQUET_ENDINGS)


class _ParquetTable:
    """A Parquet file as a `PlainTable`."""

    def __init__(self, path: Path, columns: ParquetColumns, advance: Callable[[int], object]) -> None:
        self.path, self.names = path, columns.names
        self._rows, self._batches, self._advance = columns.rows, columns.batches, advance
        self._bytes, self._done = path.stat().st_size, 0
        self._ahead: list[Column] | None = None  # a batch that `number_blocks` left

    def blocks(self) -> Iterator[CsvBlock]:
        while batch := self._next():
            texts = [column if isinstance(column, list) else list(map(str, column.tolist())) for column in batch]
            yield CsvBlock(self._done, dict(zip(self.names, texts, strict=True)))
            self._count(batch)

    def number_blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        while batch := self._next():
            numbers = [column for column in batch if not isinstance(column, list)]
            if len(numbers) < len(batch):
                self._ahead = batch
                return
            yield self._done, np.stack(numbers, axis=1)
            self._count(batch)

    def _next(self) -> list[Column]:
        ahead, self._ahead = self._ahead, None
        return ahead or next(self._batches, [])

    def _count(self, batch: list[Column]) -> None:
        before, self._done = self._done, self._done + len(batch[0])
        part = [self._bytes * done // max(self._rows, 1) for done in (before, self._done)]
        self._advance(part[1] - part[0])
