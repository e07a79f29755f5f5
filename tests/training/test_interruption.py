"""Signals: a run that is killed or interrupted can resume, and says how; a second Ctrl-C ends it at once."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import loop, run
from gcnbatch.training.stop import Interrupted, StopRequest
from tests.conftest import answered_signals
from tests.training.kills import THOROUGH
from tests.training.runs import assert_same_run, environment, fit, gcnbatch, options, read_metrics, write_set

pytestmark = pytest.mark.usefixtures("light")


# `lighten`, without the imports of the tests.
STARTED = """
import os
import gcnbatch.training.run
from gcnbatch.cli.app import main
from gcnbatch.training import plots
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
    process.communicate(timeout=240)
    assert process.returncode == 0
    return set_by, place / "whole"


def wait_for_epochs(process: subprocess.Popen[str], folder: Path, epochs: int) -> None:
    """Wait until the run has written this many epochs, or has ended."""
    history = folder / "history.jsonl"
    while epochs and process.poll() is None and not (history.exists() and history.read_bytes().count(b"\n") >= epochs):
        time.sleep(0.002)


@pytest.mark.parametrize("checkpoint_seconds", ["0", pytest.param("0.05", marks=pytest.mark.slow)])
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


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGHUP])
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
    out, error = process.communicate(timeout=240)
    assert process.returncode == 130
    assert out == ""
    assert error.splitlines()[-1].startswith("error: stopped after ")
    assert error.endswith(f": all is saved. Go on with: gcnbatch train --resume '{folder}'\n")
    run.resume(folder, quiet=True)
    assert_same_run(whole, folder)


def test_ctrl_c_in_the_last_epoch_of_a_fold_does_not_begin_the_next(tmp_path: Path, data: Path) -> None:
    assignments = (*THOROUGH, "split.folds=2")
    fit(data, tmp_path / "whole", *assignments)
    folder = tmp_path / "run"
    original, validations = loop.predict_rows, iter(range(100))

    def interrupted(*about: Any) -> Any:
        if next(validations) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(*about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "predict_rows", interrupted)
        with pytest.raises(Interrupted, match=r"^stopped after 3 epochs and 0 steps: all is saved\. Go on"):
            fit(data, folder, *assignments)
    assert not (folder / "fold2").exists()
    run.resume(folder, quiet=True)
    assert read_metrics(folder) == read_metrics(tmp_path / "whole")


def test_ctrl_c_at_any_moment_of_an_epoch_saves(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(StopRequest):
        """A request that arrives before the loop asks for the `count`-th time."""

        count, asked = 0, 0

        @property
        def made(self) -> bool:
            Late.asked += 1
            return Late.asked > Late.count

    monkeypatch.setattr(loop, "StopRequest", Late)
    for count in range(7):  # an epoch has four steps
        Late.count, Late.asked, folder = count, 0, tmp_path / f"{count}"
        with pytest.raises(Interrupted, match="all is saved"):
            fit(data, folder, "train.checkpoint_seconds=1000")
        assert (folder / "last.safetensors").exists(), count


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, data: Path, whole: Path) -> None:
    def impatient(self: OpsRunner, index: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpsRunner, "step", impatient)
        with pytest.raises(Interrupted, match=r"^stopped\. Go on with: gcnbatch train --resume .*run$"):
            fit(data, tmp_path / "run", *THOROUGH)
    run.resume(tmp_path / "run", quiet=True)
    assert_same_run(whole, tmp_path / "run")


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


def test_interruption_tests_pass_under_a_parent_that_ignores_ctrl_c() -> None:
    """As in the background of a script: this process and those that it starts handle the signal all the same."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        with answered_signals():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            for number in previous:
                assert subprocess.run(["sh", "-c", f"kill -{number} $$"], check=False).returncode == -number
        assert {signal.getsignal(number) for number in previous} == {signal.SIG_IGN}
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
