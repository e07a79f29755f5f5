"""``gcnbatch explain``: its files, what it selects, and what it leaves behind when it fails."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from gcnbatch.cli.app import app
from gcnbatch.data.graphs import GraphSet
from gcnbatch.explanation import Explainer
from gcnbatch.explanation.command import ExplanationSummary, Output, explain
from gcnbatch.inference import inputs
from gcnbatch.inference.ensemble import infer
from tests.builders import build_graphset
from tests.inference.runs import read_rows

HOSTILE = "<script>alert(1)</script>\u202e/../x"
TABLE = f"mol_id,structure\nA,CCO\nB,not a molecule\nC,c1ccncc1\n{HOSTILE},CC(=O)OCC\nD,[Na+].[Cl-]\n"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="session")
def why(
    chemistry: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, ExplanationSummary]:
    """The folder of explanations, the table that they explain, and the summary."""
    folder = tmp_path_factory.mktemp("why")
    data = folder / "new.csv"
    data.write_text(TABLE, encoding="utf-8")
    return folder / "why", data, explain([chemistry[0]], data, folder / "why", steps=8, backend="cpu", quiet=True)


def test_atoms_and_bonds_are_those_of_the_molecules(why: tuple[Path, Path, ExplanationSummary]) -> None:
    folder, _, summary = why
    assert (summary.molecules, summary.unreadable, summary.steps, summary.backend) == (4, 1, {8: 4}, "cpu")
    atoms, bonds = table(folder / "atoms.csv"), table(folder / "bonds.csv")
    assert list(atoms[0]) == ["id", "atom", "symbol", "even", "third", "even_alone", "third_alone"]
    of_first = [(row["atom"], row["symbol"]) for row in atoms if row["id"] == "A"]
    assert of_first == [("0", "C"), ("1", "C"), ("2", "O")]
    assert [(row["begin"], row["end"], row["channel"]) for row in bonds if row["id"] == "A"] == [
        ("0", "1", "single"),
        ("1", "2", "single"),
    ]
    assert {row["channel"] for row in bonds if row["id"] == "C"} == {"aromatic"}


def test_sums_agree_with_the_rows_and_predictions_with_infer(
    why: tuple[Path, Path, ExplanationSummary], chemistry: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    folder, data, summary = why
    atoms = table(folder / "atoms.csv")
    infer([chemistry[0]], data, str(tmp_path / "out.csv"), backend="cpu", quiet=True)
    predicted = read_rows(tmp_path / "out.csv")
    molecules = table(folder / "molecules.csv")
    readable = [row for row in molecules if not row["error"]]
    assert len(readable) == 4 * 2
    for row in readable:
        total = sum(float(atom[row["task"]]) for atom in atoms if atom["id"] == row["id"])
        assert total == pytest.approx(float(row["sum"]), abs=1e-5)
        missed = float(row["sum"]) - (float(row["output"]) - float(row["baseline"]))
        assert missed == pytest.approx(float(row["completeness_error"]), abs=1e-5)
        assert abs(missed) <= summary.largest_error + 1e-6
        assert row["prediction"] == predicted[row["id"]][row["task"]]
        assert 1 / (1 + np.exp(-float(row["output"]))) == pytest.approx(float(row["prediction"]), abs=1e-5)
    (bad,) = [row for row in molecules if row["error"]]
    assert (bad["id"], bad["task"], bad["sum"]) == ("B", "", "")


def test_rows_keep_the_order_of_the_input(
    why: tuple[Path, Path, ExplanationSummary], chemistry: tuple[Path, Path, Path], tmp_path: Path, monkeypatch
) -> None:
    def names(folder: Path) -> list[str]:
        return list(dict.fromkeys(row["id"] for row in table(folder / "molecules.csv")))

    assert names(why[0])[:3] == ["A", "B", "C"]
    texts = ["CCO", "xx", "yy", "c1ccncc1", "C(", "CC", "zz"]
    many = tmp_path / "many.csv"
    many.write_text("mol_id,structure\n" + "".join(f"M{at},{text}\n" for at, text in enumerate(texts)))
    about = {"steps": 1, "backend": "cpu", "quiet": True, "output": Output(drawings=False)}
    for size in (4096, 2):
        monkeypatch.setattr(inputs, "PART_ROWS", size)
        monkeypatch.setattr("gcnbatch.data.molecule_graphs.CHUNK", size)
        explain([chemistry[0]], many, tmp_path / f"in{size}", **about)
        assert names(tmp_path / f"in{size}") == [f"M{at}" for at in range(7)]
    explain([chemistry[0]], many, tmp_path / "top", top=9, **about)
    assert names(tmp_path / "top")[3:] == ["M1", "M2", "M4", "M6"]
    assert "4 rows could not be read: see column error of molecules." in (tmp_path / "top" / "index.html").read_text()


def test_a_molecule_too_large_to_draw_says_so(
    chemistry: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcnbatch.data.molecule_drawings.MOST_ATOMS", 5)
    (tmp_path / "new.csv").write_text("mol_id,structure\nsmall,CCO\nring,c1ccncc1\nchain,CCCCCCC\n")
    said: list[str] = []
    about = {"steps": 1, "backend": "cpu", "quiet": True, "say": said.append}
    summary = explain([chemistry[0]], tmp_path / "new.csv", tmp_path / "why", **about)
    assert (summary.molecules, summary.drawn) == (3, 1)
    assert said == ["2 molecules are too large to draw: 'ring' has 6 atoms, more than 5."]
    page = (tmp_path / "why" / "index.html").read_text(encoding="utf-8")
    assert said[0].replace("'", "&#x27;") in page
    assert ">not drawn: 6 atoms, more than 5<" in page
    assert ">not drawn: 7 atoms, more than 5<" in page


def test_without_the_libraries_of_a_desktop_it_says_so_and_keeps_the_symbols(
    chemistry: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rdkit.Chem.Draw", None)
    (tmp_path / "new.csv").write_text("mol_id,structure\nsmall,CCO\n")
    said: list[str] = []
    about = {"steps": 1, "backend": "cpu", "quiet": True, "say": said.append}
    assert explain([chemistry[0]], tmp_path / "new.csv", tmp_path / "why", **about).drawn == 0
    assert said == ["no drawings: RDKit may miss libraries of a desktop: apt-get install libxrender1 libxext6"]
    assert [row["symbol"] for row in table(tmp_path / "why" / "atoms.csv")] == ["C", "C", "O"]


def test_drawings_are_svg_with_a_panel_per_task(why: tuple[Path, Path, ExplanationSummary]) -> None:
    folder, _, summary = why
    files = sorted((folder / "molecules").iterdir())
    assert [file.name for file in files] == ["1_A.svg", "3_C.svg", "4__script_alert_1_script_.._x.svg", "5_D.svg"]
    assert summary.drawn == len(files)
    for file in files:
        root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
        texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
        assert texts[::2] == ["even", "third"]
        assert "script" not in file.read_text(encoding="utf-8")


def test_the_page_shows_hostile_names_as_text(why: tuple[Path, Path, ExplanationSummary]) -> None:
    page = (why[0] / "index.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page
    assert page.count("<script>") == 1
    assert page.count("<circle") == 3 + 6 + 6 + 2


def test_features_of_whole_molecules_have_a_table_and_a_share_of_the_sum(
    described: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    run, data, _ = described
    summary = explain([run], data, tmp_path / "why", tasks=["third"], backend="cpu", quiet=True)
    atoms, features, molecules = map(table, sorted((tmp_path / "why").glob("[afm]*.csv")))
    assert list(features[0]) == ["id", "feature", "value", "third"]
    assert 0 < sum(row["feature"] == "assay" for row in features) <= 40
    assert float(next(row["value"] for row in features if row["feature"] == "MolWt")) == pytest.approx(46.069)
    for row in molecules:
        of_features, of_atoms = (
            sum(float(one["third"]) for one in rows if one["id"] == row["id"]) for rows in (features, atoms)
        )
        assert of_features == pytest.approx(float(row["features"]), abs=1e-4)
        assert of_features + of_atoms == pytest.approx(float(row["sum"]), abs=1e-4)
    assert summary.inexact == 0
    page = (tmp_path / "why" / "index.html").read_text(encoding="utf-8")
    assert "The model also reads features of whole molecules." in page
    assert page.count("data-strongest") == len(molecules)
    assert ", features " in (tmp_path / "why" / "molecules" / "1_M0.svg").read_text(encoding="utf-8")


def test_top_and_task_select(chemistry: tuple[Path, Path, Path], tmp_path: Path) -> None:
    run, _, data = chemistry
    infer([run], data, str(tmp_path / "out.csv"), backend="cpu", quiet=True)
    rows = read_rows(tmp_path / "out.csv")
    best = sorted(rows, key=lambda name: -float(rows[name]["third"]))[:3]
    command = ["explain", str(run), str(data), "-o", str(tmp_path / "why"), "--top", "3", "--task", "third", "--json"]
    done = CliRunner().invoke(app, [*command, "--backend", "cpu", "--steps", "2", "--no-drawings", "-q"])
    summary = json.loads(done.stdout)
    assert (summary["tasks"], summary["molecules"], summary["drawn"]) == (["third"], 3, 0)
    assert [row["id"] for row in table(tmp_path / "why" / "molecules.csv")] == best
    assert not (tmp_path / "why" / "molecules").exists()


def test_a_set_without_molecules_gets_tables_and_a_page(trained: tuple[Path, Path], tmp_path: Path) -> None:
    summary = explain([trained[0]], trained[1], tmp_path / "why", steps=2, backend="cpu", quiet=True)
    assert (summary.molecules, summary.drawn) == (24, 0)
    assert {row["symbol"] for row in table(tmp_path / "why" / "atoms.csv")} == {""}
    assert "<svg viewBox" not in (tmp_path / "why" / "index.html").read_text(encoding="utf-8")


def test_parquet_in_place_of_csv(trained: tuple[Path, Path], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    output = Output(parquet=True)
    explain([trained[0]], trained[1], tmp_path / "why", steps=2, backend="cpu", output=output, quiet=True)
    assert parquet.read_table(tmp_path / "why" / "atoms.parquet").num_rows == build_graphset(24, seed=3).n_nodes


def test_an_interrupted_command_leaves_nothing(
    chemistry: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, calls = Explainer.explain, []

    def interrupted(self: Explainer, graphs: GraphSet, *about: object) -> object:
        calls.append(graphs)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return right(self, graphs, *about)

    monkeypatch.setattr(Explainer, "explain", interrupted)
    monkeypatch.setattr(inputs, "PART_ROWS", 1)
    many = tmp_path / "many.csv"
    many.write_text("mol_id,structure\n" + "".join(f"M{at},CCO\n" for at in range(300)))
    with pytest.raises(KeyboardInterrupt):
        explain([chemistry[0]], many, tmp_path / "why", steps=1, backend="cpu", quiet=True)
    assert len(calls) == 2
    assert not (tmp_path / "why").exists()


def test_bad_rows_and_missing_data_are_refused(chemistry: tuple[Path, Path, Path], tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(TABLE, encoding="utf-8")
    command = ["explain", str(chemistry[0]), str(tmp_path / "new.csv"), "-o", str(tmp_path / "why"), "-q"]
    done = CliRunner().invoke(app, [*command, "--on-bad-row", "fail", "--backend", "cpu"])
    assert "row 2, id B" in str(done.exception)
    assert not (tmp_path / "why").exists()
    assert "DATA: missing" in str(CliRunner().invoke(app, ["explain", str(chemistry[0])]).exception)
