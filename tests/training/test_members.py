"""Runs with several members: folds, repeats, ensembles; in cohorts of any size, each member is the run alone."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gcnbatch import folders
from gcnbatch import metrics as figures
from gcnbatch.data.store import write_graphset
from gcnbatch.errors import InputError
from gcnbatch.inference.ensemble import infer
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import run
from gcnbatch.training.fit_files import FitFiles
from gcnbatch.training.plan import member_folders
from gcnbatch.training.reports import ReportWriter
from tests.builders import build_graphset
from tests.entries import CohortEntry, register
from tests.training.kills import Killed, die_at
from tests.training.runs import (
    assert_same_run,
    command,
    configure,
    environment,
    fit,
    lighten,
    options,
    read_metrics,
    write_set,
)

pytestmark = pytest.mark.usefixtures("light")

PRODUCT = ("split.folds=2", "split.repeats=2", "train.ensemble=2", "model.dropout=0.2", "train.patience=2")
EARLY = ("train.epochs=6", *PRODUCT)
OFTEN = (*EARLY, "train.checkpoint_seconds=0")
NAMES = [f"repeat{r}-fold{f}-model{m}" for r in (1, 2) for f in (1, 2) for m in (1, 2)]


def cohorts(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Let the backend train up to `most` models in a cohort; return the list of its cohorts' sizes."""
    entry = CohortEntry("cpu", most=most, on_gpu=True)
    register(monkeypatch, entry)
    return entry.sizes


def table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("members") / "set.h5"
    write_set(path, missing=0.0)
    return path


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with folds, repeats and an ensemble whose members trained one by one."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        cohorts(patch, 1)
        fit(data, folder, *EARLY)
    return folder


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts(monkeypatch, 1)


def assert_same_members(one: Path, other: Path) -> None:
    for name in NAMES:
        assert_same_run(one / name, other / name)
    assert (one / "predictions.csv").read_bytes() == (other / "predictions.csv").read_bytes()
    assert read_metrics(one) == read_metrics(other)


# ------------------------------------------------------------------------------------------------ what members are


@pytest.mark.numerical
def test_each_member_equals_the_run_alone_with_its_seeds(tmp_path: Path, data: Path, whole: Path) -> None:
    alone = [setting for setting in EARLY if "repeats" not in setting and "ensemble" not in setting]
    fit(data, tmp_path / "alone", *alone, "seed=1", "split.seed=1")
    for fold in (1, 2):
        assert_same_run(tmp_path / "alone" / f"fold{fold}", whole / f"repeat2-fold{fold}-model2")


def test_the_summary_has_all_members_and_the_mean_prediction_of_each_row(data: Path, whole: Path) -> None:
    found = json.loads((whole / "metrics.json").read_text(encoding="utf-8"))
    assert [member["name"] for member in found["members"]] == NAMES
    assert [path.name for path in member_folders(whole)] == NAMES
    values = [member["test"]["accuracy"] for member in found["members"]]
    assert found["mean"]["test"]["accuracy"] == pytest.approx(np.mean(values))
    assert found["std"]["test"]["accuracy"] == pytest.approx(np.std(values, ddof=1))
    predicted: dict[str, list[float]] = {}
    for name in NAMES:
        for row in table(whole / name / "predictions.csv")[1:]:
            predicted.setdefault(row[0], []).append(float(row[1]))
    header, *rows = table(whole / "predictions.csv")
    assert header == ["id", "task0", "task0_std", "task1", "task1_std"]
    assert len(rows) == 40
    for row in rows:
        assert len(predicted[row[0]]) == 4
        assert float(row[1]) == pytest.approx(np.mean(predicted[row[0]]), rel=1e-6)
        assert float(row[2]) == pytest.approx(np.std(predicted[row[0]], ddof=1), rel=1e-4, abs=1e-7)
    graphs = build_graphset(40, missing=0.0, max_nodes=6)
    outputs = np.array([[float(row[1]), float(row[3])] for row in rows], np.float32)
    assert found["out_of_fold"] == figures.evaluate("binary", graphs.y, outputs, graphs.header.task_names)


def test_an_ensemble_on_one_split_predicts_its_test_rows(tmp_path: Path, data: Path) -> None:
    found = fit(data, tmp_path / "run", "train.ensemble=3", "train.epochs=1")
    splits = [(tmp_path / "run" / f"model{m}" / "splits.json").read_bytes() for m in (1, 2, 3)]
    assert splits[0] == splits[1] == splits[2]
    assert found["split"] == {"kind": "random", "seed": 0, "sizes": [[32, 4, 4]] * 3}
    assert len(table(tmp_path / "run" / "predictions.csv")) == 5
    assert found["out_of_fold"]["labelled"] == 8


def test_rows_that_one_repeat_tests_have_no_deviation(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "run", "split.repeats=3", "split.test=0.3", "train.epochs=1")
    tested = [json.loads((tmp_path / "run" / f"repeat{r}" / "splits.json").read_text())["test"] for r in (1, 2, 3)]
    rows, count = np.unique(np.concatenate(tested), return_counts=True)
    _, *predicted = table(tmp_path / "run" / "predictions.csv")
    assert len(predicted) == len(rows) < 36
    assert [bool(row[2]) for row in predicted] == (count > 1).tolist()
    assert set(count) > {1}


def test_without_test_rows_there_is_no_prediction(tmp_path: Path, data: Path) -> None:
    found = fit(data, tmp_path / "run", "train.ensemble=2", "split.test=0", "train.epochs=1")
    assert "out_of_fold" not in found
    assert not (tmp_path / "run" / "predictions.csv").exists()


def test_infer_takes_a_run_with_members_as_an_ensemble(tmp_path: Path, data: Path, whole: Path) -> None:
    summary = infer([whole], data, str(tmp_path / "out.csv"), quiet=True)
    assert summary.members == 8
    assert table(tmp_path / "out.csv")[0] == ["id", "task0", "task0_std", "task1", "task1_std"]


@pytest.mark.parametrize("kind", ["split.kind=scaffold", "split.kind=predefined split.valid_kind=scaffold"])
def test_repeats_of_a_split_without_a_seed_are_refused(kind: str) -> None:
    message = "split: repeats of a scaffold split would be equal; it does not depend on the seed"
    with pytest.raises(InputError) as error:
        configure(*kind.split(), "split.repeats=2")
    assert str(error.value) == f"configuration: {message}"


# ------------------------------------------------------------------------------------------------ cohorts


def test_reports_written_at_the_same_time_are_the_same(
    tmp_path: Path, data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohorts(monkeypatch, 3)
    with ThreadPoolExecutor(3) as threads:
        run.start(configure(f"data.path={data}", *EARLY), tmp_path / "run", quiet=True, writer=ReportWriter(threads))
    assert_same_members(tmp_path / "run", whole)


@pytest.mark.numerical
@pytest.mark.parametrize("most", [2, 3, 64])
def test_members_do_not_depend_on_their_cohorts(
    tmp_path: Path, data: Path, whole: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = cohorts(monkeypatch, most)
    fit(data, tmp_path / "run", *EARLY)
    assert_same_members(tmp_path / "run", whole)
    assert max(sizes) == min(most, 8)


def test_members_left_by_those_that_stopped_early_form_new_cohorts(
    tmp_path: Path, data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = sorted(member["epochs"] for member in read_metrics(whole)["members"])
    assert ends[3] < ends[4] or ends[0] < ends[-1]
    sizes = cohorts(monkeypatch, 64)
    fit(data, tmp_path / "run", *EARLY)
    assert sizes[0] == 8
    assert len(sizes) > 1
    assert sorted(sizes, reverse=True) == sizes


def test_jobs_bound_the_members_of_a_cohort(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = cohorts(monkeypatch, 64)
    said: list[str] = []
    config = configure(f"data.path={data}", "split.folds=5", "train.epochs=1", "jobs=2")
    run.start(config, tmp_path / "run", quiet=True, say=said.append)
    assert sizes == [2, 2, 1]
    assert [line for line in said if line.startswith("fold ")] == [
        "fold 1 of 5 to fold 2 of 5: 2 models train together",
        "fold 3 of 5 to fold 4 of 5: 2 models train together",
        "fold 5 of 5",
    ]


def test_a_killed_cohort_resumes_to_the_same_bits(
    tmp_path: Path, data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = random.Random(3)
    for most in (3, 64):
        cohorts(monkeypatch, most)
        for place, name, calls in ((OpsRunner, "step", 140), (run.fileio, "write_json", 6)):
            folder = tmp_path / f"{most}-{name}"
            with pytest.MonkeyPatch.context() as patch:
                die_at(patch, place, name, moments.randrange(calls))
                with pytest.raises(Killed):
                    fit(data, folder, *OFTEN)
            cohorts(monkeypatch, moments.choice([1, 2, 64]))
            run.resume(folder, quiet=True) if (folder / run.CONFIG).exists() else fit(data, folder, *OFTEN)
            assert_same_members(folder, whole)


def test_members_with_checkpoints_at_different_steps_resume_together(
    tmp_path: Path, data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the checkpoints of a cohort leaves its members in different epochs."""
    cohorts(monkeypatch, 64)
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, FitFiles, "save", 29)
        with pytest.raises(Killed):
            fit(data, tmp_path / "run", *OFTEN)
    run.resume(tmp_path / "run", quiet=True)
    assert_same_members(tmp_path / "run", whole)


def test_a_loss_that_is_not_finite_names_the_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts(monkeypatch, 64)
    graphs = build_graphset(40, target="regression", missing=0.0)
    write_graphset(tmp_path / "set.h5", graphs)
    with pytest.raises(InputError, match=r"training loss in epoch \d+: (nan|inf)"):
        fit(
            tmp_path / "set.h5",
            tmp_path / "run",
            *("train.ensemble=2", "train.learning_rate=100", "train.optimizer=sgd", "train.epochs=200"),
            "model.norm=none",
        )


# ------------------------------------------------------------------------------------------------ processes


def begin(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("train", *arguments, "--quiet"), stderr=subprocess.PIPE, text=True, env=environment()
    )


def wait_for(process: subprocess.Popen[str], folder: Path, epochs: int) -> None:
    """Wait until two members have written this many epochs in all, or the run has ended."""
    while process.poll() is None:
        found = [path.read_bytes().count(b"\n") for path in folder.glob("fold*/history.jsonl")]
        if len(found) > 1 and sum(found) >= epochs:
            return
        time.sleep(0.002)


@pytest.fixture(scope="module")
def in_processes(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Return options of a run with folds, and the folder of that run in this process."""
    folder = tmp_path_factory.mktemp("processes") / "run"
    assignments = ("train.epochs=40", "split.folds=3", "train.checkpoint_seconds=0.02", "model.dropout=0.1")
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        fit(data, folder, *assignments)
    return ["--data", str(data), *options(*assignments)], folder


def assert_same_folds(one: Path, other: Path) -> None:
    for name in ("fold1", "fold2", "fold3"):
        assert_same_run(one / name, other / name)
    assert read_metrics(one) == read_metrics(other)
    assert (one / "predictions.csv").read_bytes() == (other / "predictions.csv").read_bytes()


@pytest.mark.slow
def test_processes_that_are_stopped_resume_to_the_bits_of_one_process(
    in_processes: tuple[list[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """First Ctrl-C, then a kill, which may leave processes that the next one waits for."""
    monkeypatch.undo()  # the registry of this process
    lighten(monkeypatch)
    set_by, whole = in_processes
    folder = tmp_path / "run"
    process = begin(*set_by, "--jobs", 2, "-o", folder)
    wait_for(process, folder, 10)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=240)
    assert process.returncode == 130
    assert error.endswith(f"stopped: all is saved. Go on with: gcnbatch train --resume {folder}\n")
    process = begin("--resume", folder, "--jobs", "auto")
    wait_for(process, folder, 30)
    process.kill()
    process.communicate(timeout=240)
    run.resume(folder, quiet=True, jobs=2)
    assert capfd.readouterr() == ("", "")
    assert_same_folds(folder, whole)


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path: Path, data: Path) -> None:
    (tmp_path / "run").mkdir()
    with folders.locked(tmp_path / "run"), pytest.raises(InputError, match="run: another process writes there"):
        fit(data, tmp_path / "run", "train.epochs=1")
