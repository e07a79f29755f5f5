"""Whole runs through `gcnbatch.training.run`: files, folds, repeats, refusals."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcnbatch import metrics as figures
from gcnbatch.config import resolve
from gcnbatch.data.store import write_graphset
from gcnbatch.errors import BackendUnavailable, InputError
from gcnbatch.predictions import read_outputs
from gcnbatch.runners.single import SingleRunner
from gcnbatch.training import run
from gcnbatch.training.checkpoint import load
from tests.builders import build_graphset
from tests.entries import MadeEntry, NamedBackend, register
from tests.parquet import assert_same_table
from tests.training.runs import (
    assert_same_run,
    configure,
    environment,
    fit,
    history,
    options,
    without_timings,
    write_set,
)

light = pytest.mark.usefixtures("light")
TIMED = {"history.jsonl", "metrics.json", "last.safetensors"}


def table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


# ------------------------------------------------------------------------------------------------ what a run leaves


@pytest.mark.parametrize(
    ("target", "picture"), [("binary", "roc_pr.png"), ("multiclass", "confusion.png"), ("regression", "parity.png")]
)
def test_a_run_writes_these_files_and_a_second_one_equal_bytes(tmp_path: Path, target: str, picture: str) -> None:
    graphs = write_set(tmp_path / "set.h5", target=target, missing=0.0 if target == "multiclass" else 0.1)
    found = fit(tmp_path / "set.h5", tmp_path / "a")
    fit(tmp_path / "set.h5", tmp_path / "b")
    names = {file.name for file in (tmp_path / "a").iterdir()}
    assert names == {
        *TIMED,
        *("config.toml", "env.json", "data.sha256", "splits.json", "best.safetensors", "predictions.csv"),
        *("learning_curves.png", picture, "uncertainty.safetensors", "uncertainty.png"),
    }
    for name in names - TIMED:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert_same_run(tmp_path / "a", tmp_path / "b")
    rows = json.loads((tmp_path / "a" / "splits.json").read_text(encoding="utf-8"))
    assert sorted(row for part in rows.values() for row in part) == list(range(40))
    assert [len(part) for part in rows.values()] == found["split"]["sizes"] == [32, 4, 4]
    predicted = table(tmp_path / "a" / "predictions.csv")
    classes = [f"p({name})" for name in graphs.header.class_names]
    assert predicted[0] == ["id", *graphs.header.task_names, *classes]
    assert [row[0] for row in predicted[1:]] == [str(graphs.ids[row]) for row in rows["test"]]


@light
def test_a_run_writes_its_tables_as_parquet_too(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "run", "split.folds=2", "train.epochs=1", "parquet=true")
    for place in ("", "fold1", "fold2"):
        assert_same_table(tmp_path / "run" / place / "predictions.csv")


@light
def test_metrics_record_the_properties_that_the_bits_depend_on(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleRunner, "about", lambda self: {"tiles": 15})
    assert fit(data, tmp_path / "run")["tiles"] == 15


@light
def test_metrics_have_the_documented_keys_and_null_if_undefined(tmp_path: Path, data: Path) -> None:
    found = fit(data, tmp_path / "run", "split.kind=stratified", "split.seed=9", "seed=4")
    written = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert written == found
    assert set(found) == {
        *("train", "valid", "test", "best_epoch", "epochs", "seconds", "step_us", "graphs_per_second", "split"),
        *("backend", "uncertainty"),
    }
    assert found["split"] == {"kind": "stratified", "seed": 9, "sizes": [32, 4, 4]}
    assert 0 < found["step_us"]["p20"] <= found["step_us"]["median"] <= found["step_us"]["p80"]
    for part in ("train", "valid", "test"):
        assert set(figures.METRICS["binary"]) < set(found[part])


@light
def test_metrics_are_those_of_the_predictions(tmp_path: Path) -> None:
    graphs = write_set(tmp_path / "set.h5", target="regression")
    found = fit(tmp_path / "set.h5", tmp_path / "run")
    rows = json.loads((tmp_path / "run" / "splits.json").read_text(encoding="utf-8"))["test"]
    outputs = read_outputs(tmp_path / "run" / "predictions.csv", graphs.header, len(rows))
    assert found["test"] == figures.evaluate("regression", graphs.y[rows], outputs, graphs.header.task_names)


@light
def test_regression_outputs_are_in_the_unit_of_the_targets(tmp_path: Path) -> None:
    graphs = build_graphset(40, target="regression", missing=0.0, n_tasks=1)
    write_graphset(tmp_path / "set.h5", replace(graphs, y=graphs.y * np.float32(0.1) + np.float32(1000)))
    fit(tmp_path / "set.h5", tmp_path / "run")
    outputs = read_outputs(tmp_path / "run" / "predictions.csv", graphs.header, 4)
    assert np.all(np.abs(outputs - 1000) < 10)


@light
def test_the_resolved_configuration_repeats_the_run(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "a", "model.dropout=0.1", "seed=5")
    tree = tomllib.loads((tmp_path / "a" / "config.toml").read_text(encoding="utf-8"))
    assert tree["data"]["path"] == str(data)
    assert tree["backend"] == "cpu"
    run.start(resolve(tree), tmp_path / "b", quiet=True)
    assert_same_run(tmp_path / "a", tmp_path / "b")


@light
def test_a_relative_data_path_is_stored_as_absolute(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fit(Path("set.h5"), Path("run"))
    assert tomllib.loads(Path("run/config.toml").read_text(encoding="utf-8"))["data"]["path"] == str(data)


@light
def test_the_seed_determines_the_result(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "a", "split.seed=0")
    fit(data, tmp_path / "b", "split.seed=0", "seed=1")
    one, other = (load(tmp_path / name / "best.safetensors").arrays["conv1.weight"] for name in "ab")
    assert not np.array_equal(one, other)
    assert (tmp_path / "a" / "splits.json").read_bytes() == (tmp_path / "b" / "splits.json").read_bytes()


@pytest.mark.numerical
@light
def test_sets_read_in_slices_train_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, features in enumerate(("uint8", "csr")):
        write_set(tmp_path / "set.h5", features=features)
        fit(tmp_path / "set.h5", tmp_path / f"memory{number}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gcnbatch.data.store.Dataset.fits_in_memory", False)
            fit(tmp_path / "set.h5", tmp_path / f"slices{number}")
        assert_same_run(tmp_path / f"memory{number}", tmp_path / f"slices{number}")


@light
def test_a_run_without_test_rows_predicts_nothing(tmp_path: Path, data: Path) -> None:
    found = fit(data, tmp_path / "run", "split.test=0")
    assert "test" not in found
    assert found["split"]["sizes"] == [36, 4, 0]
    assert not (tmp_path / "run" / "predictions.csv").exists()


@light
def test_a_predefined_split_is_named(tmp_path: Path) -> None:
    graphs = write_set(tmp_path / "set.h5", splits=True)
    found = fit(tmp_path / "set.h5", tmp_path / "run", "split.kind=predefined")
    assert found["split"]["name"] == "first"
    rows = json.loads((tmp_path / "run" / "splits.json").read_text(encoding="utf-8"))
    for part, numbers in graphs.splits["first"].parts().items():
        assert rows[part] == sorted(numbers.tolist())


@light
def test_node_level_predictions_have_the_nodes_names(tmp_path: Path) -> None:
    graphs = write_set(tmp_path / "set.h5", 6, level="node", target="multiclass", max_nodes=9)
    fit(tmp_path / "set.h5", tmp_path / "run", "model.kind=kipf")
    rows = json.loads((tmp_path / "run" / "splits.json").read_text(encoding="utf-8"))["test"]
    assert [row[0] for row in table(tmp_path / "run" / "predictions.csv")[1:]] == [graphs.ids[row] for row in rows]


@light
def test_runs_without_a_folder_get_distinct_ones(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260101-120000")
    config = configure(f"data.path={data}", "name=mine", "train.epochs=1")
    folders = [run.start(config, None, quiet=True)[0] for _ in range(3)]
    assert [str(folder) for folder in folders] == [f"runs/mine-20260101-120000{end}" for end in ("", "-2", "-3")]


def test_rows_without_labels_are_left_out_with_a_note(tmp_path: Path) -> None:
    graphs = build_graphset(40, max_nodes=4, missing=0.0)
    graphs.y[::4] = np.nan
    write_graphset(tmp_path / "set.h5", graphs)
    said: list[str] = []
    config = configure(f"data.path={tmp_path / 'set.h5'}", "train.epochs=1")
    found = run.start(config, tmp_path / "run", quiet=True, say=said.append)[1]
    assert "10 of 40 rows have no label and are left out" in said
    assert sum(found["split"]["sizes"]) == 30


# ------------------------------------------------------------------------------------------------ folds


@light
@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_folds_predict_every_row_once_in_the_order_of_the_data(tmp_path: Path, target: str) -> None:
    graphs = write_set(tmp_path / "set.h5", target=target, missing=0.0 if target == "multiclass" else 0.1)
    found = fit(tmp_path / "set.h5", tmp_path / "run", "split.folds=5", "train.epochs=2")
    folders = [tmp_path / "run" / f"fold{number}" for number in range(1, 6)]
    predicted = table(tmp_path / "run" / "predictions.csv")
    assert [row[0] for row in predicted[1:]] == graphs.ids.tolist()
    of_folds = {row[0]: row for folder in folders for row in table(folder / "predictions.csv")[1:]}
    assert [of_folds[row[0]] for row in predicted[1:]] == predicted[1:]
    outputs = read_outputs(tmp_path / "run" / "predictions.csv", graphs.header, graphs.n_rows)
    names = (graphs.header.task_names, graphs.header.class_names)
    assert found["out_of_fold"] == figures.evaluate(target, graphs.y, outputs, *names)  # type: ignore[arg-type]
    assert [json.loads((folder / "metrics.json").read_text(encoding="utf-8")) for folder in folders] == found["folds"]
    metric = figures.averaged(target, len(graphs.header.task_names))[0]  # type: ignore[arg-type]
    values = [fold["test"][metric] for fold in found["folds"]]
    assert found["mean"]["test"][metric] == pytest.approx(np.mean(values))
    assert found["std"]["test"][metric] == pytest.approx(np.std(values, ddof=1))
    dealt = [json.loads((folder / "splits.json").read_text(encoding="utf-8")) for folder in folders]
    assert sorted(row for parts in dealt for row in parts["test"]) == list(range(40))
    sizes = [[len(rows) for rows in parts.values()] for parts in dealt]
    assert found["split"] == {"kind": "random", "seed": 0, "sizes": sizes}


@light
def test_a_metric_that_one_fold_lacks_has_no_mean(tmp_path: Path) -> None:
    graphs = build_graphset(6, n_tasks=1, missing=0.0)
    y = np.array([[0], [1], [0], [1], [0], [1]], np.float32)
    write_graphset(tmp_path / "set.h5", replace(graphs, y=y))
    found = fit(tmp_path / "set.h5", tmp_path / "run", "split.folds=6", "split.valid=0", "train.epochs=1")
    assert "roc_auc" not in found["mean"]["test"]
    assert "valid" not in found["mean"]
    assert found["out_of_fold"]["roc_auc"] is not None


@light
def test_folds_repeat_to_the_bit(tmp_path: Path, data: Path) -> None:
    both = [fit(data, tmp_path / name, "split.folds=2", "train.epochs=2") for name in "ab"]
    assert without_timings(both[0]) == without_timings(both[1])
    for number in (1, 2):
        assert_same_run(tmp_path / "a" / f"fold{number}", tmp_path / "b" / f"fold{number}")


# ------------------------------------------------------------------------------------------------ refusals


def nothing_made(folder: Path, message: str, *assignments: str, error: type[Exception] = InputError) -> None:
    with pytest.raises(error, match=message):
        run.start(configure(*assignments), folder, quiet=True)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["split.folds=41"], r"set\.h5: split\.folds = 41 for 40 rows; expected at most one fold per row"),
        (["split.kind=scaffold"], r"set\.h5: the file has no groups"),
        (["split.kind=predefined"], r"set\.h5: the file carries no split"),
        (["train.monitor=rmse"], r"train\.monitor: 'rmse' is not defined for a binary target"),
        (["train.patience=3", "split.valid=0"], r"train\.patience: 3: no validation rows to watch"),
        (["train.pos_weight=[1,2,3]"], r"train\.pos_weight: 3 values"),
        (["model.kind=kipf"], r"model\.kind: kipf with a graph-level data set"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_created(
    tmp_path: Path, data: Path, assignments: list[str], message: str
) -> None:
    nothing_made(tmp_path / "run", message, f"data.path={data}", *assignments)


def test_a_part_without_rows_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5", 2)
    nothing_made(tmp_path / "run", r"the train part of the split has no row", f"data.path={tmp_path / 'set.h5'}")
    write_set(tmp_path / "empty.h5", 0)
    nothing_made(tmp_path / "run", r"empty\.h5: the train part of the split", f"data.path={tmp_path / 'empty.h5'}")


@pytest.mark.parametrize("folds", [0, 2])
def test_labels_of_one_class_alone_are_refused(tmp_path: Path, folds: int) -> None:
    graphs = build_graphset(40, missing=0.0)
    y = graphs.y.copy()
    y[:, 0], y[:, 1] = 1, np.nan
    write_graphset(tmp_path / "set.h5", replace(graphs, y=y))
    message = r"set\.h5: no task has labels of two classes; expected .*\. Use other rows"
    nothing_made(tmp_path / "run", message, f"data.path={tmp_path / 'set.h5'}", f"split.folds={folds}")


def test_a_missing_or_foreign_set_is_refused(tmp_path: Path) -> None:
    nothing_made(tmp_path / "run", r"none\.h5: no such file", f"data.path={tmp_path / 'none.h5'}")
    (tmp_path / "text.h5").write_text("id,y\n", encoding="utf-8")
    nothing_made(tmp_path / "run", r"text\.h5: not an HDF5 file", f"data.path={tmp_path / 'text.h5'}")
    nothing_made(tmp_path / "run", r"data\.path: empty; expected a data set\. Give --data FILE\.h5", "name=x")


def test_a_refused_synthetic_set_leaves_no_folder(tmp_path: Path) -> None:
    nothing_made(tmp_path / "run", r"train\.monitor: 'r2'", "data.synthetic=quickstart", "train.monitor=r2")


def test_a_backend_that_cannot_start_is_refused(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, MadeEntry("fused", made="no GPU"))
    message = r"backend fused: no GPU\. Fix it\."
    nothing_made(tmp_path / "run", message, f"data.path={data}", "backend=fused", error=BackendUnavailable)


@light
def test_a_run_that_a_slower_backend_takes_resumes_on_it(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky = MadeEntry("picky", made=NamedBackend("picky"), refused="such graphs")
    register(monkeypatch, picky, MadeEntry("cpu"))
    said: list[str] = []
    config = configure(f"data.path={data}", "split.folds=2", "train.epochs=1")
    _, metrics = run.start(config, tmp_path / "run", quiet=True, say=said.append)
    assert said[0] == "backend cpu: picky does not take such graphs"
    assert [line for line in said[1:] if not line.startswith("valid rows")] == ["fold 1 of 2", "fold 2 of 2"]
    assert metrics["backend"] == json.loads((tmp_path / "run" / "env.json").read_text())["backend"] == "cpu"
    (tmp_path / "run" / "metrics.json").unlink()
    (tmp_path / "run" / "fold2" / "metrics.json").unlink()
    assert run.resume(tmp_path / "run", quiet=True)["backend"] == "cpu"


def test_a_backend_that_refuses_the_task_leaves_no_folder(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, MadeEntry("cpu", refused="such graphs"))
    message = r"backend cpu: it does not take such graphs"
    for source in (f"data.path={data}", "data.synthetic=quickstart"):
        nothing_made(tmp_path / "run", message, source, "backend=cpu")


@light
def test_a_folder_that_is_not_empty_is_refused_and_unchanged(tmp_path: Path, data: Path) -> None:
    (tmp_path / "empty").mkdir()
    fit(data, tmp_path / "empty", "train.epochs=1")
    before = {file: file.read_bytes() for file in (tmp_path / "empty").iterdir()}
    message = (
        r"empty: already exists; expected a new or empty folder\. Choose another -o, or go on with --resume .*empty"
    )
    with pytest.raises(InputError, match=message):
        fit(data, tmp_path / "empty")
    assert {file: file.read_bytes() for file in (tmp_path / "empty").iterdir()} == before
    with pytest.raises(InputError, match=r"set\.h5: already exists"):
        fit(data, data)
    with pytest.raises(InputError, match=r"run: cannot be made \(Not a directory\); expected a writable place"):
        fit(data, data / "run")


# ------------------------------------------------------------------------------------------------ a full disk

FULL = """
import resource
from gcnbatch.runners.ops import OpsRunner
step, steps = OpsRunner.step, iter(range(10**6))
def fill(self, index):
    if next(steps) == 9:
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))
    step(self, index)
OpsRunner.step = fill
from gcnbatch.cli.app import main
main()
"""


@light
def test_a_full_disk_exits_with_code_3_and_the_run_can_resume(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "whole")
    folder = tmp_path / "run"
    set_by = options("train.checkpoint_seconds=0")
    done = subprocess.run(
        [sys.executable, "-c", FULL, "train", "--data", str(data), "-o", str(folder), *set_by],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()].count("error:") == 1
    assert re.fullmatch("error: .*File too large.*", done.stderr.splitlines()[-1])
    assert len(history(folder)) == 2
    assert not [file for file in folder.iterdir() if file.suffix == ".tmp"]
    run.resume(folder, quiet=True)
    assert_same_run(tmp_path / "whole", folder)
