"""A report that another process writes is the same report; where it cannot, the report is written all the same."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.backends.cuda import loader
from gcnbatch.cli import app
from gcnbatch.data.schema import Header
from gcnbatch.errors import MachineError
from gcnbatch.train import aside
from gcnbatch.train.aside import Aside
from gcnbatch.train.metrics import activate
from gcnbatch.train.report import Report


def report(folder: Path, rows: int = 400) -> Report:
    """Return one that is larger than a pipe holds."""
    rng = np.random.default_rng(0)
    parts = ("train", "valid", "test")
    labels = {part: (rng.random((rows, 12)) < 0.3).astype(np.float32) for part in parts}
    outputs = {part: activate("binary", rng.normal(size=y.shape) + y) for part, y in labels.items()}
    tasks = tuple(f"task {number}" for number in range(12))
    header = Header(name="a", level="graph", target="binary", task_names=tasks, n_features=3, channel_names=("bond",))
    history = [{"epoch": e, "train_loss": 1 / e, "valid_loss": None, "learning_rate": 1e-3} for e in (1, 2)]
    ids = np.array([f"molecule {row}" for row in range(rows)])
    return Report(folder, header, labels, outputs, ids, history, {"backend": "fused", "seconds": 0.25})


@pytest.fixture
def apart():
    with Aside(apart=True) as started:
        yield started


def test_what_another_process_writes_is_what_this_one_would(apart: Aside, tmp_path: Path) -> None:
    found = []
    for place in ("here", "there", "again"):
        (tmp_path / place).mkdir()
        written = report(tmp_path / place)
        found.append(written.write() if place == "here" else apart.write(written))
    assert apart._process is not None
    assert found[0] == found[1] == found[2]
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {"metrics.json", "predictions.csv", "learning_curves.png", "roc_pr.png"}
    for place in ("there", "again"):
        assert {path.name for path in (tmp_path / place).iterdir()} == names
        for name in names:
            assert (tmp_path / place / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name


def test_a_process_that_died_is_done_without(apart: Aside, tmp_path: Path) -> None:
    assert apart._process is not None
    apart._process.kill()
    assert apart.write(report(tmp_path))["seconds"] == 0.25
    assert (tmp_path / "metrics.json").exists()
    assert apart._process is None


def test_without_a_program_to_start_it_is_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    with Aside(apart=True) as here:
        assert here._process is None
        assert here.write(report(tmp_path))["backend"] == "fused"


def test_its_errors_are_those_of_this_process(apart: Aside, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"nowhere/learning_curves\.png: cannot write here"):
        apart.write(report(tmp_path / "nowhere", rows=5))
    assert apart.write(report(tmp_path, rows=5))["backend"] == "fused"
    assert apart._process is not None


def test_it_ends_with_who_started_it() -> None:
    with Aside(apart=True) as started:
        process = started._process
    assert process is not None
    assert process.returncode is not None


def test_it_rehearses_all_that_it_will_need() -> None:
    aside._rehearse()


@pytest.mark.parametrize("has_gpu", [True, False])
def test_training_on_a_gpu_has_its_report_written_aside(
    has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []
    monkeypatch.setattr(loader, "wake", lambda number: object() if has_gpu else None)
    monkeypatch.setattr(aside, "_started", lambda: started.append(True))
    options = ["--data", str(tmp_path / "none.h5"), "--backend", "auto"]
    monkeypatch.setattr(sys, "argv", ["gcnbatch", "train", *options])
    with pytest.raises(SystemExit):
        app.main()
    assert bool(started) == has_gpu
    capsys.readouterr()
