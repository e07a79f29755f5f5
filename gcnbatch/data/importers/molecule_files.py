"""Files of molecules as rows of text: CSV, .smi, SDF, Excel and Parquet."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from gcnbatch.data import guard
from gcnbatch.data.featurizer import load_rdkit
from gcnbatch.data.importers import text_files
from gcnbatch.data.importers.binary_tables import MoleculeRows, check_cells, read_excel, read_parquet
from gcnbatch.data.importers.csv_tables import checked_names, open_table
from gcnbatch.data.importers.dialect import DELIMITERS, TableFormat, detect_delimiter
from gcnbatch.data.importers.text_files import open_bytes, open_text
from gcnbatch.data.refusals import UNREADABLE
from gcnbatch.errors import InputError

CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
SMI_ENDINGS = (".smi", ".smi.gz", ".smiles", ".smiles.gz")
SDF_ENDINGS = (".sdf", ".sdf.gz", ".sd")
EXCEL_ENDINGS, PARQUET_ENDINGS = (".xlsx", ".xlsm", ".xls", ".ods"), (".parquet",)
_UNREAD: tuple[str, str, dict[str, str]] = (UNREADABLE, "", {})
_RECORDS = 256  # of an SDF file, that a forked process reads
ENDINGS = (*CSV_ENDINGS, *SMI_ENDINGS, *SDF_ENDINGS, *EXCEL_ENDINGS, *PARQUET_ENDINGS)


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
        yield read_excel(path)
    elif name.endswith(PARQUET_ENDINGS):
        yield from read_parquet(path)
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
    """Read structures as SMILES, titles as ids, and properties as further columns; all are in memory."""
    load_rdkit()
    found: list[tuple[str, str, dict[str, str]]] = []
    with open_bytes(path) as (content, _):
        records = _records(path, content)
        while some := list(islice(records, _RECORDS)):
            for part in guard.run(_read_records, some, "RDKit"):
                found += [_UNREAD] if isinstance(part, guard.Lost) else part
    keys = list(dict.fromkeys(key for _, _, values in found for key in values))
    check_cells(path, len(found), len(keys))
    titled = any(title for _, title, _ in found)
    first = ("smiles", "id") if titled else ("smiles",)
    names = checked_names(path, (*first, *(f"{key} (property)" if key.lower() in first else key for key in keys)))
    rows = (
        [smiles, *([title] if titled else []), *(values.get(key, "") for key in keys)]
        for smiles, title, values in found
    )
    return MoleculeRows(names, rows)


def _records(path: Path, content: IO[bytes]) -> Iterator[bytes]:
    """Yield the records of an SDF file."""
    number, lines, size = 1, [], 0
    while line := content.readline(text_files.MAX_ROW):
        lines.append(line)
        size += len(line)
        if size >= text_files.MAX_ROW:
            raise InputError(f"{path}, record {number}", f"more than {text_files.MAX_ROW:,} bytes", "a molecule")
        if line.startswith(b"$$$$"):
            yield b"".join(lines)
            number, lines, size = number + 1, [], 0
    if b"".join(lines).strip():
        yield b"".join(lines)


def _read_records(records: Iterable[bytes], _: int) -> list[tuple[str, str, dict[str, str]]]:
    """Return SMILES, title and properties of each record, in a forked process."""
    chem, found = load_rdkit(), []
    for record in records:
        try:
            molecule = next(iter(chem.ForwardSDMolSupplier(BytesIO(record))), None)
            found.append(_UNREAD if molecule is None else _described(chem, molecule))
        except (RuntimeError, ValueError):  # of RDKit's C++ code, and texts that are not UTF-8
            found.append(_UNREAD)
    return found


def _described(chem: Any, molecule: Any) -> tuple[str, str, dict[str, str]]:
    title = molecule.GetProp("_Name") if molecule.HasProp("_Name") else ""
    return chem.MolToSmiles(molecule), title, {key: molecule.GetProp(key) for key in molecule.GetPropNames()}
