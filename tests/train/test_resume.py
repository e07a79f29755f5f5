"""Resume: a run that was killed anywhere ends with the same bits as one without a stop."""

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
from gcnbatch.train import loop, run
from gcnbatch.train.stop import Interrupted
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

# Four steps per epoch, a checkpoint after each, dropout, and a schedule with state.
THOROUGH = (
    "train.checkpoint_seconds=0",
    "train.epochs=3",
    "model.dropout=0.3",
    "train.schedule=plateau",
    "train.schedule_every=1",
)


class Killed(BaseException):
    """Stands for a kill in tests that stop a run at an exact place."""


def die_at(patch: pytest.MonkeyPatch, place: Any, name: str, call: int) -> None:
    """Let the `call`-th call (from 0) of a function raise `Killed` before it does anything."""
    original: Callable[..., Any] = getattr(place, name)
    calls = iter(range(10**6))

    def dying(*arguments: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return original(*arguments)

    patch.setattr(place, name, dying)


def killed(data: Path, folder: Path, assignments: tuple[str, ...], *death: Any) -> bool:
    """Start a run that dies in the given call; return whether it did."""
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


def test_resume_after_a_kill_at_any_step_gives_equal_bits(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "whole", *THOROUGH)
    step = 0
    while killed(data, tmp_path / f"at{step}", THOROUGH, OpsRunner, "step", step):
        run.resume(tmp_path / f"at{step}", quiet=True)
        assert_same_run(tmp_path / "whole", tmp_path / f"at{step}")
        step += 1
    assert step == 12


def test_a_machine_error_keeps_the_checkpoint_and_names_the_resume_command(tmp_path: Path, data: Path) -> None:
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


def test_resume_continues_momentum(tmp_path: Path, data: Path) -> None:
    assignments = (*THOROUGH, "train.optimizer=sgd")
    fit(data, tmp_path / "whole", *assignments)
    assert killed(data, tmp_path / "run", assignments, OpsRunner, "step", 6)
    run.resume(tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("checkpoint_seconds", ["0", "1000"])
def test_resume_after_a_kill_at_any_file_write_gives_equal_bits(
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


def test_a_second_kill_while_trimming_keeps_the_history(tmp_path: Path, data: Path) -> None:
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


def test_resume_continues_in_the_killed_fold(tmp_path: Path, data: Path) -> None:
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


def test_history_rows_after_the_checkpoint_are_trimmed(tmp_path: Path, data: Path) -> None:
    """A killed run may have written rows after its last checkpoint, and an incomplete last row."""
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
    """Start the command line in a new process; return when all modules are imported."""
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
    """Options of a run of about a second, and the folder of that run without a stop."""
    place = tmp_path_factory.mktemp("long")
    write_set(place / "set.h5")
    set_by = ["--data", str(place / "set.h5"), *options("train.epochs=30", "model.dropout=0.2")]
    process = begin("train", *set_by, "-o", place / "whole", "--quiet")
    process.communicate(timeout=60)
    assert process.returncode == 0
    return set_by, place / "whole"


def wait_for_epochs(process: subprocess.Popen[str], folder: Path, epochs: int) -> None:
    """Wait until the run has written this many epochs, or has ended."""
    history = folder / "history.jsonl"
    while epochs and process.poll() is None and not (history.exists() and history.read_bytes().count(b"\n") >= epochs):
        time.sleep(0.002)


@pytest.mark.parametrize("checkpoint_seconds", ["0", "0.05"])
def test_resume_after_sigkill_gives_equal_bits(
    long_run: tuple[list[str], Path], tmp_path: Path, checkpoint_seconds: str
) -> None:
    """Kill after a number of epochs, not after a time: on a busy machine, the run might end first."""
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
def test_ctrl_c_saves_and_names_the_resume_command(
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
    original, validations = loop.predict_members, iter(range(100))

    def interrupted(*about: Any) -> Any:
        if next(validations) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(*about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "predict_members", interrupted)
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


def test_ctrl_c_before_anything_is_written_names_no_resume_command(tmp_path: Path, data: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_create", lambda *about: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted, match=r"^stopped\. Nothing was written\.$"):
            fit(data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_ignored_ctrl_c_stays_ignored(tmp_path: Path, data: Path) -> None:
    """So a background run of a script survives Ctrl-C."""
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
    # signals this process
    "tests/train/test_resume.py::test_ctrl_c_before_anything_is_written_names_no_resume_command",
    # signals a child process
    "tests/cli/test_data.py::test_synth_stopped_by_a_signal_leaves_no_file[2]",
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


def test_missing_data_is_refused(data: Path, stopped: Path) -> None:
    data.unlink()
    refused(stopped, r"set\.h5: no such file")


def test_changed_data_is_refused_between_folds(tmp_path: Path, data: Path) -> None:
    assignments = (*THOROUGH, "split.folds=2")
    assert killed(data, tmp_path / "run", assignments, OpsRunner, "step", 0)
    write_set(data, seed=1)
    refused(tmp_path / "run", r"changed since the run began")


def test_resume_leaves_a_finished_run_unchanged(tmp_path: Path, data: Path) -> None:
    metrics = fit(data, tmp_path / "run")
    said: list[str] = []
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").iterdir()}
    assert run.resume(tmp_path / "run", say=said.append) == metrics
    assert said == [f"{tmp_path / 'run'} is already finished"]
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("more", [(), ("split.folds=2",)])
def test_a_finished_run_that_is_extended_equals_a_longer_run(tmp_path: Path, data: Path, more: tuple[str, ...]) -> None:
    fit(data, tmp_path / "long", *THOROUGH, *more, "train.epochs=5")
    fit(data, tmp_path / "short", *THOROUGH, *more)
    run.resume(tmp_path / "short", quiet=True, epochs=5)
    for fold in ("fold1", "fold2") if more else ("",):
        assert_same_run(tmp_path / "long" / fold, tmp_path / "short" / fold)
    assert (tmp_path / "long" / run.CONFIG).read_bytes() == (tmp_path / "short" / run.CONFIG).read_bytes().replace(
        b"short", b"long"
    )


def test_an_extension_that_is_refused_leaves_the_run_as_it_is(tmp_path: Path, data: Path) -> None:
    metrics = fit(data, tmp_path / "run")
    write_set(data, seed=1)
    with pytest.raises(InputError, match="changed since the run began"):
        run.resume(tmp_path / "run", epochs=5)
    assert run.resume(tmp_path / "run") == metrics


def test_a_run_that_stopped_early_is_not_extended(tmp_path: Path, data: Path) -> None:
    found = fit(data, tmp_path / "run", "train.epochs=30", "train.patience=1")
    assert found["epochs"] < 30
    assert run.resume(tmp_path / "run", quiet=True, epochs=40)["epochs"] == found["epochs"]


def test_runs_are_not_shortened_and_cosine_schedules_not_extended(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "run", "train.schedule=cosine")
    with pytest.raises(InputError, match="--epochs: 2 to extend a run of 3; expected more epochs than the run has"):
        run.resume(tmp_path / "run", epochs=2)
    with pytest.raises(InputError, match="--epochs: given for a run with the cosine schedule"):
        run.resume(tmp_path / "run", epochs=4)
    assert run.resume(tmp_path / "run", epochs=3)["epochs"] == 3


def test_unreadable_metrics_are_refused(tmp_path: Path, data: Path) -> None:
    fit(data, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").write_text("{", encoding="utf-8")
    refused(tmp_path / "run", r"metrics\.json: not JSON; expected the metrics of a finished run")


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
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


def test_resume_from_the_best_weights_is_refused(stopped: Path) -> None:
    shutil.copy(stopped / "best.safetensors", stopped / "last.safetensors")
    refused(stopped, r"last\.safetensors: written for other data")


def test_a_damaged_checkpoint_is_refused(stopped: Path) -> None:
    content = bytearray((stopped / "last.safetensors").read_bytes())
    content[-1] ^= 1
    (stopped / "last.safetensors").write_bytes(content)
    refused(stopped, r"last\.safetensors: damaged checkpoint")


def test_a_run_may_resume_on_another_backend(stopped: Path) -> None:
    config = stopped / "config.toml"
    config.write_text(
        config.read_text(encoding="utf-8").replace('backend = "cpu"', 'backend = "auto"'), encoding="utf-8"
    )
    assert run.resume(stopped, "cpu", quiet=True)["epochs"] == 3
