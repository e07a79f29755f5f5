"""Studies that go on: after a kill, with more trials, from a damaged folder or a stranger's."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

import gcnbatch
from gcnbatch.errors import InputError, MachineError
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.training import run
from gcnbatch.tuning import search as searches
from gcnbatch.tuning import study as studies
from gcnbatch.tuning.search import Limits
from gcnbatch.tuning.study import Rounds
from tests.training.kills import Killed, die_at
from tests.training.runs import command, environment
from tests.tuning.studies import base, search, table

pytestmark = pytest.mark.usefixtures("light", "no_page")


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
    searches.resume(folder, quiet=True)
    assert journal.read_text(encoding="utf-8").startswith(before)
    assert table(folder) == table(study)


@pytest.fixture
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let studies that begin have rounds beside each other, from the second one on."""
    monkeypatch.setattr(searches, "_MIXED", Rounds(4, alike=False, beside=2))
    monkeypatch.setattr(studies, "_KNOWN", 1)


@pytest.mark.usefixtures("_beside")
def test_rounds_beside_each_other_give_the_same_trials_however_they_run(place: Path, tmp_path: Path) -> None:
    """In this process, in processes in any order, after a kill, and of a study that was extended."""
    search(place, tmp_path / "whole", trials=18)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "_MIXED", Rounds(4, alike=False))
        search(place, tmp_path / "apart", trials=18)
    whole, apart = (table(tmp_path / name) for name in ("whole", "apart"))
    assert (whole[:4], whole == apart) == (apart[:4], False)
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, OpsRunner, "step", 80)
        with pytest.raises(Killed):
            search(place, tmp_path / "killed", trials=18)
    assert json.loads((tmp_path / "killed" / "study.json").read_text(encoding="utf-8"))["beside"] == 2
    searches.resume(tmp_path / "killed", quiet=True)
    search(place, tmp_path / "extended", trials=13)
    searches.resume(tmp_path / "extended", Limits(18), quiet=True)
    search(place, tmp_path / "processes", "jobs=3", trials=18)
    for other in ("killed", "extended", "processes"):
        assert table(tmp_path / other) == whole, other


@pytest.mark.usefixtures("_beside")
def test_a_trial_that_ended_before_those_of_earlier_rounds_is_kept(place: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "whole", trials=8)
    folder = shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    (folder / "trials.csv").unlink()
    lines = (folder / "study.journal").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if '"op_code":4' not in line or '"number":1,' in line or '"number":4,' in line]
    assert len(lines) - len(kept) == 6
    (folder / "study.journal").write_text("".join(kept), encoding="utf-8")
    searches.resume(folder, quiet=True)
    assert table(folder) == table(tmp_path / "whole")
    assert (folder / "study.journal").read_text(encoding="utf-8").startswith("".join(kept))


def test_more_trials_extend_a_study(place: Path, study: Path, tmp_path: Path) -> None:
    search(place, tmp_path / "study", trials=3)
    searches.resume(tmp_path / "study", Limits(6), quiet=True)
    assert table(tmp_path / "study") == table(study)


def test_the_best_configuration_does_not_depend_on_who_goes_on(place: Path, tmp_path: Path) -> None:
    """Backend, device and jobs are those that the study was given, such as "auto"."""
    space = place / "space.toml"
    config = base(place, "backend=auto")
    searches.start(config, tmp_path / "whole", space, Limits(2), quiet=True)
    searches.start(config, tmp_path / "parts", space, Limits(1), quiet=True)
    searches.resume(tmp_path / "parts", Limits(2), {"device": 1, "jobs": 2}, quiet=True)
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
    searches.resume(folder, quiet=True, say=said.append)
    assert re.search(f"warning: .*{found}; the others are trained again", "\n".join(said))
    assert table(folder) == table(study)
    assert (folder / "best.toml").read_bytes() == before["best.toml"]
    (folder / "trials.csv").unlink()
    (folder / "study.journal").unlink()
    with pytest.raises(InputError, match=r"0 trials; expected at least 1, as best\.toml has"):
        gcnbatch.report(folder)


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
                    searches.resume(folder, quiet=True)
    assert (folder / "best.toml").read_bytes() == (study / "best.toml").read_bytes()


def failing(error: Exception) -> Any:
    def fail(*about: object) -> None:
        raise error

    return fail


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
    assert searches.resume(folder, quiet=True)["trials"] == 6
    assert table(folder) == table(study)


def test_a_damaged_study_is_refused(study: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing: not a study; expected a folder with config\.toml and study\.json"):
        searches.resume(tmp_path / "nothing")
    folder = tmp_path / "study"
    folder.mkdir()
    for path in study.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    journal = (folder / "study.journal").read_text(encoding="utf-8")
    for old, new, message in (
        ('"seconds":', '"second":', r"trial 0: 'seconds': missing; expected the journal"),
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
            searches.resume(folder, Limits(7), quiet=True)
    (folder / "config.toml").write_text("", encoding="utf-8")
    for take in (searches.resume, gcnbatch.report):
        with pytest.raises(
            InputError, match=r"config\.toml: data\.path: missing; expected the data set\. Restore the f"
        ):
            take(folder)
    (folder / "config.toml").write_bytes((study / "config.toml").read_bytes())
    (folder / "study.journal").write_text("{}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"study\.journal: damaged .*; expected the journal of a study"):
        searches.resume(folder, Limits(7), quiet=True)
    (folder / "study.json").write_text('{"trials": 6, "at_once": 0, "alike": false}', encoding="utf-8")
    with pytest.raises(InputError, match=r"study\.json: 'at_once': 0, not at least 1; expected"):
        searches.resume(folder, quiet=True)


OF_ANOTHER = "trial 0: not a finished trial of this space; expected the journal of a study"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": "x"}, "trial 0: 'values.0': 'x', not a number"),
        ({"value": "9"}, "trial 0: 'values.0': '9', not a number"),
        ({"value": math.nan}, "trial 0: 'values.0': nan, not a finite number"),
        ({"value": math.inf}, "trial 0: 'values.0': inf, not a finite number"),
        ({"value": 10**400}, "trial 0: 'values.0': 1000"),
        ({"value": None, "values": [0.5, 0.5]}, "trial 0: 'values': [0.5, 0.5], not a list of at most 1; "),
        ({"value": None, "values": None}, OF_ANOTHER),
        ({"state": 0}, "trial 0: 'state': 'RUNNING', not 'COMPLETE', 'PRUNED' or 'FAIL'"),
        ({"intermediate_values": {"1": "x"}}, "trial 0: 'intermediate_values.1': 'x', not a number"),
        ({"params": {"train.learning_rate": 5.0}}, OF_ANOTHER),
        ({"params": {"train.learning_rate": "x"}}, OF_ANOTHER),
        ({"params": {}}, OF_ANOTHER),
        ({"distributions": {}}, "damaged ("),
        ({"user_attrs": {"number": 2**70}}, "trial 0: 'number': 1180591620717411303424, not at most 9007199254740992"),
        ({"user_attrs": {"epochs": ["1"]}}, "trial 0: 'epochs.0': '1', not a whole number"),
        ({"user_attrs": {"seconds": -1}}, "trial 0: 'seconds': -1, not at least 0; "),
        ({"user_attrs": {"seconds": math.inf}}, "trial 0: 'seconds': inf, not at most 9007199254740992; "),
        ({"user_attrs": {"reason": 5}}, "trial 0: 'reason': 5, not a text"),
    ],
)
def test_a_trial_of_a_stranger_is_refused(study: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "study"))
    first, line, *others = (folder / "study.journal").read_text(encoding="utf-8").splitlines(keepends=True)
    trial = json.loads(line)
    for key, value in changes.items():
        trial[key] = {**trial[key], **value} if isinstance(value, dict) and value else value
    (folder / "study.journal").write_text("".join([first, json.dumps(trial) + "\n", *others]), encoding="utf-8")
    for read in (lambda: searches.resume(folder, Limits(7), quiet=True), lambda: searches.report(folder)):
        with pytest.raises(InputError, match=rf"study\.journal(, |: ){re.escape(message)}"):
            read()
