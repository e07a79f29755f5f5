"""Files of molecules as rows of text: CSV, .smi, SDF, Excel and Parquet."""

from __future__ import annotations

import gzip
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from gcnbatch.data.importers.csv_tables import open_table, open_text
from gcnbatch.data.importers.dialect import DELIMITERS, TableFormat, detect_delimiter
from gcnbatch.errors import InputError, MachineError

CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
SMI_ENDINGS = (".smi", ".smi.gz", ".smiles", ".smiles.gz")
SDF_ENDINGS = (".sdf", ".sdf.gz", ".sd")
EXCEL_ENDINGS, PARQUET_ENDINGS = (".xlsx", ".xls", ".ods"), (".parquet",)
ENDINGS = (*CSV_ENDINGS, *SMI_ENDINGS, *SDF_ENDINGS, *EXCEL_ENDINGS, *PARQUET_ENDINGS)


@dataclass(frozen=True)
class MoleculeRows:
    """An open file of molecules.

    Parameters
    ----------
    names : tuple of str
        Columns.
    rows : iterator of list of str
        The unchanged texts of each row.
    notes : tuple of str
        What was detected, for the user.
    """

    names: tuple[str, ...]
    rows: Iterator[list[str]]
    notes: tuple[str, ...] = ()


@contextmanager
def open_molecules(path: Path, wished: TableFormat) -> Generator[MoleculeRows]:
    """Open a file by its ending; a file with an unknown ending is read as CSV.

    Raises
    ------
    InputError
        For a missing or damaged file and a table without a header line.
    MachineError
        When the library for the format is not installed.
    """
    wished.check()
    name = path.name.lower()
    if not path.is_file():
        raise InputError(str(path), "is a folder" if path.is_dir() else "no such file", "a readable file")
    if name.endswith(SMI_ENDINGS):
        with open_text(path) as stream:
            yield _smi(stream)
    elif name.endswith(SDF_ENDINGS):
        yield _sdf(path)
    elif name.endswith(EXCEL_ENDINGS):
        yield _excel(path)
    elif name.endswith(PARQUET_ENDINGS):
        yield _parquet(path)
    else:
        sign = wished.sign or detect_delimiter(path)
        notes = () if sign == "," or wished.sign else (f"fields are separated by a {DELIMITERS[sign]}",)
        with open_table(path, delimiter=sign, index=True) as table:
            yield MoleculeRows(table.names, table.rows, notes)


def _smi(stream: Iterable[str]) -> MoleculeRows:
    """Read lines of a SMILES and, after a blank, the name of the molecule; a first line that names them is left out."""
    records = (fields for line in stream if (fields := line.split(maxsplit=1)))
    first = next(records, None)
    if first is None:
        return MoleculeRows(("smiles", "id"), iter(()))
    if first[0].lower() == "smiles":
        first = next(records, [])
    named = len(first) > 1
    rows = (
        [*(field.strip() for field in record), ""][: 1 + named] for record in chain([first] if first else [], records)
    )
    return MoleculeRows(("smiles", "id") if named else ("smiles",), rows)


def _sdf(path: Path) -> MoleculeRows:
    """Read structures as SMILES, titles as ids, and properties as further columns; the whole file is in memory."""
    from gcnbatch.data.featurizer import UNREADABLE, load_rdkit

    chem = load_rdkit()
    found: list[tuple[str, str, dict[str, str]]] = []
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with cast(IO[bytes], opener(path, "rb")) as stream:
            for molecule in chem.ForwardSDMolSupplier(stream):
                if molecule is None:
                    found.append((UNREADABLE, "", {}))
                else:
                    title = molecule.GetProp("_Name") if molecule.HasProp("_Name") else ""
                    values = {key: molecule.GetProp(key) for key in molecule.GetPropNames()}
                    found.append((chem.MolToSmiles(molecule), title, values))
    except (EOFError, gzip.BadGzipFile) as error:
        raise InputError(str(path), f"damaged gzip file ({error})", hint="Copy the file again.") from error
    keys = list(dict.fromkeys(key for _, _, values in found for key in values))
    titled = any(title for _, title, _ in found)
    first = ("smiles", "id") if titled else ("smiles",)
    names = (*first, *(f"{key} (property)" if key.lower() in first else key for key in keys))
    rows = (
        [smiles, *([title] if titled else []), *(values.get(key, "") for key in keys)]
        for smiles, title, values in found
    )
    return MoleculeRows(names, rows)


def _excel(path: Path) -> MoleculeRows:
    """Read the first sheet of a workbook."""
    calamine = _library("python_calamine", "python-calamine")
    try:
        book = calamine.CalamineWorkbook.from_path(str(path))
        sheet = book.sheet_names[0]
        cells = book.get_sheet_by_index(0).to_python()
    except (calamine.CalamineError, IndexError) as error:
        raise InputError(str(path), f"not readable as a workbook ({error})", "an Excel file") from error
    records = [[_text(cell) for cell in row] for row in cells if any(cell != "" for cell in row)]
    if not records:
        raise InputError(f"{path}, sheet '{sheet}'", "empty", "a table with a header line")
    names = _checked_names(path, records[0])
    others = len(book.sheet_names) - 1
    notes = (f"read sheet '{sheet}', the first of {others + 1}",) if others else ()
    return MoleculeRows(names, iter(records[1:]), notes)


def _parquet(path: Path) -> MoleculeRows:
    parquet, arrow = _library("pyarrow.parquet", "pyarrow"), _library("pyarrow", "pyarrow")
    try:
        file = parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(str(path), f"not readable ({error})", "a Parquet file") from error
    names = _checked_names(path, list(file.schema_arrow.names))

    def rows() -> Iterator[list[str]]:
        for batch in file.iter_batches():
            columns = [map(_text, column.to_pylist()) for column in batch.columns]
            yield from map(list, zip(*columns, strict=True))

    return MoleculeRows(names, rows())


def _library(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(package, "not installed", hint="Install it: pip install 'gcnbatch[tables]'") from error


def _checked_names(path: Path, names: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in names]
    for position, name in enumerate(names):
        if not name:
            raise InputError(str(path), f"column {position + 1} has no name", "a name in the first line")
        if name in names[:position]:
            raise InputError(str(path), f"two columns are named '{name}'", "different names")
    return tuple(names)


def _text(cell: Any) -> str:
    """Return a cell as text: whole numbers without a decimal point, missing ones blank."""
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
