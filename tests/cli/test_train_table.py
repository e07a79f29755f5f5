"""``gcnbatch train assay.csv``: a table is imported into the run's folder and trained by a recipe."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gcnbatch
from gcnbatch import progress
from gcnbatch.data import synthetic
from gcnbatch.data.store import Dataset
from gcnbatch.workers.pool import Workers
from tests.builders import small_molecules

pytest.importorskip("rdkit")
pytestmark = pytest.mark.usefixtures("light")

Call = Callable[..., tuple[int, str, str]]
SMALL = ("--epochs", 1, "--set", "model.widths=[4]", "--set", "model.head=[4]", "--set", "split.cross_fit=2")
BACKEND = ("--backend", "cpu")
PLAIN = ("--epochs", 1, "--set", "model.widths=[4]", *BACKEND)


def table(path: Path, columns: str = "smiles,logS", more: Callable[[int], str] = lambda row: "") -> Path:
    """Write 40 molecules with a target that their structure gives, a row that is none, and further cells of each."""
    rows = small_molecules(8)
    cells = [f"{text},{text.count('O') - 0.3 * len(text):.2f}{more(row)}" for row, text in enumerate(rows)]
    text = "\n".join([columns, *cells, f"no molecule,1.0{more(0)}"]) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text.replace(",", "\t") if path.suffix == ".tsv" else text, encoding="utf-8")
    return path


def config_of(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def assay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table(tmp_path_factory.mktemp("tables") / "assay.csv")


def test_a_table_and_a_run_are_all_that_is_typed(call: Call, tmp_path: Path, assay: Path) -> None:
    run = tmp_path / "run"
    code, out, err = call("train", assay, "-o", run, *SMALL, *BACKEND)
    assert code == 0, err
    said = err.splitlines()
    assert said[:2] == ["'smiles': smiles", "'logS': target, regression, 41 labels"]
    assert f"1 of 41 rows left out; the reasons are in {run}/data.skipped.csv" in said
    assert re.search(r"^out of fold +", out, re.MULTILINE)
    assert re.search(r"^member alone +weight +RMSE, out of fold +RMSE, test\nkernel +.*\ntrees +.*\ngcn ", out, re.M)
    assert out.splitlines()[-1] == str(run)
    with (run / "data.skipped.csv").open(newline="") as file:
        assert [row["smiles"] for row in csv.DictReader(file)] == ["no molecule"]
    config = config_of(run)
    assert (config["name"], config["data"]["path"]) == ("assay", str(run / "data.h5"))
    assert config["molecules"]["fingerprint"] == "morgan,morgan-feature,atompair"
    assert config["train"]["mixture"] is True
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(run, moved)
    predictions = tmp_path / "p.csv"
    assert call("infer", moved, assay, "-o", predictions, *BACKEND, "-q")[0] == 0
    with predictions.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 41
    assert rows[-1]["logS"] == ""
    assert rows[-1]["error"]
    code, out, err = call("train", "--resume", moved, "--json")
    assert code == 0, err
    assert json.loads(out)["run"] == str(moved)
    assert call("report", moved)[0] == 0
    (moved / "metrics.json").unlink()
    (moved / "part2" / "metrics.json").unlink()
    code, out, err = call("train", "--resume", moved, "-q")
    assert (code, out) == (0, f"{moved}\n"), err


def test_processes_that_start_with_the_command_change_nothing(
    call: Call, tmp_path: Path, assay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They start for files of 64 KB and more; here they convert and predict, and end with the work on the table."""
    pools: list[Workers] = []

    def noted(*given: Any, **named: Any) -> Workers:
        pools.append(Workers(*given, **named))
        return pools[-1]

    monkeypatch.setattr("gcnbatch.data.featurizer_worker.cores", lambda: 2)
    monkeypatch.setattr("gcnbatch.data.featurizer_worker.Workers", noted)
    found = []
    for name, size in (("late", 1 << 16), ("early", 1)):
        monkeypatch.setattr("gcnbatch.data.featurizer_worker.SMALL_FILE", size)
        run, out = tmp_path / name, tmp_path / f"{name}.csv"
        assert call("train", assay, "--recipe", "gcn", "-q", "-o", run, *SMALL, *BACKEND)[0] == 0
        assert call("infer", run, assay, "-q", "-o", out, *BACKEND)[0] == 0
        found.append(
            (out.read_bytes(), (run / "predictions.csv").read_bytes(), (run / "data.skipped.csv").read_bytes())
        )
        assert len(pools) == (0 if name == "late" else 2)
    assert found[0] == found[1]
    for pool in pools:
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(int)


def test_python_trains_a_table_as_the_command_does(tmp_path: Path, assay: Path) -> None:
    said: list[str] = []
    settings = {"model.widths": [4], "model.head": [4], "split.cross_fit": 2}
    run = gcnbatch.train(data=assay, epochs=1, settings=settings, backend="cpu", out=tmp_path / "run", say=said.append)
    assert said[0] == "'smiles': smiles"
    assert [member["name"] for member in run.metrics["members"]] == ["kernel", "trees", "gcn"]


@pytest.mark.parametrize("name", ["assay.tsv", "assay.csv.gz"])
def test_a_recipe_and_a_configuration_say_what_a_molecule_becomes(call: Call, tmp_path: Path, name: str) -> None:
    source = table(tmp_path / name)
    code, _, err = call("train", source, "--recipe", "molecules", "-o", tmp_path / "recipe", *PLAIN)
    assert code == 0, err
    with Dataset(tmp_path / "recipe" / "data.h5") as dataset:
        assert dataset.header.channel_names[-3:] == ("conjugated", "Z", "E")
        assert dataset.header.graph_feature_counts == 0
        assert len(dataset.header.graph_feature_names) > 100
    (tmp_path / "mine.toml").write_text(f'[data]\npath = "{source}"\n[molecules]\npositional = "rw2"\n')
    code, _, err = call("train", tmp_path / "mine.toml", "-o", tmp_path / "mine", *PLAIN)
    assert code == 0, err
    with Dataset(tmp_path / "mine" / "data.h5") as dataset:
        assert dataset.header.feature_names[-2:] == ("walk=2", "walk=3")
        assert dataset.header.channel_names == ("bond",)


def test_the_split_of_the_table_is_used_unless_another_is_asked_for(call: Call, tmp_path: Path) -> None:
    part = {0: ",test", 1: ",train", 2: ",train"}
    source = table(tmp_path / "ace.csv", "smiles,y,split", lambda row: part[row % 3])
    about = (source, "--recipe", "gcn", *SMALL, *BACKEND, "-q")
    code, _, err = call("train", *about, "-o", tmp_path / "a")
    assert code == 0, err
    assert json.loads((tmp_path / "a" / "splits.json").read_text())["test"] == list(range(0, 40, 3))
    assert json.loads((tmp_path / "a" / "metrics.json").read_text())["split"]["name"] == "split"
    started = ("--from", tmp_path / "a" / "part1", "-o", tmp_path / "c", *BACKEND, "-q", "--epochs", 1)
    code, _, err = call("train", source, *started)  # with the features of that run
    assert code == 0, err
    assert config_of(tmp_path / "c")["molecules"] == config_of(tmp_path / "a")["molecules"]
    code, _, err = call("train", *about, "-o", tmp_path / "b", "--set", "split.kind=random")
    assert code == 0, err
    assert len(json.loads((tmp_path / "b" / "splits.json").read_text())["test"]) == 4


def test_all_rows_can_train_and_every_step_shows_progress(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    source = table(tmp_path / "ace.csv", "smiles,y,split", lambda row: ",test" if row % 2 else ",train")
    code, out, err = call("train", source, "--use-all", "-o", tmp_path / "run", *SMALL, *BACKEND)
    assert code == 0, err
    for line in ("41 of 41 molecules, ", "epoch 1/1: ", r"kernel: (\d+) of \1 steps, ", "trees: 200 of 200 steps, "):
        assert re.search(f"^{line}", err, re.MULTILINE), line
    assert "random split, seed 0: 40 training rows\n" in out
    assert not re.search("^test", out, re.MULTILINE)
    split = json.loads((tmp_path / "run" / "splits.json").read_text())
    assert (len(split["train"]), split["test"]) == (40, [])


def test_copies_of_a_molecule_are_on_one_side_of_the_test_part(call: Call, tmp_path: Path) -> None:
    rows = [f"{text},{len(text)}.5" for text in small_molecules(8)]
    twice = [row.replace("c1ccccc1", "c1cc(ccc1)", 1) for row in rows]
    source = tmp_path / "copies.csv"
    source.write_text("\n".join(["smiles,y", *rows, *twice]) + "\n")
    about = ("--recipe", "gcn", *SMALL, *BACKEND, "-q", "--set", "split.test=0.3")
    code, _, err = call("train", source, "-o", tmp_path / "run", *about)
    assert code == 0, err
    test = json.loads((tmp_path / "run" / "splits.json").read_text())["test"]
    assert 0 < len(test) < 80
    assert {row % 40 for row in test if row < 40} == {row % 40 for row in test if row >= 40}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["two.csv"],
            "two.csv: not clear which of the columns are targets ('a', 'b'). Name them with --target-columns.",
        ),
        (["none.csv"], "none.csv: no such file; expected a readable file"),
        (["two.csv", "--target-columns", "c"], "two.csv: no target column 'c'. "),
        (["two.csv", "--target-columns", "a", "--on-bad-row", "fail"], "two.csv: 1 of 41 rows gives no graph: row 41"),
        (["two.csv", "--recipe", "bst"], "configuration 'bst': not shipped. Did you mean 'best'?"),
        (["two.csv", "--data", "quick.h5"], "--data: given with two.csv, which is data, too; expected one of them"),
        (
            ["cora", "--data", "two.csv", "--recipe", "best"],
            "--recipe: given with a configuration; expected one of them",
        ),
        (
            ["--data", "quick.h5", "--decimal", ",", "--id-column", "x", "--set", "molecules.positional=rw2"],
            "--id-column, --decimal, --set molecules.positional: given with quick.h5; expected a table of molecules. A "
            "data set keeps what its import made.",
        ),
        (["--on-bad-row", "fail"], "--on-bad-row: given with quickstart; expected a table of molecules."),
        (
            ["quick.h5"],
            "train.mixture: quick.h5 has no .*fingerprint, descriptors; expected molecules with both. Give the "
            "table of the molecules (gcnbatch train TABLE), or train the networks alone (--recipe gcn).",
        ),
        (
            ["nodes.h5"],
            "split.cross_fit: given for a data set of nodes; expected one file of graphs, as of molecules. Name a "
            "configuration without it, such as cora for nodes.",
        ),
        (
            ["molecules", "--data", "two.csv", "--use-all"],
            "--use-all: given without split.cross_fit; expected a recipe that has it, such as best or gcn",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line_and_leaves_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "two.csv", "smiles,a,b", lambda row: f",{row}.25")
    synthetic.write("quickstart", tmp_path / "quick.h5", graphs=40)
    if "nodes.h5" in words:
        synthetic.write("citation", tmp_path / "nodes.h5", scale=0.1)
    before = sorted(tmp_path.iterdir())
    code, out, err = call("train", *words, *BACKEND)
    assert (code, out) == (2, "")
    said = err.replace(f"{tmp_path}/", "")
    assert re.match(re.escape(f"error: {message}").replace(r"\.\*", ".*"), said), said
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_data_set_alone_is_trained_by_the_recipe(call: Call, tmp_path: Path, assay: Path) -> None:
    options = ("--descriptors", "rdkit2d", "--fingerprint", "morgan", "--on-bad-row", "skip")
    assert call("data", "import", "smiles", assay, "-o", tmp_path / "set.h5", *options)[0] == 0
    code, out, err = call("train", tmp_path / "set.h5", "-o", tmp_path / "run", *SMALL, *BACKEND)
    assert code == 0, err
    assert "member alone" in out
    assert config_of(tmp_path / "run")["name"] == "set"
    assert not (tmp_path / "run" / "data.h5").exists()
