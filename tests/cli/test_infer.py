"""``gcnbatch infer`` through the program's own entry point: stdout, stderr, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

import gcnbatch
from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.runners.choice import FEW
from tests.builders import build_graphset
from tests.entries import MadeEntry, NamedBackend, register
from tests.inference.runs import import_table, molecule_table, read_rows, stored, train_on


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("infer")
    table = molecule_table(folder / "molecules.csv")
    data = import_table(table, folder / "molecules.h5", FeaturizerOptions())
    return {
        "csv": table,
        "h5": data,
        "run": train_on(data, folder / "run"),
        "again": train_on(data, folder / "again", seed=1),
        "other": stored(folder / "other.h5", build_graphset(3)),
    }


@pytest.fixture
def call(command):
    return partial(command, "infer")


def test_a_table_on_stdout_and_its_figures_on_stderr(call, files) -> None:
    code, out, err = call(files["run"], files["h5"])
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "id,even,third"
    assert [line.split(",")[0] for line in lines[1:]] == [f"M{i}" for i in range(40)]
    assert "ROC-AUC" in err
    assert "40 rows predicted by 1 model on " in err


def test_several_runs_before_the_data_and_a_file(call, files, tmp_path) -> None:
    out = tmp_path / "out.csv"
    code, printed, err = call(files["run"], files["again"], files["csv"], "-o", out, "--batch-size", 7)
    assert (code, printed) == (0, "")
    assert list(read_rows(out)["M0"]) == ["id", "even", "even_std", "third", "third_std", "error"]
    assert "by 2 models on " in err
    assert str(out) in err


def test_quiet_says_nothing(call, files, tmp_path) -> None:
    table = tmp_path / "bad.csv"
    table.write_text("structure\nxx\n")
    assert call(files["run"], table, "-o", tmp_path / "out.jsonl", "-q") == (0, "", "")
    assert json.loads((tmp_path / "out.jsonl").read_text())["error"] == "not valid SMILES"


def test_json_is_a_summary_with_the_figures(call, files, tmp_path) -> None:
    code, out, _ = call(files["run"], files["h5"], "-o", tmp_path / "out.h5", "--json")
    summary = json.loads(out)
    assert code == 0
    assert (summary["rows"], summary["unreadable"], summary["members"], summary["backend"]) == (40, 0, 1, "cpu")
    assert 0 <= summary["metrics"]["roc_auc"] <= 1
    assert summary["out"] == str(tmp_path / "out.h5")
    code, out, _ = call(files["run"], files["csv"], "-o", tmp_path / "out.csv", "--json")
    assert json.loads(out)["metrics"]["roc_auc"] == pytest.approx(summary["metrics"]["roc_auc"])


def test_columns_of_the_input_are_kept_by_option(call, files, tmp_path) -> None:
    table = tmp_path / "new.csv"
    table.write_text("mol_id;structure;note\n a ;CCO;x\nb;xx;y\n")
    out = tmp_path / "out.csv"
    assert call(files["run"], table, "-o", out, "--keep-columns", "note,structure", "--delimiter", "semicolon")[0] == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "id,note,structure,even,third,error"
    assert lines[1].startswith(" a ,x,CCO,0.")
    assert lines[2] == "b,y,xx,,,not valid SMILES"
    assert call(files["run"], table, "-o", out, "--keep-columns", "all")[0] == 0
    assert out.read_text().startswith("id,structure,note,even")
    assert call(files["run"], files["csv"], "-o", out, "--keep-columns", "even")[0] == 0
    assert out.read_text().startswith("id,even_,even,third,error\nM0,0,0.")
    code, _, err = call(files["run"], table, "-o", out, "--keep-columns", "notes")
    assert code == 2
    assert "--keep-columns: no column 'notes'; expected columns of the input. Did you mean 'note'?" in err
    assert "has no columns" in call(files["run"], files["h5"], "--keep-columns", "all")[2]


def test_cuda_options_reach_the_backend(call, files, tmp_path, monkeypatch) -> None:
    entry = MadeEntry("cpu")
    register(monkeypatch, entry)
    given = ("--device", 1, "--resident", "off", "--set", "cuda.precision=tf32")
    assert call(files["run"], files["h5"], "-o", tmp_path / "out.csv", *given)[0] == 0
    assert entry.opened == [(1, CudaConfig(resident="off", precision="tf32"))]
    code, _, err = call(files["run"], files["h5"], "--set", "train.epochs=3")
    assert code == 2
    assert err == (
        "error: --set train.epochs: not a key of [cuda]; expected cuda.key. "
        "Known: cuda.fast_math, cuda.precision, cuda.resident, cuda.spmm.\n"
    )
    assert "--set: cuda.resident: 'maybe'; expected" in call(files["run"], files["h5"], "--resident", "maybe")[2]


def test_refusals_are_one_line_and_leave_no_file(call, files, tmp_path) -> None:
    out = tmp_path / "out.csv"
    code, printed, err = call(files["run"], files["other"], "-o", out)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert str(files["other"]) in err
    assert str(files["run"]) in err
    assert not out.exists()
    code, _, err = call(files["run"], files["h5"], "--json")
    assert code == 2
    assert "predictions go to standard output too" in err
    assert call(files["run"], files["csv"], "-o", out, "--id-column", "none")[0] == 2
    code, _, err = call(files["run"])
    assert (code, err) == (
        2,
        f"error: DATA: missing; expected a data set or a file of molecules after the run {files['run']}\n",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch):
    """Return a function that gives the command its standard input."""

    def give(text: str | bytes | None) -> None:
        content = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", None if content is None else TextIOWrapper(BytesIO(content)))

    return give


def test_auto_predicts_few_smiles_on_the_host_where_a_gpu_would_take_a_file(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, host = MadeEntry("gpu", on_gpu=True, made=NamedBackend("gpu")), MadeEntry("cpu")
    register(monkeypatch, gpu, host)
    run, many = gcnbatch.load(files["run"]), ["CCO"] * FEW
    for data, options, used in (
        ("CCO", {}, host),
        (many[1:], {}, host),
        (many, {}, gpu),
        (files["csv"], {}, gpu),
        ("CCO", {"backend": "gpu"}, gpu),
        ("CCO", {"device": 1}, gpu),
    ):
        run.predict(data, processes=1, **options)
        assert [len(entry.opened) for entry in (gpu, host)] == [used is gpu, used is host]
        gpu.opened.clear()
        host.opened.clear()


def test_a_smiles_in_place_of_a_file_is_one_molecule(call, files, tmp_path) -> None:
    code, out, err = call(files["run"], "C/C=C/C(=O)O")
    assert code == 0
    assert [line.split(",")[:2] for line in out.splitlines()] == [["id", "smiles"], ["1", "C/C=C/C(=O)O"]]
    assert err.splitlines()[0] == "'C/C=C/C(=O)O' is not a file: it is read as a SMILES"
    assert "1 row predicted by 1 model on cpu in" in err
    code, extended, err = call(files["run"], "C/C=C/C(=O)O |w:1.0|")
    assert (code, extended) == (0, out)
    assert err.startswith("1 SMILES has an extension of CXSMILES (|…|), which is left out")
    assert call(files["run"], "CCO", "-o", tmp_path / "out.jsonl", "-q") == (0, "", "")
    found = json.loads((tmp_path / "out.jsonl").read_text())
    assert found["even"] == pytest.approx(gcnbatch.Run(files["run"]).predict("CCO").outputs[0, 0])


def test_a_file_wins_over_a_smiles_and_a_name_like_a_files_is_no_smiles(call, files, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CCO").write_text("")
    assert "error: CCO: unknown ending" in call(files["run"], "CCO")[2]
    assert "error: CC.csv: no such file; expected a readable file" in call(files["run"], "CC.csv")[2]
    for text, reason in (("CC(", "not valid SMILES"), ("C(C)(C)(C)(C)C", "valence")):
        code, out, err = call(files["run"], text)
        assert (code, out) == (2, "")
        assert f"error: '{text}': no such file, and not a SMILES (" in err
        assert reason in err
        assert "or - for standard input; it comes last, after the runs" in err


def test_several_ranks_need_a_file(call, files, typed, monkeypatch) -> None:
    typed("CCO\n")
    monkeypatch.setattr("gcnbatch.inference.inputs.world.current", object)
    for name, shown in (("CCO", "CCO"), ("-", "standard input")):
        message = f"error: {shown}: given to several ranks; expected a file that all of them can read\n"
        assert message in call(files["run"], name)[2]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("CCO\nc1ccccc1\n", ["1", "2"]),
        ("\nCCO first\nc1ccccc1\tsecond\n", ["first", "second"]),
        ("smiles name\nCCO first\n", ["first"]),
        ("SMILES\nCCO\n", ["1"]),
        ("id;smiles\na;CCO\nb;CCN\n", ["a", "b"]),
        ("mol_id,structure\na,CCO\n", ["a"]),
    ],
)
def test_standard_input_is_a_table_or_lines_of_smiles(call, files, typed, text: str, ids: list[str]) -> None:
    typed(text)
    code, out, err = call(files["run"], "-")
    assert code == 0, err
    header, *rows = out.splitlines()
    assert header == "id,even,third,error"
    assert [row.split(",")[0] for row in rows] == ids
    assert not any(row.endswith("SMILES") for row in rows)


def test_an_sdf_file_on_standard_input_is_read(call, files, typed) -> None:
    chem = pytest.importorskip("rdkit.Chem")
    typed(chem.MolToMolBlock(chem.MolFromSmiles("CCO")) + "$$$$\n")
    assert call(files["run"], "-")[1].startswith("id,even,third,error\n1,0.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "standard input: closed; expected a table or lines of SMILES"),
        ("", "standard input: empty file"),
        (
            b"\x89HDF\r\n",
            "standard input: not text; expected a table or lines of SMILES. Give the file's name in place",
        ),
        ("a,b\n1,2\n", "standard input: no column of SMILES; there are 'a', 'b'. Name it with --smiles-column"),
        ("smiles,y\nCCO\n", "standard input, row 1: 1 field; expected 2"),
    ],
)
def test_other_standard_input_is_refused_by_name(call, files, typed, tmp_path, text, message: str) -> None:
    typed(text)
    code, _, err = call(files["run"], "-", "-o", tmp_path / "out.csv")
    assert code == 2
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_standard_input_cannot_be_resumed(call, files, tmp_path) -> None:
    code, _, err = call(files["run"], "-", "-o", tmp_path / "out.csv", "--resume")
    assert (code, err) == (2, "error: --resume: with data from standard input; expected a file of data\n")


def test_explain_reads_a_smiles_and_standard_input(command, files, typed, tmp_path) -> None:
    code, _, err = command("explain", files["run"], "CCO", "-o", tmp_path / "one", "--steps", 4)
    assert code == 0, err
    assert "Explanations of CCO by" in (tmp_path / "one" / "index.html").read_text()
    typed("CCO a\nCCN b\n")
    code, _, err = command("explain", files["run"], "-", "-o", tmp_path / "two", "--steps", 4)
    assert code == 0, err
    assert list(read_rows(tmp_path / "two" / "molecules.csv")) == ["a", "b"]


def test_a_closed_pipe_ends_the_command_quietly(files) -> None:
    command = [sys.executable, "-m", "gcnbatch", "infer", str(files["run"]), str(files["h5"]), "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 0
