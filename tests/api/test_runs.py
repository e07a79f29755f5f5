"""Training and prediction from Python: the same bits as the commands."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcnbatch
from gcnbatch.errors import InputError
from tests.builders import build_graphset
from tests.cli.conftest import call
from tests.inference.runs import read_rows
from tests.training.runs import SMALL, assert_same_run, options

__all__ = ["call"]

pytestmark = pytest.mark.usefixtures("light")
SETTINGS = {"model.widths": [8], "train.batch_size": 8, "train.epochs": 3, "train.learning_rate": 0.01}
SMILES = ["CCO", "c1ccccc1", "CC#N", "CCN", "CC(=O)O", "OCC(O)CO"]
LABELS = [1, 0, 1, 0, 0, 1]


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> gcnbatch.Run:
    """A run on molecules, from a GraphSet."""
    pytest.importorskip("rdkit")
    graphs = gcnbatch.from_smiles(SMILES * 8, [0.2, 1.9, -0.3, 0.1, 0.5, 0.7] * 8, bond_channels=True, name="six (1)")
    with pytest.MonkeyPatch.context() as patch:
        from tests.training.runs import lighten

        lighten(patch)
        return gcnbatch.train(data=graphs, settings=SETTINGS, out=tmp_path_factory.mktemp("api") / "run")


@pytest.mark.slow
def test_python_and_the_command_train_to_the_same_bits(tmp_path: Path, call) -> None:
    assert len(SETTINGS) == len(SMALL)
    gcnbatch.write(tmp_path / "set.h5", build_graphset(40, missing=0.1, max_nodes=6))
    said: list[str] = []
    run = gcnbatch.train({"seed": 3}, tmp_path / "set.h5", settings=SETTINGS, out=tmp_path / "api", say=said.append)
    call("train", "--data", tmp_path / "set.h5", "-o", tmp_path / "cli", "--seed", 3, "-q", *options())
    assert_same_run(tmp_path / "api", tmp_path / "cli")
    assert {path.name for path in (tmp_path / "api").iterdir()} == {path.name for path in (tmp_path / "cli").iterdir()}
    assert json.loads((tmp_path / "api" / "env.json").read_text())["command"] == []
    assert json.loads((tmp_path / "cli" / "env.json").read_text())["command"][0] == "train"
    assert (run.config.seed, run.config.name) == (3, "run")
    assert [row["epoch"] for row in run.history] == [1, 2, 3]


def test_a_set_in_memory_trains_as_its_file_does_and_stays_in_the_run(tmp_path: Path) -> None:
    graphs = build_graphset(40, missing=0.1, max_nodes=6)
    gcnbatch.write(tmp_path / "set.h5", graphs)
    given = gcnbatch.train(data=graphs, settings=SETTINGS, out=tmp_path / "memory")
    stored = gcnbatch.train(data=tmp_path / "set.h5", settings=SETTINGS, out=tmp_path / "file")
    assert given.metrics["test"] == stored.metrics["test"]
    assert given.config.data.path == str(tmp_path / "memory" / "data.h5")
    longer = gcnbatch.resume(given, epochs=4)
    assert [row["epoch"] for row in longer.history] == [1, 2, 3, 4]
    assert "4 epochs" in (tmp_path / "memory" / "report.html").read_text(encoding="utf-8")


def test_options_of_a_gpu_are_reported_where_the_host_computes(tmp_path: Path) -> None:
    graphs = build_graphset(40, missing=0.1, max_nodes=6)
    gcnbatch.write(tmp_path / "set.h5", graphs)
    said: list[str] = []
    host = {"backend": "cpu", "say": said.append}
    run = gcnbatch.train(data=graphs, settings=SETTINGS, device=1, resident="on", out=tmp_path / "run", **host)
    gcnbatch.resume(run, epochs=4, device=1, say=said.append)
    gcnbatch.infer(run, tmp_path / "set.h5", tmp_path / "out.csv", resident="off", **host)
    gcnbatch.infer(run, tmp_path / "set.h5", tmp_path / "out.csv", **host)
    assert [line for line in said if line.startswith("not used: ")] == [
        f"not used: {options}; backend cpu computes on the host"
        for options in ("--device and --resident", "--device", "--resident")
    ]


def test_the_report_of_a_set_in_memory_draws_its_molecules(molecules: gcnbatch.Run) -> None:
    page = (molecules.folder / "report.html").read_text(encoding="utf-8")
    assert "stores no SMILES" not in page
    assert page.count("<svg viewBox") >= 3
    assert "OCC(O)CO" in page


def test_all_kinds_of_data_give_the_same_predictions(molecules: gcnbatch.Run, tmp_path: Path, call) -> None:
    found = molecules.predict(SMILES)
    assert found.outputs.shape == (6, 1)
    assert found.outputs.dtype == np.float64
    graphs = gcnbatch.from_smiles(SMILES, bond_channels=True)
    gcnbatch.write(tmp_path / "six.h5", graphs)
    (tmp_path / "six.csv").write_text("smiles\n" + "\n".join(SMILES) + "\n")
    for data in (np.array(SMILES), iter(SMILES), graphs, tmp_path / "six.h5", str(tmp_path / "six.csv")):
        np.testing.assert_array_equal(molecules.predict(data).outputs, found.outputs)
    call("infer", molecules.folder, tmp_path / "six.csv", "-o", tmp_path / "out.csv", "-q")
    rows = read_rows(tmp_path / "out.csv")
    columns = found.columns()
    assert set(columns) == {"id", *next(iter(rows.values()))}
    assert [np.float32(row["task0"]) for row in rows.values()] == columns["task0"].tolist()


def test_a_library_is_predicted_in_parts_and_a_bad_molecule_keeps_its_row(
    molecules: gcnbatch.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcnbatch.inference import inputs

    monkeypatch.setattr(inputs, "PART_ROWS", 2)
    monkeypatch.setattr("gcnbatch.data.molecule_graphs.CHUNK", 2)
    whole = molecules.predict([*SMILES[:3], "C(", *SMILES[3:]], processes=1)
    assert whole.errors is not None
    assert np.flatnonzero(whole.errors != "").tolist() == [3]
    assert np.isnan(whole.outputs).ravel().tolist() == [False] * 3 + [True] + [False] * 3
    assert whole.ids.tolist() == [str(row) for row in range(1, 8)]


def test_explanations_are_arrays_of_the_graphs_that_were_predicted(molecules: gcnbatch.Run, tmp_path: Path) -> None:
    found = molecules.explain(SMILES[:2])
    graphs = gcnbatch.from_smiles(SMILES[:2], bond_channels=True)
    np.testing.assert_array_equal(found.graphs.x, graphs.x)
    np.testing.assert_allclose(found.outputs, molecules.predict(SMILES[:2]).outputs, rtol=1e-4, atol=1e-5)
    gcnbatch.write(tmp_path / "two.h5", graphs)
    for data in (graphs, tmp_path / "two.h5"):
        np.testing.assert_array_equal(molecules.explain(data).nodes, found.nodes)
    summary = gcnbatch.explain(molecules, tmp_path / "two.h5", tmp_path / "explained")
    assert (summary.molecules, summary.folder) == (2, str(tmp_path / "explained"))


def test_a_run_is_named_after_its_data(molecules: gcnbatch.Run) -> None:
    assert molecules.config.name == "six-1-"


def test_training_works_in_a_thread(tmp_path: Path) -> None:
    runs: list[gcnbatch.Run] = []
    graphs = build_graphset(20, max_nodes=4)
    about = {"settings": SETTINGS, "epochs": 1, "out": tmp_path / "run"}
    thread = threading.Thread(target=lambda: runs.append(gcnbatch.train(data=graphs, **about)))
    thread.start()
    thread.join()
    assert "test" in runs[0].metrics


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "data: no molecule; expected at least one"),
        (["CCO", 3], "data, row 2: int; expected a SMILES"),
        ("CC(", "'CC(': no such file, and not a SMILES (not valid SMILES); expected a data set"),
    ],
)
def test_data_that_are_none_are_refused(molecules: gcnbatch.Run, data: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        molecules.predict(data)


def test_wrong_arguments_are_refused_and_leave_nothing(tmp_path: Path, molecules: gcnbatch.Run) -> None:
    graphs = build_graphset(20)
    with pytest.raises(InputError, match=r"gcnbatch\.write: called with GraphSet, str; expected a path, then"):
        gcnbatch.write(graphs, "set.h5")
    with pytest.raises(InputError, match=r"config: GraphSet; expected a path, tables or a Config\. Give data as data="):
        gcnbatch.train(graphs)
    with pytest.raises(InputError, match=r"data: GraphSet; expected the name of a file, or a SMILES"):
        gcnbatch.infer(molecules, graphs)
    with pytest.raises(InputError, match="data: ndarray; expected a path or a GraphSet"):
        gcnbatch.train(data=graphs.x, out=tmp_path / "run")
    with pytest.raises(InputError, match="baseline: given with graphs without SMILES"):
        gcnbatch.train(data=graphs, baseline=True, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"configuration: train\.epoch: unknown key"):
        gcnbatch.train({"train": {"epoch": 3}}, graphs, out=tmp_path / "run")
    graphs.src[0] = 999
    with pytest.raises(InputError, match=r"edges/src\[0\]: node 999"):
        gcnbatch.train(data=graphs, out=tmp_path / "run")
    with pytest.raises(InputError, match="run: not a run folder; expected a folder with config"):
        gcnbatch.Run.load(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    rows = [f"{'C' * n}{smiles},{label}\n" for n in range(8) for smiles, label in zip(SMILES, LABELS, strict=True)]
    Path("assay.csv").write_text("smiles,hit\n" + "".join(rows), encoding="utf-8")
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(import gcnbatch\n.*?)```", readme, re.DOTALL)
    assert example is not None
    found: dict[str, Any] = {}
    few = 'epochs=1, settings={"model.widths": [4], "model.head": [4], "split.cross_fit": 2}'
    short = example[1].replace('"assay.csv"', f'"assay.csv", {few}')
    exec(short, found)
    assert found["predictions"]["id"].tolist() == ["1", "2"]
    assert "roc_auc" in capsys.readouterr().out
