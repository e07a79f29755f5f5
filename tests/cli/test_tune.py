"""``gcnbatch tune``: options, refusals and what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tests.training.runs import options, write_set

Call = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("light")


def test_a_study_prints_its_best_trial_and_its_path_last(tmp_path: Path, call: Call) -> None:
    write_set(tmp_path / "set.h5")
    (tmp_path / "space.toml").write_text("[model]\nwidths = { choices = [[4], [8]] }", encoding="utf-8")
    about = ("--data", tmp_path / "set.h5", "--space", tmp_path / "space.toml", "--jobs", "1")
    small = (*options("split.valid=0.3"), "--epochs", "1", "--trials", "2", "-o", tmp_path / "study")
    code, out, err = call("tune", *about, *small)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("2 trials: 2 complete, 0 pruned, 0 failed")
    assert lines[-1] == str(tmp_path / "study")
    assert any(line.startswith("model.widths ") for line in lines)
    assert any(line.startswith("trial 2 of 2, best ROC-AUC ") for line in err.splitlines())
    code, out, err = call("tune", "--resume", tmp_path / "study", "--trials", "3", "--device", "1", "--json")
    assert (code, json.loads(out)["trials"]) == (0, 3), err
    assert err.startswith("not used: --device; backend cpu computes on the host\n")
    (tmp_path / "study" / "study.journal").write_bytes(b"")
    code, _, err = call("tune", "--resume", tmp_path / "study", "--quiet")
    assert code == 0
    assert "study.journal: 0 trials; expected at least 3, as trials.csv has; the others are trained again" in err
    code, _, err = call("tune", "--resume", tmp_path / "study", "--epochs", "3", "--space", "x.toml")
    assert (code, err) == (
        2,
        "error: --resume: together with --space, --epochs; expected nothing but --trials, --minutes, --device and "
        "--jobs. A study keeps its configuration and its space.\n",
    )


def test_without_optuna_the_extra_is_named(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gcnbatch.tuning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = call("tune", "-o", tmp_path / "study")
    message = "error: gcnbatch tune: Optuna is not installed. Install it: pip install 'gcnbatch[tune]'.\n"
    assert (code, err) == (3, message)
    assert not (tmp_path / "study").exists()
