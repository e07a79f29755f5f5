"""The table of a selection: .csv, .parquet, or CSV on standard output."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gcnbatch import outputs, tables
from gcnbatch.data.tables.binary import parquet_names
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
    if out is not None:
        tables.write(out, columns, spreadsheet=spreadsheet)
        return
    stream = outputs.standard_output()
    tables.write_csv(stream, columns, spreadsheet, stream.isatty())


def _is_one(path: Path) -> bool:
    if path.suffix.lower() == tables.PARQUET:
        return next(iter(parquet_names(path)), "") == FIRST
    return outputs.begins_with(rf"{FIRST},".encode())(path)


SELECTION = Kind("a selection", _is_one, (".csv", tables.PARQUET))
