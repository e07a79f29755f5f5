"""Limits of tables: each is named in one line, and a bomb costs little memory and time."""

from __future__ import annotations

import csv
import gzip
import struct
from pathlib import Path

import pytest

from gcnbatch.data.importers.molecule_tables import read_molecules
from gcnbatch.data.tables import binary, files, table
from gcnbatch.errors import InputError
from tests.fuzz.tables import limited

WIDE = ",".join(f"c{number}" for number in range(9))
CASES = {
    "line": (
        "m.csv",
        b"smiles,y\nC,1\nN," + b"1" * 3000,
        "m.csv, line 3: more than 1,000 characters; expected a",
    ),
    "row": ("m.csv", b"smiles,y\nC,1\nN" + b',"\n"' * 900, "m.csv, row 2: more than 1,000 characters"),
    "field": ("m.csv", b"smiles,y\nC," + b"1" * 600, "m.csv, line 2: a field of more than 500 characters"),
    "columns": ("m.csv", f"smiles,{WIDE}\n".encode(), "m.csv: 10 columns; expected at most 8"),
    "smi": ("m.smi", b"C a\n" + b"C" * 3000, "m.smi, line 2: more than 1,000 characters"),
    "sdf": ("m.sdf", b"\n" + b"C" * 3000, "m.sdf, record 1: more than 1,000 bytes; expected a molecule"),
    "bomb": (
        "m.csv.gz",
        gzip.compress(b"smiles\n" + b"C\n" * 4000),
        "m.csv.gz: decompresses to more than 100 times its size; expected a table. If it is one, decompress it first",
    ),
    "bomb that hides": (
        "m.smi.gz",
        gzip.compress(b"C\n" * 4000)[:-4] + struct.pack("<I", 8),
        "m.smi.gz: decompresses to more than 100 times its size",
    ),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ROW", 1000)
    monkeypatch.setattr(files, "BLOCK_CHARS", 100)
    monkeypatch.setattr(files, "FREE_BYTES", 5000)
    monkeypatch.setattr(table, "MAX_COLUMNS", 8)
    monkeypatch.setattr(binary, "_FREE_CELLS", 1)
    before = csv.field_size_limit(500)
    yield
    csv.field_size_limit(before)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", CASES)
def test_a_limit_is_named(case: str, tmp_path: Path) -> None:
    name, raw, message = CASES[case]
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError) as caught:
        read_molecules(tmp_path / name)
    assert message in str(caught.value)
    assert len(str(caught.value)) - len(str(tmp_path)) < 200


def test_a_table_within_the_limits_is_read_in_small_blocks(tmp_path: Path, small: None) -> None:
    rows = [f'C,"{number}\r\n, x"' for number in range(100)]
    (tmp_path / "m.csv").write_bytes(("smiles,y\r\n" + "\r\n\r\n".join(rows)).encode())
    assert read_molecules(tmp_path / "m.csv").others["y"] == [f"{number}\r\n, x" for number in range(100)]


def test_a_parquet_file_of_few_bytes_and_many_cells_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(binary, "_FREE_CELLS", 1)
    parquet.write_table(arrow.table({"smiles": ["C"] * 1_000_000}), tmp_path / "m.parquet")
    with pytest.raises(InputError, match=r"1,000,000 rows of 1 column in .*; expected at most 100 cells per byte"):
        read_molecules(tmp_path / "m.parquet")


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "m.parquet").write_bytes(b"PAR1" + b"\xff" * 100 + b"PAR1")
    with pytest.raises(InputError, match=r"m\.parquet: not readable \(.*\); expected a Parquet file"):
        read_molecules(tmp_path / "m.parquet")


def test_an_excel_bomb_is_refused(tmp_path: Path) -> None:
    import zipfile

    pytest.importorskip("python_calamine")
    with zipfile.ZipFile(tmp_path / "m.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b" " * (files.FREE_BYTES + 1))
    with pytest.raises(InputError, match=r"m\.xlsx: decompresses to more than 100 times its size; expected an Excel"):
        read_molecules(tmp_path / "m.xlsx")


@pytest.mark.parametrize("unit", [b"\0", b"C", b",", b"\n", b"C,1\n"])
def test_a_bomb_costs_little_memory(tmp_path: Path, unit: bytes) -> None:
    path = tmp_path / "m.csv.gz"
    path.write_bytes(gzip.compress(b"smiles,y\n" + unit * (2 * files.FREE_BYTES // len(unit)), 9))

    def read() -> str:
        with pytest.raises(InputError) as caught:
            read_molecules(path)
        return str(caught.value)

    assert "more than 100 times" in limited(read)
