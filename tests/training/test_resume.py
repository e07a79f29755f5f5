"""Resume: a run that was killed anywhere ends with the same bits as one without a stop."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gcnbatch import fileio, folders
from gcnbatch.errors import InputError, MachineError
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import run
from tests.training.kills import THOROUGH, Killed, killed
from tests.training.runs import assert_same_run, fit, read_metrics, write_set

pytestmark = pytest.mark.usefixtures("light")


def go_on(data: Path, folder: Path, assignments: tuple[str, ...]) -> None:
    if (folder / run.CONFIG).exists():
        run.resume(folder, quiet=True)
    else:
        fit(data, folder, *assignments)


def test_resume_after_a_kill_at_any_step_gives_equal_bits(tmp_path: Path, data: Path, whole: Path) -> None:
    step = 0
    while killed(data, tmp_path / f"at{step}", THOROUGH, OpsRunner, "step", step):
        run.resume(tmp_path / f"at{step}", quiet=True)
        assert_same_run(whole, tmp_path / f"at{step}")
        step += 1
    assert step == 12


def test_a_machine_error_keeps_the_checkpoint_and_names_the_resume_command(
    tmp_path: Path, data: Path, whole: Path
) -> None:
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
    assert_same_run(whole, tmp_path / "run")


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


def test_a_second_kill_while_trimming_keeps_the_history(tmp_path: Path, data: Path, whole: Path) -> None:
    folder = tmp_path / "run"
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
    assert_same_run(whole, folder)


def test_checkpoints_do_not_change_a_run(tmp_path: Path, data: Path, whole: Path) -> None:
    fit(data, tmp_path / "seldom", *THOROUGH, "train.checkpoint_seconds=1000")
    assert_same_run(whole, tmp_path / "seldom")


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


def test_history_rows_after_the_checkpoint_are_trimmed(tmp_path: Path, data: Path, whole: Path) -> None:
    """A killed run may have written rows after its last checkpoint, and an incomplete last row."""
    folder = tmp_path / "run"
    assert killed(data, folder, THOROUGH, OpsRunner, "step", 6)
    with (folder / "history.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"epoch": 2, "train_loss": 0.1}\n{"epoch": 3, "tra')
    run.resume(folder, quiet=True)
    assert_same_run(whole, folder)


# ------------------------------------------------------------------------------------------------ finished runs


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


def change_rates(history: Path) -> None:
    """Turn a history into that of a version with another cosine schedule."""
    rows = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    text = "".join(json.dumps(row | {"learning_rate": row["learning_rate"] / 2}) + "\n" for row in rows)
    history.write_text(text, encoding="utf-8")


def test_a_run_that_began_with_other_rates_says_so(tmp_path: Path, data: Path) -> None:
    said: list[str] = []
    cosine = (*THOROUGH, "train.schedule=cosine")
    assert killed(data, tmp_path / "run", cosine, OpsRunner, "step", 6)
    change_rates(tmp_path / "run" / "history.jsonl")
    run.resume(tmp_path / "run", quiet=True, say=said.append)
    assert said == [
        f"{tmp_path / 'run'} had other learning rates than this version gives for its schedule; "
        "it goes on with those of now"
    ]


def test_folds_that_follow_folds_with_other_rates_say_so(tmp_path: Path, data: Path) -> None:
    said: list[str] = []
    folds = (*THOROUGH, "train.schedule=cosine", "split.folds=2")
    assert killed(data, tmp_path / "run", folds, OpsRunner, "step", 15)
    change_rates(tmp_path / "run" / "fold1" / "history.jsonl")
    run.resume(tmp_path / "run", quiet=True, say=said.append)
    assert [line for line in said if not line.startswith("valid rows")] == [
        f"{tmp_path / 'run' / 'fold1'} had other learning rates than this version gives for its schedule; "
        "those that follow have those of now",
        "fold 2 of 2",
    ]


# ------------------------------------------------------------------------------------------------ faults


def test_a_clock_that_is_set_back_changes_nothing(
    tmp_path: Path, data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    years = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(years)))
    assert killed(data, tmp_path / "run", THOROUGH, OpsRunner, "step", 6)
    assert run.resume(tmp_path / "run", quiet=True)["seconds"] >= 0
    assert_same_run(whole, tmp_path / "run")


def test_a_run_that_still_trains_is_not_resumed(tmp_path: Path, data: Path) -> None:
    step, refused = OpsRunner.step, []

    def meddling(self: OpsRunner, index: int) -> None:
        if not refused:
            with pytest.raises(
                InputError, match=r"run: another process writes there; .*Wait until it ends\.$"
            ) as error:
                run.resume(tmp_path / "run", quiet=True)
            refused.append(error)
        step(self, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "ORPHANS_SECONDS", 0.0)
        patch.setattr(OpsRunner, "step", meddling)
        fit(data, tmp_path / "run", *THOROUGH)
    assert refused
