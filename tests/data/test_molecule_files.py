"""Files of molecules in every format, delimiter and decimal sign."""

from __future__ import annotations

import gzip
import sys
import zipfile
from pathlib import Path

import pytest

from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit
from gcnbatch.data.importers.molecule_tables import MoleculeTable, read_molecules
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.errors import InputError, MachineError


def read(folder: Path, text: str | bytes, name: str = "m.csv", **asked: str) -> MoleculeTable:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_molecules(path, asked=TableFormat(**asked))


# ------------------------------------------------------------------------------------------------ text


@pytest.mark.parametrize("sign", [";", "\t", "|", ","])
def test_the_delimiter_is_detected(tmp_path: Path, sign: str) -> None:
    text = "\ufeff" + f'smiles{sign}"a, b; c"{sign}y\r\nC{sign}x{sign}1.5\r\nCC{sign}y{sign}2.5\r\n'
    found = read(tmp_path, text)
    assert found.smiles == ["C", "CC"]
    assert found.others == {"a, b; c": ["x", "y"], "y": ["1.5", "2.5"]}
    assert bool(found.notes) == (sign != ",")


def test_a_short_row_does_not_hide_the_delimiter(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 2: 1 field; expected 2, as in the header line"):
        read(tmp_path, "smiles;y\nC;1\nCC\n")


def test_a_delimiter_that_was_given_is_taken(tmp_path: Path) -> None:
    assert read(tmp_path, "smiles|a;b\nC|1;2\n", delimiter="bar").others == {"a;b": ["1;2"]}
    with pytest.raises(InputError, match="--delimiter: 'x'; expected one of comma, semicolon, tab, bar"):
        read(tmp_path, "smiles\n", delimiter="x")


def test_decimal_commas_become_points(tmp_path: Path) -> None:
    found = read(tmp_path, "smiles;y;name\nC;1,5;a,b\nCC;-2;c\nN;NA;1,2-diol\n")
    assert found.others == {"y": ["1.5", "-2", "NA"], "name": ["a,b", "c", "1,2-diol"]}
    assert "numbers have a decimal comma" in found.notes


def test_commas_between_thousands_must_be_named(tmp_path: Path) -> None:
    text = "smiles;y\nC;1,500\nCC;2,250\n"
    with pytest.raises(InputError, match=r"column 'y': '1,500' is a fraction or a number above 1,000.*--decimal"):
        read(tmp_path, text)
    assert read(tmp_path, text, decimal=",").others["y"] == ["1.500", "2.250"]
    assert read(tmp_path, text, decimal=".").others["y"] == ["1500", "2250"]
    with pytest.raises(InputError, match=r"--decimal: 'x'; expected '\.' or ','"):
        read(tmp_path, text, decimal="x")


@pytest.mark.parametrize("head", ["", "SMILES Name\n"])
def test_smi_lines_are_a_smiles_and_a_name(tmp_path: Path, head: str) -> None:
    found = read(tmp_path, gzip.compress(f"{head}CCO ethanol 96 %\n\nC\n".encode()), "m.smi.gz")
    assert (found.smiles, found.ids) == (["CCO", "C"], ["ethanol 96 %", "2"])
    assert found.notes == ("1 of 2 rows has no id: the number of the row stands for it",)
    assert read(tmp_path, f"{head[:6]}\nCCO\n", "m.smi").ids == ["1"]


def test_an_empty_smi_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row below the header line"):
        read(tmp_path, "\n", "m.smi")


# ------------------------------------------------------------------------------------------------ libraries


@pytest.mark.usefixtures("rows_in_forks")
def test_sdf_titles_are_ids_and_properties_columns(tmp_path: Path) -> None:
    chem = load_rdkit()
    blocks = []
    for smiles, name, value in (("CCO", "ethanol", "1.5"), ("C", "methane", "2.5")):
        molecule = chem.MolFromSmiles(smiles)
        molecule.SetProp("_Name", name)
        blocks.append(f"{chem.MolToMolBlock(molecule)}>  <logP>\n{value}\n\n$$$$\n")
    broken = blocks[0].replace(" C   0", " Xx  0")
    path = tmp_path / "m.sdf"
    path.write_text(blocks[0] + broken + blocks[1])
    found = read_molecules(path)
    assert found.smiles[::2] == ["CCO", "C"]
    assert found.ids[::2] == ["ethanol", "methane"]
    assert found.others["logP"][::2] == ["1.5", "2.5"]
    with pytest.raises(InputError, match=r"1 of 3 rows gives no graph: row 2, .*record that RDKit cannot read"):
        import_smiles(path, tmp_path / "out.h5", FeaturizerOptions(), processes=1)


def write_workbook(path: Path, *sheets: list[list[object]]) -> None:
    """Write a workbook with the least that Excel's format asks for."""
    space = "http://schemas.openxmlformats.org"
    numbers = range(1, len(sheets) + 1)
    names = "".join(f'<sheet name="s{n}" sheetId="{n}" r:id="r{n}"/>' for n in numbers)
    links = "".join(
        f'<Relationship Id="r{n}" Type="{space}/officeDocument/2006/relationships/worksheet" '
        f'Target="worksheets/sheet{n}.xml"/>'
        for n in numbers
    )
    main = f'xmlns="{space}/spreadsheetml/2006/main"'
    relations = f'xmlns="{space}/package/2006/relationships"'
    files = {
        "_rels/.rels": f'<Relationships {relations}><Relationship Id="r0" '
        f'Type="{space}/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook {main} xmlns:r="{space}/officeDocument/2006/relationships">'
        f"<sheets>{names}</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f"<Relationships {relations}>{links}</Relationships>",
    }
    for number, rows in zip(numbers, sheets, strict=True):
        cells = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
        files[f"xl/worksheets/sheet{number}.xml"] = f"<worksheet {main}><sheetData>{cells}</sheetData></worksheet>"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def cell(value: object) -> str:
    return f'<c t="inlineStr"><is><t>{value}</t></is></c>' if isinstance(value, str) else f"<c><v>{value}</v></c>"


def test_the_first_sheet_of_a_workbook_is_read(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    path = tmp_path / "m.xlsx"
    write_workbook(path, [["smiles", "n", "y"], ["C", 1, 0.5], ["CC", 2, "NA"]], [["other"]])
    found = read_molecules(path)
    assert found.others == {"n": ["1", "2"], "y": ["0.5", "NA"]}
    assert found.notes == ("read sheet 's1', the first of 2",)
    for head, message in (
        (["smiles", ""], "column 2 has no name.*Delete lines above the header line"),
        (["smiles", "smiles"], "two columns are named"),
    ):
        write_workbook(path, [head, ["C", 1]])
        with pytest.raises(InputError, match=message):
            read_molecules(path)
    write_workbook(path, [], [["", ""]], [["smiles", "y"], ["C", 1]], [["other"]])
    found = read_molecules(path)
    assert (found.smiles, found.notes) == (["C"], ("read sheet 's3', the first of 4 that has rows",))
    write_workbook(path, [])
    with pytest.raises(InputError, match=r"m\.xlsx: no row in any of 1 sheet; expected a table with a header line"):
        read_molecules(path)


def test_a_damaged_workbook_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    with pytest.raises(InputError, match=r"m\.xlsx: not readable as a workbook"):
        read(tmp_path, b"no workbook", "m.xlsx")


def test_parquet_is_read(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"smiles": ["C", "CC"], "y": [0.5, None], "hit": [True, False]}
    parquet.write_table(arrow.table(columns), tmp_path / "m.parquet")
    assert read_molecules(tmp_path / "m.parquet").others == {"y": ["0.5", ""], "hit": ["True", "False"]}
    with pytest.raises(InputError, match=r"broken\.parquet: not readable"):
        read(tmp_path, b"no table", "broken.parquet")


def test_a_gigantic_field_of_a_binary_table_is_refused(tmp_path: Path) -> None:
    """A dictionary or a compressed page stores it in a few bytes."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("python_calamine")
    long = "C" * (1 << 22)
    shared = arrow.DictionaryArray.from_arrays(arrow.array([0] * 9, arrow.int32()), arrow.array([long]))
    for table in ({"smiles": shared}, {"smiles": ["C"], "y": [[1] * 100_000]}):
        parquet.write_table(arrow.table(table), tmp_path / "m.parquet", compression="zstd")
        assert (tmp_path / "m.parquet").stat().st_size < 9000
        with pytest.raises(InputError, match=r"m\.parquet: not readable \(a field of more than 131,072 characters\)"):
            read_molecules(tmp_path / "m.parquet")
    parquet.write_table(arrow.table({long: ["C"]}), tmp_path / "m.parquet")
    with pytest.raises(InputError, match=r"the name of column 1 has 4,194,304 characters; expected at most 131,072"):
        read_molecules(tmp_path / "m.parquet")
    write_workbook(tmp_path / "m.xlsx", [["smiles"], [long[:200_000]]])
    with pytest.raises(InputError, match=r"m\.xlsx: not readable as a workbook \(a field of more than 131,072"):
        read_molecules(tmp_path / "m.xlsx")


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(
        MachineError, match=r"python-calamine: not installed. Install it: pip install 'gcnbatch\[tables\]'"
    ):
        read(tmp_path, b"", "m.xlsx")
