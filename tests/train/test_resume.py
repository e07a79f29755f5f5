"""Going on after a stop: wherever a run was killed, it ends as if it had not been."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcnbatch import fileio
from gcnbatch.data.store import write_graphset
from gcnbatch.errors import InputError, MachineError
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.train import run
from gcnbatch.train.loop import Interrupted, Trainer
from tests.train.runs import (
    assert_same_run,
    environment,
    fit,
    gcnbatch,
    options,
    read_metrics,
    write_set,
)

pytestmark = pytest.mark.usefixtures("light")

# Four steps in an epoch, a checkpoint after each, dropout and a schedule that has a memory.
THOROUGH = (
    "train.checkpoint_seconds=0",
    "train.epochs=3",
    "model.dropout=0.3",
    "train.schedule=plateau",
    "train.schedule_every=1",
)


class Killed(BaseException):
    """Stands for the kill in tests that stop a run at an exact place."""


def die_at(patch: pytest.MonkeyPatch, place: Any, name: str, call: int) -> None:
    """Let the `call`-th call (from 0) of a function die before it does anything."""
    original: Callable[..., Any] = getattr(place, name)
    calls = iter(range(10**6))

    def dying(*arguments: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return original(*arguments)

    patch.setattr(place, name, dying)


def killed(data: Path, folder: Path, assignments: tuple[str, ...], *death: Any) -> bool:
    """Begin a run that dies as told; return whether it did."""
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, *death)
        try:
            fit(data, folder, *assignments)
        except Killed:
            return True
    return False


def go_on(data: Path, folder: Path, assignments: tuple[str, ...]) -> None:
    if (folder / run.CONFIG).exists():
        run.resume(folder, quiet=True)
    else:
        fit(data, folder, *assignments)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_set(tmp_path / "set.h5")
    return tmp_path / "set.h5"


# ------------------------------------------------------------------------------------------------ at exact places


def test_a_run_killed_at_any_step_ends_as_if_it_had_not_been(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "whole", *THOROUGH)
    step = 0
    while killed(data, tmp_path / f"at{step}", THOROUGH, OpsRunner, "step", step):
        run.resume(tmp_path / f"at{step}", quiet=True)
        assert_same_run(tmp_path / "whole", tmp_path / f"at{step}")
        step += 1
    assert step == 12


def test_a_machine_that_fails_leaves_the_last_checkpoint_and_says_how_to_go_on(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "whole", *THOROUGH)
    steps = iter(range(12))
    step = OpsRunner.step

    def failing(runner: OpsRunner, index: int) -> None:
        if next(steps) == 6:
            raise MachineError("device 0 (Fake 90)", "an illegal memory access was encountered", hint="See nvidia-smi.")
        step(runner, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpsRunner, "step", failing)
        with pytest.raises(MachineError) as caught:
            fit(data, tmp_path / "run", *THOROUGH)
    assert str(caught.value) == (
        "device 0 (Fake 90): an illegal memory access was encountered. See nvidia-smi. "
        f"Go on with: gcnbatch train --resume {tmp_path / 'run'}"
    )
    with pytest.raises(InputError, match=r"--resume: cuda\.resident: 'maybe'; expected 'auto', 'on' or 'off'"):
        run.resume(tmp_path / "run", resident="maybe")
    run.resume(tmp_path / "run", resident="off", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_momentum_goes_on(tmp_path: Path, data: Path) -> None:
    assignments = (*THOROUGH, "train.optimizer=sgd")
    fit(data, tmp_path / "whole", *assignments)
    assert killed(data, tmp_path / "run", assignments, OpsRunner, "step", 6)
    run.resume(tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("checkpoint_seconds", ["0", "1000"])
def test_a_run_killed_at_any_file_it_writes_ends_as_if_it_had_not_been(
    tmp_path: Path, data: Path, checkpoint_seconds: str
) -> None:
    seldom = f"train.checkpoint_seconds={checkpoint_seconds}"
    assignments = (*THOROUGH, "train.epochs=2", "train.batch_size=16", seldom)
    fit(data, tmp_path / "whole", *assignments)
    file = 0
    while killed(data, tmp_path / f"at{file}", assignments, fileio, "_publish", file):
        go_on(data, tmp_path / f"at{file}", assignments)
        assert_same_run(tmp_path / "whole", tmp_path / f"at{file}")
        file += 1
    assert file > 6


def test_a_resumed_run_that_is_killed_again_while_it_trims_its_history_keeps_it(tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "run"
    fit(data, tmp_path / "whole", *THOROUGH)
    assert killed(data, folder, THOROUGH, OpsRunner, "step", 10)

    original = Path.write_text

    def cut_short(path: Path, *about: Any, **more: Any) -> int:
        if "history" not in path.name:
            return original(path, *about, **more)
        path.open("w").close()
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", cut_short)
        with pytest.raises(Killed):
            run.resume(folder, quiet=True)
    run.resume(folder, quiet=True)
    assert_same_run(tmp_path / "whole", folder)


def test_checkpoints_do_not_change_a_run(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "often", *THOROUGH)
    fit(data, tmp_path / "seldom", *THOROUGH, "train.checkpoint_seconds=1000")
    assert_same_run(tmp_path / "often", tmp_path / "seldom")


def test_folds_go_on_where_they_were_killed(tmp_path: Path, data: Path) -> None:
    assignments = (*THOROUGH, "split.folds=3", "train.epochs=2")
    fit(data, tmp_path / "whole", *assignments)
    for step in (0, 3, 7, 13):  # in the first, second and third fold
        folder = tmp_path / f"at{step}"
        assert killed(data, folder, assignments, OpsRunner, "step", step)
        run.resume(folder, quiet=True)
        for number in (1, 2, 3):
            assert_same_run(tmp_path / "whole" / f"fold{number}", folder / f"fold{number}")
        assert read_metrics(folder) == read_metrics(tmp_path / "whole")
        assert (folder / "predictions.csv").read_bytes() == (tmp_path / "whole" / "predictions.csv").read_bytes()


def test_another_thread_of_history_is_cut_off(tmp_path: Path, data: Path) -> None:
    """A killed run may have written rows behind its checkpoint, the last one in part."""
    fit(data, tmp_path / "whole", *THOROUGH)
    folder = tmp_path / "run"
    assert killed(data, folder, THOROUGH, OpsRunner, "step", 6)
    with (folder / "history.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"epoch": 2, "train_loss": 0.1}\n{"epoch": 3, "tra')
    run.resume(folder, quiet=True)
    assert_same_run(tmp_path / "whole", folder)


# ------------------------------------------------------------------------------------------------ real signals

# `lighten`, without the imports of the tests.
STARTED = """
import os
import gcnbatch.train.run
from gcnbatch.cli.app import main
from gcnbatch.train import plots
plots.learning_curves = plots.roc_pr = lambda *about: None
os.fsync = lambda file: None
print("ready", flush=True)
main()
"""


def begin(*arguments: object) -> subprocess.Popen[str]:
    """Start the command line in a process of its own; return when everything is imported."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Options of a run of about a second, and that run without a stop."""
    place = tmp_path_factory.mktemp("long")
    write_set(place / "set.h5")
    set_by = ["--data", str(place / "set.h5"), *options("train.epochs=30", "model.dropout=0.2")]
    process = begin("train", *set_by, "-o", place / "whole", "--quiet")
    process.communicate(timeout=60)
    assert process.returncode == 0
    return set_by, place / "whole"


def wait_for_epochs(process: subprocess.Popen[str], folder: Path, epochs: int) -> None:
    """Return when the run has written so many epochs, or has ended."""
    history = folder / "history.jsonl"
    while epochs and process.poll() is None and not (history.exists() and history.read_bytes().count(b"\n") >= epochs):
        time.sleep(0.002)


@pytest.mark.parametrize("checkpoint_seconds", ["0", "0.05"])
def test_kill_9_at_random_moments(long_run: tuple[list[str], Path], tmp_path: Path, checkpoint_seconds: str) -> None:
    """Moments go by the epochs done, not by the clock: a busy machine must not let the run end first."""
    set_by, whole = long_run
    moments = random.Random(checkpoint_seconds)
    folder, kills = tmp_path / "run", 0
    arguments = ["train", *set_by, "--set", f"train.checkpoint_seconds={checkpoint_seconds}", "-o", str(folder)]
    for first in (0, 8, 16):
        process = begin(*arguments, "--quiet")
        wait_for_epochs(process, folder, moments.randrange(first, first + 8))
        time.sleep(moments.uniform(0.0, 0.02))
        process.kill()
        process.communicate()
        if process.returncode == 0:
            break
        kills += 1
        if (folder / run.CONFIG).exists():
            arguments = ["train", "--resume", str(folder)]
        else:
            shutil.rmtree(folder, ignore_errors=True)
    assert kills
    if (folder / run.CONFIG).exists():
        run.resume(folder, quiet=True)
    else:
        gcnbatch(*arguments, "--quiet")
    assert_same_run(whole, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_saves_and_says_how_to_go_on(
    long_run: tuple[list[str], Path], tmp_path: Path, number: signal.Signals
) -> None:
    set_by, whole = long_run
    folder = tmp_path / "a run"
    process = begin("train", *set_by, "--set", "train.checkpoint_seconds=1000", "-o", folder)
    while not (folder / "history.jsonl").exists():
        time.sleep(0.002)
        assert process.poll() is None
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert error.startswith("error: stopped after ")
    assert error.endswith(f": all is saved. Go on with: gcnbatch train --resume '{folder}'\n")
    run.resume(folder, quiet=True)
    assert_same_run(whole, folder)


def test_ctrl_c_in_the_last_epoch_of_a_fold_does_not_begin_the_next(tmp_path: Path, data: Path) -> None:
    assignments = (*THOROUGH, "split.folds=2")
    fit(data, tmp_path / "whole", *assignments)
    folder = tmp_path / "run"
    original, validations = Trainer.validate, iter(range(100))

    def interrupted(self: Trainer) -> Any:
        if next(validations) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "validate", interrupted)
        with pytest.raises(Interrupted, match=r"^stopped after 3 epochs and 0 steps: all is saved\. Go on"):
            fit(data, folder, *assignments)
    assert not (folder / "fold2").exists()
    run.resume(folder, quiet=True)
    assert read_metrics(folder) == read_metrics(tmp_path / "whole")


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, data: Path) -> None:
    def impatient(self: OpsRunner, index: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpsRunner, "step", impatient)
        with pytest.raises(Interrupted, match=r"^stopped\. Go on with: gcnbatch train --resume .*run$"):
            fit(data, tmp_path / "run", *THOROUGH)
    fit(data, tmp_path / "whole", *THOROUGH)
    run.resume(tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_ctrl_c_before_anything_is_written_promises_nothing(tmp_path: Path, data: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_create", lambda *about: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted, match=r"^stopped\. Nothing was written\.$"):
            fit(data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_keeps_ignoring_ctrl_c_where_its_parent_does(tmp_path: Path, data: Path) -> None:
    """So a run goes on that a script has started in the background."""
    step, signals = OpsRunner.step, iter([signal.SIGINT])

    def interrupted(self: OpsRunner, index: int) -> None:
        for number in signals:
            signal.raise_signal(number)
        step(self, index)

    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OpsRunner, "step", interrupted)
            fit(data, tmp_path / "run", *THOROUGH)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
    assert next(signals, None) is None


INTERRUPTION_TESTS = (
    "tests/train/test_resume.py::test_ctrl_c_before_anything_is_written_promises_nothing",  # signals this process
    "tests/cli/test_data.py::test_synth_stopped_by_a_signal_leaves_no_file[2]",  # signals a child
)


def test_interruption_tests_pass_under_a_parent_that_ignores_ctrl_c() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *INTERRUPTION_TESTS]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
        env={**environment(), "PYTEST_ADDOPTS": ""},
        cwd=Path(__file__).parents[2],
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


# ------------------------------------------------------------------------------------------------ refusals


@pytest.fixture
def stopped(tmp_path: Path, data: Path) -> Path:
    """Return the folder of a run that died in its second epoch."""
    assert killed(data, tmp_path / "stopped", THOROUGH, OpsRunner, "step", 6)
    return tmp_path / "stopped"


def refused(folder: Path, message: str) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match=message):
        run.resume(folder, quiet=True)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_changed_data_is_refused(data: Path, stopped: Path) -> None:
    graphs = write_set(data)
    changed = graphs.x.copy()
    changed[3, 1] += 1
    write_graphset(data, replace(graphs, x=changed))
    refused(
        stopped, r"set\.h5: changed since the run began; expected the data of .*data\.sha256\. Restore it, or start"
    )
    write_graphset(data, graphs)
    run.resume(stopped, quiet=True)


def test_data_that_is_gone_is_named(data: Path, stopped: Path) -> None:
    data.unlink()
    refused(stopped, r"set\.h5: no such file")


def test_changed_data_is_refused_between_folds(tmp_path: Path, data: Path) -> None:
    assignments = (*THOROUGH, "split.folds=2")
    assert killed(data, tmp_path / "run", assignments, OpsRunner, "step", 0)
    write_set(data, seed=1)
    refused(tmp_path / "run", r"changed since the run began")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, data: Path) -> None:
    metrics = fit(data, tmp_path / "run")
    said: list[str] = []
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").iterdir()}
    assert run.resume(tmp_path / "run", say=said.append) == metrics
    assert said == [f"{tmp_path / 'run'} is already finished"]
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").iterdir()} == before


def test_unreadable_metrics_are_named(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").write_text("{", encoding="utf-8")
    refused(tmp_path / "run", r"metrics\.json: not JSON; expected the metrics of a finished run")


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, r"not a run folder; expected a folder with config\.toml\. Start with 'gcnbatch train'")
    refused(tmp_path / "none", r"none: not a run folder")


def test_a_broken_configuration_names_its_file(stopped: Path) -> None:
    config = stopped / "config.toml"
    config.write_text(config.read_text(encoding="utf-8").replace("epochs = 3", "epochs = 0"), encoding="utf-8")
    refused(stopped, r"stopped/config\.toml: train\.epochs: 0; expected a whole number")


@pytest.mark.parametrize(
    ("assignment", "name"),
    [
        ("model.widths=[9]", "conv1.weight"),
        ("model.widths=[8, 8]", "conv2.weight"),
        ("train.optimizer=sgd", "sgd.velocity/conv1.weight"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, data: Path, stopped: Path, assignment: str, name: str
) -> None:
    assert killed(data, tmp_path / "other", (*THOROUGH, assignment), OpsRunner, "step", 6)
    shutil.copy(stopped / "last.safetensors", tmp_path / "other" / "last.safetensors")
    refused(tmp_path / "other", rf"a checkpoint of another model \({name}\); expected the model of config\.toml")


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path, stopped: Path) -> None:
    write_set(tmp_path / "other.h5", seed=1)
    assert killed(tmp_path / "other.h5", tmp_path / "other", THOROUGH, OpsRunner, "step", 6)
    shutil.copy(stopped / "last.safetensors", tmp_path / "other" / "last.safetensors")
    refused(tmp_path / "other", r"last\.safetensors: written for other data; expected the data of .*other\.h5")


def test_the_best_weights_are_no_checkpoint_to_go_on_from(stopped: Path) -> None:
    shutil.copy(stopped / "best.safetensors", stopped / "last.safetensors")
    refused(stopped, r"last\.safetensors: written for other data")


def test_a_damaged_checkpoint_is_refused(stopped: Path) -> None:
    content = bytearray((stopped / "last.safetensors").read_bytes())
    content[-1] ^= 1
    (stopped / "last.safetensors").write_bytes(content)
    refused(stopped, r"last\.safetensors: damaged checkpoint")


def test_the_backend_may_change(stopped: Path) -> None:
    config = stopped / "config.toml"
    config.write_text(
        config.read_text(encoding="utf-8").replace('backend = "cpu"', 'backend = "auto"'), encoding="utf-8"
    )
    assert run.resume(stopped, "cpu", quiet=True)["epochs"] == 3
