"""Excel and Parquet tables as rows of text.

Their libraries are not for hostile files: they work in other processes with limits. A small file can also stand for
many cells, which `check_cells` refuses.
"""

from __future__ import annotations

import csv
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gcnbatch import confined
from gcnbatch.data import guard
from gcnbatch.data.tables.files import FREE_BYTES, MAX_RATIO
from gcnbatch.data.tables.table import Block, Column, Fields, Table, checked_names
from gcnbatch.errors import InputError, MachineError
from gcnbatch.machine import blame
from gcnbatch.text import QUOTED, counted, printable, quoted
from gcnbatch.workers.pool import WorkerDied, Workers

_FREE_CELLS = 1 << 22
_EXCEL_SECONDS, _EXCEL_BYTES = 60, 1 << 31
_BATCH_ROWS = 4096
_LARGEST = 10**18  # whole numbers have at most 18 digits
_AS_CSV = "If it is right, save it as CSV."


def check_cells(path: Path, rows: int, columns: int) -> None:
    """Refuse a table with far more cells than its file has bytes.

    Raises
    ------
    InputError
        For more than MAX_RATIO cells per byte; a few millions are always allowed.
    """
    size = path.stat().st_size
    if rows * columns > max(_FREE_CELLS, MAX_RATIO * size):
        got = f"{counted(rows, 'row')} of {counted(columns, 'column')} in {size:,} bytes"
        raise InputError(str(path), got, f"at most {MAX_RATIO} cells per byte", _AS_CSV)


def read_excel(path: Path) -> Table:
    """Read the first sheet of a workbook that has a row."""
    calamine = _library("python_calamine", "python-calamine")
    with suppress(zipfile.BadZipFile, OSError, NotImplementedError), zipfile.ZipFile(path) as archive:
        if sum(part.file_size for part in archive.infolist()) > max(FREE_BYTES, MAX_RATIO * path.stat().st_size):
            got = f"decompresses to more than {MAX_RATIO} times its size"
            raise InputError(str(path), got, "an Excel file", _AS_CSV)

    def answer() -> bytes:
        try:
            book = calamine.CalamineWorkbook.from_path(str(path))
            found = ((name, _sheet_rows(path, book.get_sheet_by_name(name))) for name in book.sheet_names)
            name, records = next((sheet for sheet in found if sheet[1]), ("", []))
        except (calamine.CalamineError, IndexError, ValueError) as error:
            got = f"not readable as a workbook ({printable(str(error), QUOTED)})"
            return pickle.dumps((InputError(str(path), got, "an Excel file"), [], "", []))
        except InputError as error:
            return pickle.dumps((error, [], "", []))
        return pickle.dumps((None, book.sheet_names, name, records), pickle.HIGHEST_PROTOCOL)

    try:
        message = confined.call(answer, "calamine", _EXCEL_SECONDS, _EXCEL_BYTES, _EXCEL_BYTES)
    except confined.Failed as error:
        raise InputError(str(path), str(error), "an Excel file", _AS_CSV) from error
    refusal, sheets, name, records = pickle.loads(message)
    if refusal is not None:
        raise refusal
    if not records:
        raise InputError(str(path), f"no row in any of {counted(len(sheets), 'sheet')}", "a table with a header line")
    fields = Fields(path, records[0])
    which = "" if name == sheets[0] else " that has rows"
    notes = [f"read sheet {quoted(name)}, the first of {len(sheets)}{which}"] if len(sheets) > 1 else []
    block = Block.of(0, fields.names, fields.tidy(records[1:], 0))
    return Table(path, fields.names, [block], [*notes, *fields.notes])


def _sheet_rows(path: Path, sheet: Any) -> list[list[str]]:
    """Return the rows of a sheet that are not blank."""
    check_cells(path, sheet.height, sheet.width)
    return [_cell_texts(row) for row in sheet.to_python() if any(cell != "" for cell in row)]


@contextmanager
def open_parquet(path: Path, advance: Callable[[int], object]) -> Iterator[Table]:
    """Open a Parquet file, which a worker process reads batch by batch.

    Raises
    ------
    InputError
        For a damaged file, and one with far more cells than bytes.
    MachineError
        When pyarrow is not installed.
    """
    _library("pyarrow.parquet", "pyarrow")
    size = path.stat().st_size
    with Workers(1, _prepare, quiet=True) as workers:
        rows, given = _answer(path, workers.submit(_open_parquet, str(path)))
        check_cells(path, rows, len(given))
        names = checked_names(path, given)

        def blocks() -> Iterator[Block]:
            before = 0
            while batch := _answer(path, workers.submit(_next_columns)):
                yield Block(before, dict(zip(names, batch, strict=True)))
                done = before + len(batch[0])
                advance(size * done // rows - size * before // rows)
                before = done

        yield Table(path, names, blocks())


def parquet_names(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a Parquet file.

    Raises
    ------
    InputError
    MachineError
        As `open_parquet`.
    """
    with open_parquet(path, lambda _: None) as table:
        return table.names


def _answer(path: Path, under_way: Future[Any]) -> Any:
    """Return what the worker process answers."""
    try:
        return under_way.result()
    except WorkerDied as error:
        got = "crashes pyarrow, or takes too much time or memory"
        raise InputError(str(path), got, "a Parquet file", _AS_CSV) from error
    except (ValueError, OSError, ArithmeticError, LookupError, NotImplementedError, MemoryError, TypeError) as error:
        if not isinstance(error, MemoryError):  # the worker's limit, which the file exceeds
            blame(error)
        reason = printable(str(error) or "too large", QUOTED)
        raise InputError(str(path), f"not readable ({reason})", "a Parquet file") from error


_opened: list[Iterator[Any]] = []  # the batches of the file that a worker process has open


def _prepare() -> None:
    """Prepare a worker process."""
    arrow = _library("pyarrow", "pyarrow")
    arrow.set_io_thread_count(1)  # a thread reserves 128 MiB
    arrow.set_cpu_count(1)
    arrow.array([0])  # the allocator reserves a gigabyte at its first use
    _library("pyarrow.parquet", "pyarrow")
    guard.limit_worker()


def _open_parquet(path: str) -> tuple[int, list[str]]:
    """Open a file in a worker process; return the number of its rows and the names of its columns."""
    file = _library("pyarrow.parquet", "pyarrow").ParquetFile(path)
    _opened.append(guard.timed(file.iter_batches(_BATCH_ROWS, use_threads=False), guard.SECONDS))
    return file.metadata.num_rows, list(file.schema_arrow.names)


def _next_columns() -> list[Column]:
    """Return the columns of the next rows in a worker process; none at the end."""
    for batch in _opened[-1]:
        if batch.num_rows and batch.num_columns:
            return [_column(column) for column in batch.columns]
    return []


def _column(column: Any) -> Column:
    if column.null_count == 0 and _library("pyarrow.types", "pyarrow").is_integer(column.type):
        numbers = column.to_numpy(zero_copy_only=False)
        if numbers.min() >= 0 and numbers.max() < _LARGEST:
            return numbers.astype(np.int64)
    return _cell_texts(column.to_pylist())


def _library(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(package, "not installed", hint="Install it: pip install 'gcnbatch[tables]'") from error


def _cell_texts(cells: Iterable[Any]) -> list[str]:
    """Return cells as texts, which have the limit of a field of text tables.

    Raises
    ------
    ValueError
        For a longer one.
    """
    texts = list(map(as_text, cells))
    if max(map(len, texts), default=0) > csv.field_size_limit():
        raise ValueError(f"a field of more than {csv.field_size_limit():,} characters")
    return texts


def as_text(cell: Any) -> str:
    """Return a cell as text: whole numbers without a decimal point, missing ones blank."""
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
