"""Tables as other tools write them: names of columns, encodings, compression, CXSMILES, SDF items, lines and columns
around the table."""

from __future__ import annotations

import bz2
import sys
from pathlib import Path

import pytest

from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit
from gcnbatch.data.importers.molecule_tables import MoleculeTable, read_molecules
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.molecule_graphs import featurize
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.errors import InputError, MachineError

CXSMILES = "CC[C@H]1C[C@@H]1C(=O)NC(C)C"
LEFT_OUT = "extension of CXSMILES (|…|), which is left out"


def read(folder: Path, text: str | bytes, name: str = "m.csv", smiles: str = "", **asked: str) -> MoleculeTable:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_molecules(path, smiles, asked=TableFormat(**asked))


def notes_of_import(path: Path, **options: object) -> tuple[str, ...]:
    return import_smiles(path, path.with_suffix(".h5"), FeaturizerOptions(), processes=1, **options).notes  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ CXSMILES


def test_the_extension_of_a_cxsmiles_cell_is_left_out_and_said(tmp_path: Path) -> None:
    found = read(tmp_path, f'smiles,y\n"{CXSMILES} |&1:2,4|",1.5\nCC,2.5\nC |,3.5\n')
    assert found.smiles == [CXSMILES, "CC", "C |"]
    assert [note for note in found.notes if LEFT_OUT in note] == [
        f"1 SMILES has an {LEFT_OUT}: the SMILES alone is read"
    ]


def test_a_cxsmiles_in_memory_is_named() -> None:
    (part,) = featurize(["C |&1:1|", "C x"], FeaturizerOptions(), processes=1)
    assert [bad.reason for bad in part.bad] == [
        "an extension of CXSMILES (|…|) after it",
        "a blank inside the SMILES",
    ]


@pytest.mark.parametrize("name", ["m.smi", "m.cxsmiles"])
def test_names_follow_the_extension_in_a_file_of_smiles(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, f"{CXSMILES} |&1:2,4|\tZ1\t150\nCCO mol3\nCC |$a b$| two words\nC\n", name)
    assert found.smiles == [CXSMILES, "CCO", "CC", "C"]
    assert found.ids == ["Z1", "mol3", "two words", "4"]
    assert found.notes == (
        "2 SMILES have extensions of CXSMILES (|…|), which are left out: the SMILES alone are read",
        "1 line has more fields after the name, which are left out; a header line would name them",
        "1 of 4 rows has no id: the number of the row stands for it",
    )


@pytest.mark.parametrize("head", ["smiles\tid\tMW", "#SMILES\tid\tMW"])
def test_a_header_line_with_tabs_names_the_columns_of_a_file_of_smiles(tmp_path: Path, head: str) -> None:
    found = read(tmp_path, f"{head}\n{CXSMILES} |&1:2,4|\tZ1\t150.5\n", "m.cxsmiles")
    assert (found.smiles, found.ids, found.others) == ([CXSMILES], ["Z1"], {"MW": ["150.5"]})


# ------------------------------------------------------------------------------------------------ compression


def test_text_may_be_compressed_with_bzip2_and_zstandard(tmp_path: Path) -> None:
    assert read(tmp_path, bz2.compress(b"CCO a\n"), "m.smi.bz2").ids == ["a"]
    assert read(tmp_path, bz2.compress(b"smiles,y\nC,1\n"), "unpacked.csv").smiles == ["C"]
    arrow = pytest.importorskip("pyarrow")
    packed = arrow.compress(b"CCO b\n", "zstd", asbytes=True)
    assert read(tmp_path, packed, "m.smi.zst").ids == ["b"]
    with pytest.raises(InputError, match=r"m\.smi\.zst: damaged Zstandard file \(.*\)\. Copy the file again"):
        read(tmp_path, packed[:9], "m.smi.zst")
    with pytest.raises(InputError, match=r"m\.smi\.bz2: damaged bzip2 file \(.*\)\. Copy the file again"):
        read(tmp_path, bz2.compress(b"CCO b\n" * 99)[:50], "m.smi.bz2")


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"PK\x03\x04", "a ZIP archive or a workbook"),
        (b"\xfd7zXZ", "an XZ archive"),
        (b"\xd0\xcf\x11\xe0", "a workbook"),
    ],
)
def test_archives_are_named(tmp_path: Path, start: bytes, what: str) -> None:
    with pytest.raises(InputError, match=rf"m\.csv: {what}; expected a text file, also \.gz, \.bz2 or \.zst\. Unpack"):
        read(tmp_path, start + b"\0" * 20)


def test_zstandard_without_its_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match=r"reads \.zst: not installed\. Install it: .*\[tables\].*zstd -d"):
        read(tmp_path, b"", "m.csv.zst")


# ------------------------------------------------------------------------------------------------ encodings

ACCENTS = "smiles,name,y\nC,é,1.5\nCC,b,2\n"


def test_utf_16_with_its_mark_is_read_and_other_encodings_are_named_with_the_option(tmp_path: Path) -> None:
    assert read(tmp_path, ACCENTS.encode("utf-16")).others["name"] == ["é", "b"]
    assert read(tmp_path, ACCENTS.encode("cp1252"), encoding="cp1252").others["name"] == ["é", "b"]
    assert read(tmp_path, ACCENTS.encode("utf-8-sig"), encoding="utf8").others["name"] == ["é", "b"]
    with pytest.raises(InputError, match=r"byte 0xe9 is not UTF-8.* name its encoding \(--encoding cp1252\)"):
        read(tmp_path, ACCENTS.encode("cp1252"), encoding="")
    with pytest.raises(InputError, match=r"byte 0xe9 is not UTF-8; expected UTF-8 text\. Save it as UTF-8\.$"):
        read(tmp_path, ACCENTS.encode("cp1252"))
    with pytest.raises(InputError, match=r"m\.csv: is not utf-16; expected utf-16 text"):
        read(tmp_path, ACCENTS, encoding="utf-16")
    for wrong in ("latin-17", "rot13"):
        with pytest.raises(InputError, match=rf"--encoding: '{wrong}'; expected an encoding of text, such as utf-8"):
            read(tmp_path, ACCENTS, encoding=wrong)


def test_a_nul_character_is_refused_by_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"m\.csv, line 3: a NUL character; expected text\. If the file is UTF-16"):
        read(tmp_path, "smiles,y\nC,1\nC\0C,2\n")


# ------------------------------------------------------------------------------------------------ around the table


def test_columns_without_a_name_are_left_out_where_they_are_blank(tmp_path: Path) -> None:
    for text in ("smiles,y,,\nC,1.5,,\nCC,2.5, ,\n", "smiles,y,,\nC,1.5,,,\nCC,2.5,,\n"):
        found = read(tmp_path, text)
        assert found.others == {"y": ["1.5", "2.5"]}
        assert found.notes == ("2 blank columns without a name left out",)
    assert read(tmp_path, "smiles,y\nC,1.5,\nCC,2.5,,\n").others == {"y": ["1.5", "2.5"]}
    message = r"row 2: column 3 has no name, but the value 'x'; expected a name in the header line\. Delete lines above"
    with pytest.raises(InputError, match=message):
        read(tmp_path, "smiles,y,\nC,1.5,\nCC,2.5,x\n")
    with pytest.raises(InputError, match="row 1: 3 fields; expected 2, as in the header line"):
        read(tmp_path, "smiles,y\nC,1.5,x\n")


@pytest.mark.parametrize("sign", [",", ";"])
def test_comment_lines_above_the_header_line_are_left_out(tmp_path: Path, sign: str) -> None:
    text = "\n# made by a robot; x, y\n#\n\n# 3, 4\nsmiles,y\nC,1.5\nCC,2.5,3\n".replace(",", sign)
    with pytest.raises(InputError, match="row 2: 3 fields; expected 2"):
        read(tmp_path, text)
    found = read(tmp_path, text.replace(f"{sign}3\n", "\n"))
    assert found.others == {"y": ["1.5", "2.5"]}
    assert "5 lines above the header line left out" in found.notes


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("#smiles,y", ("smiles", "y")),
        ("# made, then\n#,smiles,y", ("#", "smiles", "y")),
        ("#ID,structure,y", ("ID", "structure", "y")),
    ],
)
def test_a_header_line_may_begin_with_the_sign_of_comments(tmp_path: Path, head: str, names: tuple[str, ...]) -> None:
    rows = "CCO,1.5\nCC,2.5\n" if len(names) == 2 else "1,CCO,1.5\n2,CC,2.5\n"
    found = read(tmp_path, f"{head}\n{rows}")
    assert (found.names, found.smiles, found.others["y"]) == (names, ["CCO", "CC"], ["1.5", "2.5"])


def test_a_title_above_the_header_line_is_pointed_at(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 1: 2 fields; expected 1.*Delete the lines above the header line"):
        read(tmp_path, "Results of the assay\n\nsmiles,y\nC,1\n")


# ------------------------------------------------------------------------------------------------ columns


@pytest.mark.parametrize(
    "name", ["MOLECULE_SMILES", "canonical_smiles", "Smiles (Canonical)", "mol", "Drug", "structure"]
)
def test_columns_of_smiles_are_found_by_name_or_contents(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, f"id,{name},y\nCO,CCO,1.5\nNO,CCN,2.5\n")
    assert (found.smiles_column, found.smiles, found.ids) == (name, ["CCO", "CCN"], ["CO", "NO"])
    said = f"SMILES are read from column '{name}', by its values"
    assert found.notes == (() if "smiles" in name.lower() else (said,))


def test_a_column_of_any_name_is_taken_where_its_values_are_structures(tmp_path: Path) -> None:
    found = read(tmp_path, "what,CAS,y\nCC(=O)O,64-19-7,1.5\nc1ccccc1,71-43-2,2.5\n")
    assert (found.smiles_column, found.notes) == ("what", ("SMILES are read from column 'what', by its values",))
    found = read(tmp_path, "smiles_length,raw_smiles,y\n3,CCO,1.5\n2,CC,2.5\n")
    assert (found.smiles_column, found.notes) == (
        "raw_smiles",
        ("SMILES are read from column 'raw_smiles', by its values",),
    )
    with pytest.raises(InputError, match="several columns of SMILES: 'from', 'to'; expected one"):
        read(tmp_path, "from,to,y\nCC(=O)O,CC(=O)N,1.5\n")
    for values in ("C", "ethanol", "12", "C2H6O", "C" * 2001):
        with pytest.raises(InputError, match=r"no column of SMILES; there are 'what', 'y'. Name it with --"):
            read(tmp_path, f"what,y\n{values},1.5\n")


@pytest.mark.usefixtures("rows_in_forks")
def test_a_value_that_crashes_rdkit_is_no_smiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gcnbatch.data.importers import molecule_tables

    def crash(_: str) -> bool:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGSEGV)
        return True

    monkeypatch.setattr(molecule_tables, "_is_smiles", crash)
    with pytest.raises(InputError, match="no column of SMILES"):
        read(tmp_path, "mol,y\nCCO,1\n")


def test_whole_numbers_that_all_differ_are_said_to_be_no_target(tmp_path: Path) -> None:
    rows = [f"{'C' * row},{row * 37 % 101},{row / 7}" for row in range(1, 13)]
    (tmp_path / "m.csv").write_text("smiles,boiling point,y\n" + "\n".join(rows) + "\n")
    said = "column 'boiling point' is no target: its whole numbers all differ, as ids do; if it is one, name it with "
    assert f"{said}--target-columns" in notes_of_import(tmp_path / "m.csv")
    assert not any("ids do" in note for note in notes_of_import(tmp_path / "m.csv", target_columns=["y"]))


def test_a_table_without_targets_is_said_to_be_a_library(tmp_path: Path) -> None:
    said = "there is no column of targets: the set has no labels, as with --no-targets"
    (tmp_path / "m.sdf").write_text(record("CCO", "a") + record("CC", "b"))
    (tmp_path / "m.csv").write_text("smiles,id\nCCO,a\n")
    for name in ("m.sdf", "m.csv"):
        assert said in notes_of_import(tmp_path / name)
        assert said not in notes_of_import(tmp_path / name, no_targets=True)


# ------------------------------------------------------------------------------------------------ SDF


def record(smiles: str, title: str, items: str = "") -> str:
    chem = load_rdkit()
    molecule = chem.MolFromSmiles(smiles)
    molecule.SetProp("_Name", title)
    return f"{chem.MolToMolBlock(molecule)}{items}$$$$\n"


def test_a_property_without_a_name_is_left_out_alone(tmp_path: Path) -> None:
    items = ">  <a>\n1.5\n\n>  <>\nlost\n\n> DT12\n\n>  <b> (7)\n2.5\n\n"
    found = read(tmp_path, record("CCO", "x") + record("CC", "y", items), "m.sdf")
    assert found.others == {"a": ["", "1.5"], "b": ["", "2.5"]}
    assert found.notes == ("1 property without a name is left out, the first in record 2",)


def test_values_of_a_repeated_property_are_all_kept(tmp_path: Path) -> None:
    text = record("CCO", "x", ">  <y>\n1.5\n\n>  <y>\n7\n\n") + record("CC", "y", ">  <y>\n2\n\n>  <y>\n2\n\n")
    found = read(tmp_path, text, "m.sdf")
    assert found.others == {"y": ["1.5\n7", "2"]}
    assert found.notes == (
        "properties with several values, all kept, a line each: 'y' in 1 record; the first in record 1",
    )
    with pytest.raises(
        InputError, match=r"row 1, column 'y': '1\.5\\n7'; .* 'y' has several values in a cell, .*: keep one"
    ):
        notes_of_import(tmp_path / "m.sdf")


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (["1.5", "7"], {}, "no column that is clearly a target ('y': several values in a cell, a line each, as where"),
        (
            ["low", "high"],
            {},
            "no column that is clearly a target ('y': several values in a cell, a line each, as where",
        ),
        (["low", "high"], {"target_columns": ["y"]}, "'y' has several values in a cell, a line each, as where an SDF"),
    ],
)
def test_a_target_that_every_record_repeats_is_named(
    tmp_path: Path, values: list[str], options: dict[str, list[str]], message: str
) -> None:
    again = [f">  <y>\n{one}\n\n>  <y>\n{other}\n\n" for one, other in (values, values[::-1])]
    (tmp_path / "m.sdf").write_text("".join(record("CCO", "x", again[row % 2]) for row in range(8)))
    with pytest.raises(InputError) as caught:
        notes_of_import(tmp_path / "m.sdf", **options)
    assert message in str(caught.value)


def test_values_of_properties_end_at_a_blank_line_or_the_next_property(tmp_path: Path) -> None:
    items = "> <IC50>\n>10\n\n> <text>\none\ntwo\n\nthree\n\n>  25 <boiling> \n78\n>  <last>\nz"
    found = read(tmp_path, record("CCO", "x", items + "\n").replace("\n", "\r\n"), "m.sdf")
    assert found.others == {"IC50": [">10"], "text": ["one\ntwo\n\nthree"], "boiling": ["78"], "last": ["z"]}


def test_a_record_without_a_title_has_its_number_as_id(tmp_path: Path) -> None:
    text = record("CCO", "") + record("CC", "b")
    assert read(tmp_path, text, "m.sdf").ids == ["1", "b"]
    broken = text.replace(" C   0", " Xx  0")
    assert read(tmp_path, broken, "m.sdf").ids == ["1", "b"]
    assert read(tmp_path, record("CCO", ""), "m.sdf").id_column == ""


def test_an_sdf_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    raw = (record("CCO", "a") + record("CC", "b", "> <name>\né\n\n")).encode("cp1252")
    with pytest.raises(InputError, match=r"m\.sdf, record 2: byte 0xe9 is not UTF-8.*--encoding cp1252"):
        read(tmp_path, raw, "m.sdf", encoding="")
    assert read(tmp_path, raw, "m.sdf", encoding="cp1252").others == {"name": ["", "é"]}
