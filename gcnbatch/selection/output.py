"""The table of a selection: .csv, .parquet, or CSV on standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from gcnbatch import fileio, outputs, tables
from gcnbatch.data.tables.binary import parquet_names
from gcnbatch.errors import InputError
from gcnbatch.fileio import Output, StrPath
from gcnbatch.outputs import STDOUT, Kind

FIRST = "rank"  # column


def check(out: StrPath, reads: Iterable[StrPath]) -> Output | None:
    """Return the file that a selection may write, None for standard output.

    Raises
    ------
    InputError
        As `gcnbatch.outputs.check`.
    """
    return None if os.fspath(out) == STDOUT else outputs.check(out, SELECTION, reads)


def write(out: Output | None, columns: tables.Columns, spreadsheet: bool = False) -> None:
    """Write the table; see `gcnbatch.text.csv_cell` for `spreadsheet`.

    Raises
    ------
    InputError
        When standard output is closed.
    MachineError
        When the disk is full, or pyarrow is missing.
    """
    if out is None:
        if sys.stdout is None:
            raise InputError(f"output {STDOUT}", "standard output is closed", "an open one", "Give -o FILE.")
        _write_csv(sys.stdout, columns, spreadsheet, sys.stdout.isatty())
        return
    with fileio.atomic_path(out) as temporary:
        if out.path.suffix.lower() == tables.PARQUET:
            with tables.open_parquet(temporary, out.path) as rows:
                rows.append(columns)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                _write_csv(stream, columns, spreadsheet, False)


def _write_csv(stream: IO[str], columns: tables.Columns, spreadsheet: bool, shown: bool) -> None:
    tables.CsvRows(stream).write(tables.csv_text(columns, spreadsheet, shown))


def _is_one(path: Path) -> bool:
    if path.suffix.lower() == tables.PARQUET:
        return next(iter(parquet_names(path)), "") == FIRST
    return outputs.begins_with(rf"{FIRST},".encode())(path)


SELECTION = Kind("a selection", _is_one, (".csv", tables.PARQUET))
