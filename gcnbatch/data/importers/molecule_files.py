"""Files of molecules as rows of text: CSV, .smi, SDF, Excel and Parquet."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gcnbatch.data.importers.binary_tables import MoleculeRows, read_excel, read_parquet
from gcnbatch.data.importers.csv_tables import Layout, open_table
from gcnbatch.data.importers.dialect import DELIMITERS, TableFormat, detect_layout
from gcnbatch.data.importers.sdf_files import read_sdf
from gcnbatch.data.importers.smi_files import has_header, read_smi
from gcnbatch.data.importers.text_files import COMPRESSIONS, open_text
from gcnbatch.errors import InputError


def _compressed(*endings: str) -> tuple[str, ...]:
    """Return endings of files that may be compressed."""
    return tuple(ending + more for ending in endings for more in ("", *COMPRESSIONS))


CSV_ENDINGS = _compressed(".csv", ".tsv", ".txt")
SMI_ENDINGS = _compressed(".smi", ".smiles", ".cxsmiles")
SDF_ENDINGS = _compressed(".sdf", ".sd")
EXCEL_ENDINGS, PARQUET_ENDINGS = (".xlsx", ".xlsm", ".xls", ".ods"), (".parquet",)
ENDINGS = (*CSV_ENDINGS, *SMI_ENDINGS, *SDF_ENDINGS, *EXCEL_ENDINGS, *PARQUET_ENDINGS)
KNOWN = f".csv, .tsv, .txt, .smi, .smiles, .cxsmiles, .sdf, .sd (each also {', '.join(COMPRESSIONS)}), " + ", ".join(
    (*EXCEL_ENDINGS, *PARQUET_ENDINGS)
)


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
        with open_text(path, wished.encoding) as stream:
            first = next((line for line in stream if line.strip()), "")
        if has_header(first) and "\t" in first:
            with _open_text_table(path, TableFormat("\t", wished.decimal, wished.encoding)) as rows:
                yield rows
        else:
            with open_text(path, wished.encoding) as stream:
                yield read_smi(stream)
    elif name.endswith(SDF_ENDINGS):
        yield read_sdf(path, wished.encoding)
    elif name.endswith(EXCEL_ENDINGS):
        yield read_excel(path)
    elif name.endswith(PARQUET_ENDINGS):
        yield from read_parquet(path)
    else:
        with _open_text_table(path, wished) as rows:
            yield rows


@contextmanager
def _open_text_table(path: Path, wished: TableFormat) -> Generator[MoleculeRows]:
    layout = detect_layout(path, wished)
    with open_table(path, layout=layout, index=True, encoding=wished.encoding) as table:
        notes = [*_about(layout, wished), *table.notes]
        yield MoleculeRows(table.names, table.rows, notes)


def _about(layout: Layout, wished: TableFormat) -> list[str]:
    """Return what was detected, for the user."""
    notes = []
    if layout.sign != "," and not wished.sign:
        notes.append(f"fields are separated by a {DELIMITERS[layout.sign]}")
    if layout.skipped:
        lines = "1 line" if layout.skipped == 1 else f"{layout.skipped:,} lines"
        notes.append(f"{lines} above the header line left out")
    return notes
