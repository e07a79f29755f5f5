"""``gcnbatch train`` through the real entry point: stdout, stderr, exit codes, options over TOML.

The first run is a process of its own; the other tests call the entry point here, which saves the imports.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gcnbatch import progress
from gcnbatch.api.options import gather
from gcnbatch.cli import app
from gcnbatch.errors import InputError
from gcnbatch.metrics import METRICS
from tests.training.runs import gcnbatch, lighten, options, write_set

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "my set (1).h5"
    write_set(path)
    return path


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompletedProcess[str]]:
    """Return the folder of a run and what the command printed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["gcnbatch", *map(str, ("train", "--data", data, "-o", folder, *options()))]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        patch.setattr(sys, "argv", words)
        patch.setattr(progress, "LINE_SECONDS", math.inf)
        with pytest.raises(SystemExit) as left:
            app.main()
    assert not left.value.code
    return folder, CompletedProcess(words, 0, out.getvalue(), err.getvalue())


@pytest.mark.parametrize("more", [(), ("--ensemble", "2")])
def test_a_published_split_of_train_and_test_trains(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    lighten(monkeypatch)
    parts = ["train"] * 16 + ["test"] * 4
    lines = [f"{'C' * (row + 1)}O,{row * 0.3},{part}\n" for row, part in enumerate(parts)]
    (tmp_path / "ace.csv").write_text("smiles,y,split\n" + "".join(lines))
    data, run = tmp_path / "ace.h5", tmp_path / "run"
    code, out, _ = call("data", "import", "smiles", tmp_path / "ace.csv", "-o", data, "--split-column", "split")
    assert not code, out
    words = "--epochs", "1", "--set", "split.kind=predefined", "--set", "split.valid=0.25", *more
    code, out, err = call("train", "--data", data, "-o", run, "--set", "model.widths=[4]", *words)
    assert not code, err
    assert err.count("split 'split' has no validation rows: the share 0.25 of its 16 training rows validates") == 1
    assert "predefined split 'split', random validation rows, seed 0" in out
    found = [json.loads(path.read_text()) for path in run.rglob("splits.json")]
    assert len(found) == (2 if more else 1)
    for split in found:
        assert (len(split["valid"]), split["test"]) == (4, [16, 17, 18, 19])
        assert sorted(split["train"] + split["valid"]) == list(range(16))


def resolved(folder: Path) -> dict[str, dict[str, object]]:
    return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))


def test_without_arguments_the_quickstart_ends_with_test_figures_and_the_runs_path(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = gcnbatch("train", "--epochs", 1, cwd=tmp_path)
    lines = done.stdout.splitlines()
    folder = tmp_path / lines[-1]
    assert re.fullmatch(r"runs/quickstart-\d{8}-\d{6}", lines[-1])
    assert (folder / "metrics.json").is_file()
    assert any(line.startswith("test ") for line in lines)
    assert re.fullmatch(
        r"epoch 1/1: train loss \S+, valid loss \S+, ROC-AUC \S+, best epoch 1, \S+ graphs/s",
        done.stderr.splitlines()[-1],  # behind lines of progress on a slow machine
    )
    monkeypatch.chdir(tmp_path)
    assert call("train", "--resume", lines[-1]) == (0, done.stdout, f"{lines[-1]} is already finished\n")


def test_the_table_shows_every_part_and_no_colour(finished: tuple[Path, CompletedProcess[str]]) -> None:
    folder, done = finished
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    lines = done.stdout.splitlines()
    assert lines[0] == f"cpu, random split, seed 0: 32 / 4 / 4 rows; best epoch {metrics['best_epoch']} of 3"
    assert lines[1].split() == ["ROC-AUC", "average", "precision", "accuracy", "balanced", "accuracy", "F1", "MCC"]
    assert [line.split()[0] for line in lines[2:5]] == ["train", "valid", "test"]
    for line in lines[2:5]:
        part, *cells = line.split()
        for name, cell in zip(METRICS["binary"], cells, strict=True):
            value = metrics[part][name]
            assert cell == "–" if value is None else float(cell) == pytest.approx(value, rel=1e-3)
    assert lines[5].startswith("note: task 'task0' is not calibrated: ")
    assert lines[6:] == [str(folder)]
    assert "\x1b" not in done.stdout + done.stderr
    assert all(line.startswith("epoch ") for line in done.stderr.splitlines())


@pytest.mark.usefixtures("light")
def test_several_regression_tasks_have_a_line_each(call: Call, tmp_path: Path) -> None:
    write_set(tmp_path / "values.h5", target="regression")
    out = call("train", "--data", tmp_path / "values.h5", "-o", tmp_path / "run", *options())[1].splitlines()
    assert out[1].split() == ["R²", "Spearman", "ρ"]
    place = next(row for row, line in enumerate(out) if line.startswith("test, by task"))
    assert out[place].split() == ["test,", "by", "task", "labelled", "RMSE", "MAE", "R²"]
    assert [line.split()[0] for line in out[place + 1 : place + 3]] == ["task0", "task1"]


def test_a_run_without_a_name_is_named_after_its_data(finished: tuple[Path, CompletedProcess[str]]) -> None:
    assert resolved(finished[0])["name"] == "my-set-1-"


def test_json_is_all_of_stdout(call: Call, finished: tuple[Path, CompletedProcess[str]]) -> None:
    folder, _ = finished
    found = json.loads(call("train", "--resume", folder, "--json")[1])
    assert found.pop("run") == str(folder)
    assert found == json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def test_quiet_prints_the_path_alone(call: Call, finished: tuple[Path, CompletedProcess[str]]) -> None:
    assert call("train", "--resume", finished[0], "--quiet") == (0, f"{finished[0]}\n", "")


@pytest.mark.usefixtures("light")
def test_folds_show_mean_and_deviation(call: Call, tmp_path: Path, data: Path) -> None:
    _, out, err = call("train", "--data", data, "--folds", 2, "-o", tmp_path / "run", *options())
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert out.startswith("2 folds, cpu, random split, seed 0: mean ± standard deviation\n")
    mean, std = (metrics[key]["test"]["accuracy"] for key in ("mean", "std"))
    assert f"{mean:.4f} ± {std:.4f}" in out
    said = [line.partition(":")[0] for line in err.splitlines() if not line.startswith("valid rows")]
    assert said[0] == "fold 1 of 2"
    assert said[-1] == "epoch 3/3"
    assert said.count("epoch 3/3") == 2
    assert "fold 2 of 2" in said


@pytest.mark.usefixtures("light")
def test_options_win_over_toml_and_assignments_over_both(call: Call, tmp_path: Path, data: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(
        'seed = 1\n[data]\nsynthetic = "tox21"\n[model]\nwidths = [4]\n[train]\nepochs = 9\nbatch_size = 9\n',
        encoding="utf-8",
    )
    given = ["--data", data, "--epochs", 5, "--batch-size", 11, "--seed", 3, "--backend", "cpu", "--resident", "off"]
    assert call("train", config, *given, "--set", "train.epochs=2", "-o", tmp_path / "run", "--quiet")[0] == 0
    found = resolved(tmp_path / "run")
    assert found["train"]["epochs"] == 2
    assert found["train"]["batch_size"] == 11
    assert found["model"]["widths"] == [4]
    assert found["cuda"]["resident"] == "off"
    assert (found["name"], found["seed"], found["backend"]) == ("mine", 3, "cpu")
    assert found["data"] == {"path": str(data), "synthetic": "", "memory_mb": 4096}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "train.epoch=3"], "error: configuration: train.epoch: unknown key. Did you mean 'train.epochs'?\n"),
        (
            ["--batch-size", 0],
            "error: configuration: train.batch_size: 0; expected a whole number, at least 1 and at most 1000000\n",
        ),
        (["--resident", "maybe"], "error: configuration: cuda.resident: 'maybe'; expected 'auto', 'on' or 'off'\n"),
        (["bad.toml"], "error: bad.toml: train.epoch: unknown key. Did you mean 'train.epochs'?\n"),
        (["bad.toml", "--set", "train.epoch=3"], "error: configuration: train.epoch: unknown key."),
        (["none.toml"], "error: none.toml: no such file; expected a TOML configuration. See configs/ for examples.\n"),
        (["--data", "none.h5"], "error: .*none.h5: no such file; expected an HDF5 data set"),
        (["--resume", "none"], "error: none: not a run folder; expected a folder with config.toml. Start with"),
        (
            ["c.toml", "--resume", "r", "--epochs", 3, "--set", "seed=1", "-o", "x"],
            "error: --resume: together with CONFIG, seed=1, --out; expected nothing but --backend",
        ),
        (["--set", "data.memory_mb=16", "--set", "train.epochs=none"], "error: configuration: train.epochs: 'none'"),
        (
            ["--epochs", "many"],
            "error: Invalid value for '--epochs': Input should be a valid integer, .*train --help'.\n",
        ),
        (["--nonsense"], "error: No such option: --nonsense.*See '.*gcnbatch train --help'.\n"),
    ],
)
def test_wrong_input_is_one_clear_line_and_code_2(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], message: str
) -> None:
    (tmp_path / "bad.toml").write_text("[train]\nepoch = 3\n")
    monkeypatch.chdir(tmp_path)
    code, out, err = call("train", *arguments)
    assert (code, out) == (2, "")
    assert re.match(re.escape(message).replace(r"\.\*", ".*"), err)
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad.toml"]


def test_every_key_is_listed(call: Call) -> None:
    from gcnbatch.config import keys

    lines = call("train", "--keys")[1].splitlines()
    assert [line.split()[0] for line in lines] == list(keys())
    shown = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert shown["train.epochs"] == "50 passes over the training rows (a whole number, at least 1 and at most 1000000)"
    assert shown["model.widths"].startswith("[64, 64] or [16] ")
    assert shown["model.widths"].endswith("(list; each a whole number, at least 1 and at most 65536)")
    assert shown["split.kind"].endswith("(random, stratified, scaffold, cluster, time, predefined)")
    assert shown["model.kind"].endswith("(chemgcn, kipf)")
    assert shown["train.standardize"].endswith("(true, false)")
    assert "cpu" in shown["backend"].partition("(")[2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("set.h5", "set.h5: a data set; expected a TOML configuration. Give it as --data set.h5."),
        (
            "my.csv.gz",
            "my.csv.gz: a table of molecules; expected a TOML configuration. Import it: gcnbatch data import smiles "
            "my.csv.gz -o my.h5; then give --data my.h5.",
        ),
    ],
)
def test_data_in_place_of_the_configuration_are_refused_with_the_way_on(call: Call, name: str, message: str) -> None:
    code, out, err = call("tune", name)
    assert (code, out, err) == (2, "", f"error: {message}\n")


def test_help_shows_examples_as_they_are_typed(call: Call) -> None:
    shown = call("train", "--help")[1]
    assert "gcnbatch train --data my.h5 --folds 5" in shown
    assert "--resume" in shown


def test_a_bare_name_is_a_shipped_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = gather(Path("cora"), {}, {"train.epochs": 3})
    assert (tree["name"], tree["model"]["kind"], tree["train"]["epochs"]) == ("cora", "kipf", 3)
    with pytest.raises(InputError, match="configuration 'coro': not shipped"):
        gather(Path("coro"), {}, {})


@pytest.mark.usefixtures("light")
def test_from_takes_the_model_of_the_run_and_freezes_its_layers(
    call: Call, tmp_path: Path, finished: tuple[Path, CompletedProcess[str]]
) -> None:
    folder, _ = finished
    write_set(tmp_path / "tasks.h5", n_tasks=1)
    given = ("--data", tmp_path / "tasks.h5", "--from", folder, "--freeze", "conv1", "--epochs", 1)
    code, _, said = call("train", *given, "--set", "model.dropout=0.1", "-o", tmp_path / "run")
    assert (code, said.splitlines()[0]) == (
        0,
        f"weights from {folder}: conv1, norm1; new: output; frozen: conv1, norm1",
    )
    model, train = (resolved(tmp_path / "run")[section] for section in ("model", "train"))
    assert model == {**resolved(folder)["model"], "dropout": 0.1}
    assert (train["from_run"], train["freeze"]) == (str(folder), ["conv1"])
