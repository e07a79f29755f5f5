"""``gcnbatch data import`` through the program's entry point: exit codes, stdout and stderr, options, defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gcnbatch.data.store import Dataset
from tests.data.test_import_ogb import folder_of as ogb_folder
from tests.data.test_import_planetoid import mini as planetoid_folder
from tests.data.test_import_tudataset import folder_of as tu_folder

MOLECULES = "mol_id,NR-AR,SR-p53,smiles\nT1,0,1,CCO\nT2,,0,c1ccccc1\nT3,1,,xx\n"


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out.splitlines(), err.splitlines()


@pytest.fixture
def run(command):
    return lambda *arguments: Result(*command("data", "import", *arguments))


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "molecules.csv"
    path.write_text(MOLECULES)
    return path


def summary(result: Result) -> dict[str, str]:
    return {line[:13].strip(): line[13:].strip() for line in result.out[:-1]}


def test_smiles_end_with_a_summary_and_the_path(run, csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    result = run("smiles", csv, "-o", out, "--on-bad-row", "skip", "--max-nodes", 6)
    assert result.code == 0
    assert result.out[-1] == str(out)
    shown = summary(result)
    assert (shown["graphs"], shown["nodes"], shown["edges"]) == ("2", "9", "25")
    assert shown["tasks"] == "2 (binary, graph level)"
    assert shown["labelled"] == "75.0 %"
    assert shown["skipped rows"] == "1"
    assert result.err == [
        f"1 of 3 rows left out; the reasons are in {tmp_path / 'out.skipped.csv'}",
        "labels are all equal and teach nothing: NR-AR (all 0)",
    ]
    with Dataset(out) as dataset:
        assert dataset.ids.tolist() == ["T1", "T2"]
        assert dataset.header.featurizer == {
            "kind": "molecule",
            "bond_channels": False,
            "self_loops": True,
            "normalize": False,
            "max_nodes": 6,
            "largest_fragment": False,
            "neutralize": False,
            "smiles_column": "smiles",
            "id_column": "mol_id",
            "atom_features": "deepchem75",
        }


def test_a_bad_row_is_one_line_on_stderr_and_exit_code_2(run, csv: Path, tmp_path: Path) -> None:
    result = run("smiles", csv, "-o", tmp_path / "out.h5")
    assert (result.code, result.out, len(result.err)) == (2, [], 1)
    assert "row 3, id T3, SMILES 'xx'" in result.err[0]
    assert "--on-bad-row skip" in result.err[0]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["molecules.csv"]


def test_smiles_options_reach_the_file(run, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text('structure,name,"y, log",z\nCC=O,a,1.5,2\nCCO,b,,3\n')
    options = ["--smiles-column", "structure", "--id-column", "name", "--target-columns", '"y, log"', "--name", "mine"]
    out = tmp_path / "out.h5"
    assert run("smiles", path, "-o", out, *options, "--bond-channels", "--no-self-loops", "--normalize").code == 0
    with Dataset(out) as dataset:
        assert dataset.header.name == "mine"
        assert dataset.header.task_names == ("y, log",)
        assert dataset.header.channel_names == ("single", "double", "triple", "aromatic")
        assert dataset.header.normalized
        assert dataset.ids.tolist() == ["a", "b"]
    assert (
        run(
            "smiles", path, "-o", out, "--smiles-column", "structure", "--target-columns", "z", "--task", "multiclass"
        ).code
        == 0
    )
    with Dataset(out) as dataset:
        assert dataset.header.class_names == ("2", "3")


def test_each_other_format_is_imported(run, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    cases = {
        "planetoid": (planetoid_folder(tmp_path), "--name", "mini", "--no-row-normalize", "--no-self-loops"),
        "tudataset": (tu_folder(tmp_path), "--no-self-loops"),
        "ogb": (ogb_folder(tmp_path, {}), "--directed", "--no-self-loops", "--edge-channels", "--task", "regression"),
    }
    shown = {}
    for command, arguments in cases.items():
        result = run(command, *arguments, "-o", out)
        assert (result.code, result.err, result.out[-1]) == (0, [], str(out))
        shown[command] = summary(result)
    assert shown["planetoid"]["tasks"] == "2 classes (multiclass, node level)"
    assert shown["planetoid"]["edges"] == "8"
    assert shown["tudataset"]["edges"] == "6"
    assert (shown["ogb"]["edges"], shown["ogb"]["channels"]) == ("3", "type 0, type 2")
    assert shown["ogb"]["tasks"] == "2 (regression, graph level)"


def test_plain_csv_tables_are_imported(run, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\nu,v\n")
    (tmp_path / "n.csv").write_text("node,size,kind\nu,1,a\nv,2,b\n")
    out = tmp_path / "out.h5"
    tables = ["--edges", tmp_path / "e.csv", "--nodes", tmp_path / "n.csv", "-o", out]
    result = run("csv", *tables, "--node-targets", "kind", "--task", "multiclass", "--directed")
    assert (result.code, result.err) == (0, [])
    assert summary(result)["edges"] == "3"
    refused = run("csv", *tables)
    assert (refused.code, len(refused.err)) == (2, 1)


@pytest.mark.parametrize(
    ("importer", "example"),
    [
        ("smiles", "gcnbatch data import smiles tox21.csv.gz -o tox21.h5"),
        ("planetoid", "gcnbatch data import planetoid planetoid/data --name cora -o cora.h5"),
        ("tudataset", "gcnbatch data import tudataset MUTAG -o mutag.h5"),
        ("ogb", "gcnbatch data import ogb dataset/ogbg_molhiv -o molhiv.h5"),
        ("csv", "gcnbatch data import csv --edges E.csv --nodes N.csv --graphs G.csv -o g.h5"),
    ],
)
def test_help_shows_an_example(run, importer: str, example: str) -> None:
    result = run(importer, "--help")
    assert result.code == 0
    assert any(example in line for line in result.out)


def test_an_installed_program_with_worker_processes(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("smiles,y\n" + "".join(f"{'C' * (row % 9 + 1)},{row % 2}\n" for row in range(600)))
    command = [sys.executable, "-m", "gcnbatch", "data", "import", "smiles", str(path), "-o", str(tmp_path / "out.h5")]
    done = subprocess.run([*command, "--processes", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "copies: 9 molecule" in done.stderr  # behind lines of progress on a slow machine
    assert "graphs        600" in done.stdout.splitlines()
