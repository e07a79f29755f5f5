"""Studies: what they leave, repeat and resume; test rows, failures and pruning."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna")

import gcnbatch
from gcnbatch import fileio
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import read_toml
from gcnbatch.data import splits
from gcnbatch.data.splits import SplitRows
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import DeviceLost, InputError, MachineError
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import run
from gcnbatch.tuning import page, session
from gcnbatch.tuning.constant import constant_value
from gcnbatch.tuning.session import Limits
from gcnbatch.tuning.splits import search_splits
from tests.builders import build_graphset
from tests.entries import CohortEntry, register
from tests.parquet import assert_same_table
from tests.training.kills import Killed, die_at
from tests.training.runs import command, configure, environment, write_set

pytestmark = pytest.mark.usefixtures("light")

SPACE = """
[model]
widths = { choices = [4, 8], repeat = { low = 1, high = 2 } }
dropout = { low = 0.0, high = 0.3 }
[train]
learning_rate = { low = 1e-3, high = 1e-1, log = true }
"""
TIMES = ("seconds",)
DRAWN = (
    "test_a_study_leaves_these_files_and_a_summary_of_its_best_trial",
    "test_a_study_in_which_no_trial_learned_says_so",
    "test_hostile_names_reach_no_page",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data set and a space."""
    folder = tmp_path_factory.mktemp("tune")
    write_set(folder / "set.h5", missing=0.0)
    (folder / "space.toml").write_text(SPACE, encoding="utf-8")
    return folder


def base(place: Path, *assignments: str) -> Config:
    about = ("train.epochs=2", "split.valid=0.2", "split.test=0.2", "jobs=1", *assignments)
    return configure(f"data.path={place / 'set.h5'}", *about)


@pytest.fixture(autouse=True)
def no_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no report, but in tests of it: it takes most of a small study's time."""
    if request.node.name not in DRAWN:
        monkeypatch.setattr(page, "render", lambda *about: "")


def search(place: Path, folder: Path, *assignments: str, trials: int = 6) -> dict[str, Any]:
    config, space = base(place, *assignments), place / "space.toml"
    return session.start(config, folder, space, Limits(trials), quiet=True)[1]


def table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of trials.csv without times."""
    with (folder / "trials.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [{name: row[name] for name in row if name not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def study(place: Path) -> Path:
    """Return the folder of a study of six trials."""
    search(place, place / "study")
    return place / "study"


# ------------------------------------------------------------------------------------------------ what a study leaves


def test_a_study_leaves_these_files_and_a_summary_of_its_best_trial(place: Path, tmp_path: Path) -> None:
    summary = search(place, tmp_path / "study")
    assert {path.name for path in (tmp_path / "study").iterdir()} == {
        *("config.toml", "space.toml", "study.json", "env.json", "data.sha256", "study.journal"),
        *("best.toml", "trials.csv", "report.html"),
    }
    rows = table(tmp_path / "study")
    assert [row["trial"] for row in rows] == [str(number) for number in range(6)]
    values = [float(row["value"]) for row in rows if row["state"] == "complete"]
    assert summary["best"]["value"] == max(values)
    assert (summary["trials"], summary["failed"], summary["direction"]) == (6, 0, "maximize")
    written = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    charts = ("History", "Parallel coordinates", "Learning curves")
    for title in ("Best trials", *charts, "What was searched", "Environment", "Repeat it"):
        assert f"<h2>{title}</h2>" in written
    assert "<dt>train.learning_rate</dt><dd>0.001 to 0.1 (logarithmic)</dd>" in written
    assert "<dt>model.widths</dt><dd>4, 8; 1 to 2 times</dd>" in written
    assert 'src="http' not in written
    assert written.count("<script") == 1
    for name in ("report.html", "best.toml"):
        (tmp_path / "study" / name).unlink()
    assert gcnbatch.report(tmp_path / "study") == tmp_path / "study" / "report.html"
    assert (tmp_path / "study" / "report.html").read_text(encoding="utf-8") == written
    assert (tmp_path / "study" / "best.toml").is_file()


def test_a_study_in_which_no_trial_learned_says_so(tmp_path: Path) -> None:
    write_set(tmp_path / "set.h5", target="regression", missing=0.0)
    (tmp_path / "space.toml").write_text("[train]\nlearning_rate = { choices = [100.0] }\n", encoding="utf-8")
    said: list[str] = []
    about = base(tmp_path), tmp_path / "study", tmp_path / "space.toml", Limits(1)
    summary = session.start(*about, quiet=True, say=said.append)[1]
    with Dataset(tmp_path / "set.h5") as dataset:
        y, rows = dataset.y, SplitRows.of(dataset, "random")
    split = splits.make_split(base(tmp_path).split, 0, rows)
    valid, mean = y[split.valid].astype(np.float64), y[split.train].mean(axis=0, dtype=np.float64)
    shares = [1 - ((v - m) ** 2).sum() / ((v - v.mean()) ** 2).sum() for v, m in zip(valid.T, mean, strict=True)]
    assert summary["constant"] == pytest.approx(np.mean(shares), abs=1e-6)
    assert summary["best"]["value"] < summary["constant"]
    assert not summary["learned"]
    (line,) = said
    assert line.startswith(f"No trial learned: the best valid R², {summary['best']['value']:.4g}, is not better than ")
    assert "best.toml has the keys of the best trial all the same" in line
    page_of = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "No trial learned" in page_of


@pytest.mark.parametrize(
    ("target", "monitor", "value"), [("binary", "roc_auc", 0.5), ("binary", "loss", None), ("multiclass", "mcc", 0.0)]
)
def test_the_value_of_constant_outputs_is_that_of_chance(target: str, monitor: str, value: float | None) -> None:
    graphs = build_graphset(60, target=target, missing=0.2)  # type: ignore[arg-type]
    config = configure(f"train.monitor={monitor}")
    rows = SplitRows("set", "graph", graphs.header.target, graphs.y, None, {})
    experiment = SimpleNamespace(monitor=monitor, header=graphs.header, y=graphs.y)
    assert constant_value(experiment, search_splits(config, rows)) == value  # type: ignore[arg-type]


def test_the_table_of_trials_is_written_as_parquet_too(place: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "study", "parquet=true", "train.epochs=1", trials=2)
    assert_same_table(tmp_path / "study" / "trials.csv")


def test_the_best_configuration_trains_to_the_value_of_its_trial(study: Path, tmp_path: Path) -> None:
    best = json.loads(json.dumps(results_of(study)))
    config = resolve(read_toml(study / "best.toml"))
    found = run.start(config, tmp_path / "run", quiet=True)[1]
    assert found["valid"]["roc_auc"] == pytest.approx(float(best["value"]), rel=1e-12)
    assert found["split"]["sizes"] == [24, 8, 8]


def results_of(folder: Path) -> dict[str, str]:
    complete = [row for row in table(folder) if row["state"] == "complete"]
    return max(complete, key=lambda row: float(row["value"]))


def test_the_first_trial_has_the_values_of_the_base(place: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "one", "model.widths=[8]", "model.dropout=0.1", "train.learning_rate=0.05", trials=1)
    (first,) = table(tmp_path / "one")
    assert [first[f"model.{key}"] for key in ("widths", "widths.repeat", "dropout")] == ["8", "1", "0.1"]
    assert first["train.learning_rate"] == "0.05"


def test_the_same_seed_and_space_repeat_the_study(place: Path, study: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "same")
    assert table(tmp_path / "same") == table(study)
    assert (tmp_path / "same" / "best.toml").read_bytes() == (study / "best.toml").read_bytes()
    search(place, tmp_path / "other", "seed=1")
    assert table(tmp_path / "other") != table(study)


def test_hostile_names_reach_no_page(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x>"
    search(place, folder, trials=1)
    assert "<img src=x>" not in (folder / "report.html").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------ rows


def test_the_search_never_reads_test_rows(place: Path, study: Path, tmp_path: Path) -> None:
    """NaN in the features and other labels of the test rows change nothing."""
    config = base(place)
    with Dataset(place / "set.h5") as dataset:
        graphs, rows = dataset.load(), SplitRows.of(dataset, config.split.kind)
    test = splits.make_split(config.split, config.seed, rows).test
    x, y = graphs.x.copy(), graphs.y.copy()
    for row in test:
        x[graphs.node_ptr[row] : graphs.node_ptr[row + 1]] = np.nan
    y[test] = 1 - y[test]
    write_graphset(tmp_path / "set.h5", replace(graphs, y=y))
    poisoned = replace(graphs, x=x, y=y)
    (tmp_path / "space.toml").write_text(SPACE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "load", lambda self: poisoned)  # a file with NaN features would be refused
        search(tmp_path, tmp_path / "study")
    assert table(tmp_path / "study") == table(study)


@pytest.mark.parametrize("kind", ["random", "stratified", "scaffold", "predefined"])
def test_folds_and_repeats_divide_the_rows_that_do_not_test(kind: str) -> None:
    graphs = build_graphset(60, missing=0.0, splits=True, groups=True)
    rows = SplitRows("set", "graph", "binary", graphs.y, graphs.groups, graphs.splits)
    given = f"split.kind={kind}", "split.test=0.2"
    test = splits.make_split(configure(*given).split, 0, rows).test
    left = np.setdiff1d(np.arange(60), test)
    folded = [configure(*given, "split.folds=4")]
    if kind != "scaffold":
        folded += [configure(*given, "split.folds=4", "split.repeats=2"), configure(*given, "split.repeats=3")]
    for config in folded:
        found = search_splits(config, rows)
        assert len(found) == (config.split.folds or 1) * config.split.repeats
        for part in found:
            assert not len(part.test)
            assert not np.isin(test, np.concatenate([part.train, part.valid])).any()
        if config.split.folds:
            validated = np.concatenate([part.valid for part in found])
            assert sorted(validated) == sorted(np.repeat(left, config.split.repeats))


def test_the_objective_is_the_mean_over_folds(place: Path, tmp_path: Path) -> None:
    summary = search(place, tmp_path / "study", "split.folds=3", trials=2)
    assert len(summary["best"]["values"]) == 3
    assert summary["best"]["value"] == pytest.approx(np.mean(summary["best"]["values"]))


def test_without_validation_rows_nothing_is_searched(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"split\.valid: no validation rows to compare trials by; expected some"):
        search(place, tmp_path / "study", "split.valid=0")
    assert not (tmp_path / "study").exists()


# ------------------------------------------------------------------------------------------------ resuming


@pytest.mark.parametrize("step", [0, 17, 30])
def test_a_killed_study_resumes_to_the_same_trials(place: Path, study: Path, tmp_path: Path, step: int) -> None:
    folder = tmp_path / "study"
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, OpsRunner, "step", step)
        with pytest.raises(Killed):
            search(place, folder)
    journal = folder / "study.journal"
    before = journal.read_text(encoding="utf-8") if journal.exists() else ""
    with journal.open("a", encoding="utf-8") as stream:
        stream.write('{"op_code":4,"torn')
    session.resume(folder, quiet=True)
    assert journal.read_text(encoding="utf-8").startswith(before)
    assert table(folder) == table(study)


def test_more_trials_extend_a_study(place: Path, study: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "study", trials=3)
    session.resume(tmp_path / "study", Limits(6), quiet=True)
    assert table(tmp_path / "study") == table(study)


def test_the_best_configuration_does_not_depend_on_who_goes_on(place: Path, tmp_path: Path) -> None:
    """Backend, device and jobs are those that the study was given, such as "auto"."""
    space = place / "space.toml"
    config = base(place, "backend=auto")
    session.start(config, tmp_path / "whole", space, Limits(2), quiet=True)
    session.start(config, tmp_path / "parts", space, Limits(1), quiet=True)
    session.resume(tmp_path / "parts", Limits(2), {"device": 1, "jobs": 2}, quiet=True)
    expected = (tmp_path / "whole" / "best.toml").read_bytes()
    assert b'backend = "auto"' in expected
    assert (tmp_path / "parts" / "best.toml").read_bytes() == expected
    gcnbatch.report(tmp_path / "whole")
    assert (tmp_path / "whole" / "best.toml").read_bytes() == expected


@pytest.mark.parametrize("left", [0, 4])
def test_trials_that_the_journal_has_lost_are_trained_again_with_a_warning(
    study: Path, tmp_path: Path, left: int
) -> None:
    folder = shutil.copytree(study, tmp_path / "study")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    lines = before["study.journal"].splitlines(keepends=True)
    trials = [line for line in lines if b'"op_code":4' in line]
    (folder / "study.journal").write_bytes(b"".join(line for line in lines if left and line not in trials[left:]))
    found = rf"study\.journal: {left} trials; expected at least 6, as trials\.csv has"
    with pytest.raises(InputError, match=rf"{found}\. Restore it, or train the others again with 'gcnbatch tune --res"):
        gcnbatch.report(folder)
    assert (folder / "trials.csv").read_bytes() == before["trials.csv"]
    said: list[str] = []
    session.resume(folder, quiet=True, say=said.append)
    assert re.search(f"warning: .*{found}; the others are trained again", "\n".join(said))
    assert table(folder) == table(study)
    assert (folder / "best.toml").read_bytes() == before["best.toml"]
    (folder / "trials.csv").unlink()
    (folder / "study.journal").unlink()
    with pytest.raises(InputError, match=r"0 trials; expected at least 1, as best\.toml has"):
        gcnbatch.report(folder)


@pytest.mark.parametrize("name", ["study.json", "config.toml"])
def test_a_set_up_that_fails_leaves_no_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = fileio.write_text

    def full(path: Path, text: str) -> None:
        if path.name == name:
            raise MachineError(str(path), "full")
        write(path, text)

    monkeypatch.setattr(fileio, "write_text", full)
    with pytest.raises(MachineError, match=f"{name}: full$"):
        search(place, tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_full_disk_is_no_damaged_journal(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    folder = shutil.copytree(study, tmp_path / "study")
    kind = optuna.storages.journal.JournalFileBackend
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        for call in ("append_logs", "read_logs"):
            with monkeypatch.context() as patch:
                patch.setattr(kind, call, failing(OSError(number, os.strerror(number))))
                if call == "append_logs":
                    (folder / "study.journal").write_bytes(b"")
                with pytest.raises(
                    MachineError, match=rf"study\.journal: could not be written \({os.strerror(number)}\)"
                ):
                    session.resume(folder, quiet=True)
    assert (folder / "best.toml").read_bytes() == (study / "best.toml").read_bytes()


def failing(error: Exception) -> Any:
    def fail(*about: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"trials": 0}, "trials: '0'; expected a whole number, 1 to 1,000,000"),
        ({"trials": 1.5}, "trials: '1.5'; expected a whole number"),
        ({"trials": True}, "trials: 'True'; expected a whole number"),
        ({"minutes": -1}, "minutes: '-1'; expected a number, at least 0"),
        ({"minutes": float("nan")}, "minutes: 'nan'; expected a number"),
        ({"minutes": "1"}, "minutes: '1'; expected a number"),
    ],
)
def test_wrong_limits_are_refused_before_a_folder_is_made(
    place: Path, tmp_path: Path, limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        gcnbatch.tune({}, place / "set.h5", out=tmp_path / "study", **limits)
    assert not (tmp_path / "study").exists()


def test_a_study_is_no_run(study: Path) -> None:
    before = {path.name: path.read_bytes() for path in study.iterdir()}
    for take in (run.resume, gcnbatch.Run.load):
        with pytest.raises(
            InputError, match=r"study: the folder of a study; expected that of a run\. Go on with 'gcnb"
        ):
            take(study)
    assert {path.name: path.read_bytes() for path in study.iterdir()} == before


@pytest.mark.slow
def test_processes_give_the_trials_of_one_process_after_sigkill_too(place: Path, study: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    text = base(place).to_toml().replace("jobs = 1", "jobs = 2")
    (tmp_path / "base.toml").write_text(text, encoding="utf-8")
    options = [tmp_path / "base.toml", "--space", place / "space.toml", "--trials", 6, "-o", folder, "-q"]
    process = subprocess.Popen(command("tune", *options), env=environment(), stderr=subprocess.PIPE, text=True)
    journal = folder / "study.journal"
    while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert session.resume(folder, quiet=True)["trials"] == 6
    assert table(folder) == table(study)


def test_a_damaged_study_is_refused(study: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing: not a study; expected a folder with config\.toml and study\.json"):
        session.resume(tmp_path / "nothing")
    folder = tmp_path / "study"
    folder.mkdir()
    for path in study.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    journal = (folder / "study.journal").read_text(encoding="utf-8")
    for old, new, message in (
        ('"seconds":', '"second":', r"trial 0: 'seconds': Field required"),
        ('"model.dropout":', '"model.drop":', "trial 0: not a finished trial of this space; expected the journal of"),
        (
            '"directions":[2]',
            '"directions":[1]',
            "a study that minimizes its objective; expected one that maximizes it",
        ),
    ):
        assert old in journal
        (folder / "study.journal").write_text(journal.replace(old, new), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            session.resume(folder, Limits(7), quiet=True)
    (folder / "config.toml").write_text("", encoding="utf-8")
    for take in (session.resume, gcnbatch.report):
        with pytest.raises(
            InputError, match=r"config\.toml: data\.path: missing; expected the data set\. Restore the f"
        ):
            take(folder)
    (folder / "config.toml").write_bytes((study / "config.toml").read_bytes())
    (folder / "study.journal").write_text("{}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"study\.journal: damaged .*; expected the journal of a study"):
        session.resume(folder, Limits(7), quiet=True)
    (folder / "study.json").write_text('{"trials": 6, "at_once": 0, "alike": false}', encoding="utf-8")
    with pytest.raises(InputError, match=r"study\.json: 'at_once': Input should be greater"):
        session.resume(folder, quiet=True)


OF_ANOTHER = "trial 0: not a finished trial of this space; expected the journal of a study"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": "x"}, "trial 0: 'values.0': Input should be a valid number"),
        ({"value": "9"}, "trial 0: 'values.0': Input should be a valid number"),
        ({"value": math.nan}, "trial 0: 'values.0': Input should be a finite number"),
        ({"value": math.inf}, "trial 0: 'values.0': Input should be a finite number"),
        ({"value": 10**400}, "trial 0: 'values.0': Input should be a"),
        ({"value": None, "values": [0.5, 0.5]}, "trial 0: 'values': List should have at most 1 item"),
        ({"value": None, "values": None}, OF_ANOTHER),
        ({"state": 0}, "trial 0: 'state': Input should be 'COMPLETE', 'PRUNED' or 'FAIL'"),
        ({"intermediate_values": {"1": "x"}}, "trial 0: 'intermediate_values.1': Input should be a valid number"),
        ({"params": {"train.learning_rate": 5.0}}, OF_ANOTHER),
        ({"params": {"train.learning_rate": "x"}}, OF_ANOTHER),
        ({"params": {}}, OF_ANOTHER),
        ({"distributions": {}}, "damaged ("),
        ({"user_attrs": {"number": 2**70}}, "trial 0: 'number': Input should be less than or equal to"),
        ({"user_attrs": {"epochs": ["1"]}}, "trial 0: 'epochs.0': Input should be a valid integer"),
        ({"user_attrs": {"seconds": -1}}, "trial 0: 'seconds': Input should be greater than or equal to 0"),
        ({"user_attrs": {"seconds": math.inf}}, "trial 0: 'seconds': Input should be less than or equal to"),
        ({"user_attrs": {"reason": 5}}, "trial 0: 'reason': Input should be a valid string"),
    ],
)
def test_a_trial_of_a_stranger_is_refused(study: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "study"))
    first, line, *others = (folder / "study.journal").read_text(encoding="utf-8").splitlines(keepends=True)
    trial = json.loads(line)
    for key, value in changes.items():
        trial[key] = {**trial[key], **value} if isinstance(value, dict) and value else value
    (folder / "study.journal").write_text("".join([first, json.dumps(trial) + "\n", *others]), encoding="utf-8")
    for read in (lambda: session.resume(folder, Limits(7), quiet=True), lambda: session.report(folder)):
        with pytest.raises(InputError, match=rf"study\.journal(, |: ){re.escape(message)}"):
            read()


# ------------------------------------------------------------------------------------------------ failures and pruning


def test_a_trial_without_memory_fails_and_the_study_goes_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = OpsRunner.__init__

    def small(self: OpsRunner, backend: Any, task: Any) -> None:
        if task.train.learning_rate > 0.01:
            raise MachineError("device 0", "out of memory")
        original(self, backend, task)

    monkeypatch.setattr(OpsRunner, "__init__", small)
    for alike in (False, True):
        if alike:
            register(monkeypatch, CohortEntry("cpu", on_gpu=True))
        summary = search(place, tmp_path / f"{alike}", "jobs=0" if alike else "jobs=1", trials=8)
        rows = table(tmp_path / f"{alike}")
        for row in rows:
            failed = float(row["train.learning_rate"]) > 0.01
            assert (row["state"] == "failed", row["reason"]) == (failed, "device 0: out of memory" if failed else "")
        assert 0 < summary["failed"] < 8


def test_a_lost_device_ends_the_study_with_the_command_to_resume(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: OpsRunner, index: int) -> None:
        raise DeviceLost("device 0", "lost")

    monkeypatch.setattr(OpsRunner, "step", lost)
    with pytest.raises(DeviceLost, match=r"device 0: lost\. Go on with: gcnbatch tune --resume .*study$"):
        search(place, tmp_path / "study")


def test_a_loss_that_is_not_finite_fails_its_trial(place: Path, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text("[train]\nlearning_rate = { choices = [1e-3, 100.0] }", encoding="utf-8")
    write_graphset(tmp_path / "set.h5", build_graphset(40, target="regression", missing=0.0, n_tasks=1))
    about = ("train.optimizer=sgd", "train.epochs=40", "model.norm=none")
    summary = search(tmp_path, tmp_path / "study", *about, trials=8)
    failed = [row for row in table(tmp_path / "study") if row["state"] == "failed"]
    assert 0 < len(failed) == summary["failed"] < 8
    assert all(row["reason"].startswith(("training loss in epoch ", "weights after epoch ")) for row in failed)
    assert {row["train.learning_rate"] for row in failed} == {"100.0"}
    assert summary["direction"] == "minimize"


def test_hopeless_trials_are_pruned_at_an_epoch(place: Path, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SPACE.replace("1e-3", "1e-6"), encoding="utf-8")
    write_set(tmp_path / "set.h5", missing=0.0)
    summary = search(tmp_path, tmp_path / "study", "train.epochs=5", trials=24)
    assert summary["pruned"] > 0
    assert summary["best"]["value"] == max(
        float(row["value"]) for row in table(tmp_path / "study") if row["state"] == "complete"
    )


def test_trials_of_one_architecture_train_in_one_cohort(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = CohortEntry("cpu", on_gpu=True)
    register(monkeypatch, entry)
    search(place, tmp_path / "study", "split.folds=2", "jobs=0", trials=16)
    rows = table(tmp_path / "study")
    shapes = [(row["model.widths"], row["model.widths.repeat"]) for row in rows]
    assert shapes == [shapes[0]] * 8 + [shapes[8]] * 8
    assert len({row["train.learning_rate"] for row in rows}) == 16
    assert max(entry.sizes) == 16  # eight trials of two folds
    entry.sizes.clear()
    session.start(
        base(place, "split.folds=2", "jobs=4"), tmp_path / "four", place / "space.toml", Limits(8), quiet=True
    )
    assert max(entry.sizes) == 4
    assert table(tmp_path / "four") == rows[:8]


def test_a_search_ends_with_its_time(place: Path, tmp_path: Path) -> None:
    config = base(place)
    summary = session.start(config, tmp_path / "study", place / "space.toml", Limits(minutes=0.0), quiet=True)[1]
    assert summary["trials"] == 0
    assert "best" not in summary
    assert not (tmp_path / "study" / "best.toml").exists()
