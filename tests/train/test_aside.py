"""A report that other processes help with is the same report; where they cannot, it is written all the same."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.cli import app
from gcnbatch.data.schema import Header
from gcnbatch.errors import MachineError
from gcnbatch.train import run
from gcnbatch.train.aside import Aside
from gcnbatch.train.metrics import activate
from gcnbatch.train.report import HERE, Report
from tests.train.runs import environment


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
def apart() -> Iterator[Aside]:
    with Aside(apart=True) as started:
        assert len(started._helpers) == 2
        yield started


@pytest.fixture
def only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process evaluate and draw nothing."""

    def here(*call: object) -> Future[Any]:
        raise AssertionError("done here")

    monkeypatch.setattr(type(HERE), "submit", here)


def test_what_another_process_writes_is_what_this_one_would(
    apart: Aside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for place in ("here", "there", "again"):
        (tmp_path / place).mkdir()
    found = [report(tmp_path / "here").write()]
    request.getfixturevalue("only_there")
    found += [apart.write(report(tmp_path / place)) for place in ("there", "again")]
    assert found[0] == found[1] == found[2]
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {"metrics.json", "predictions.csv", "learning_curves.png", "roc_pr.png"}
    for place in ("there", "again"):
        assert {path.name for path in (tmp_path / place).iterdir()} == names
        for name in names:
            assert (tmp_path / place / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name


def processes(of: Aside) -> list[subprocess.Popen[bytes]]:
    return [worker.process for helper in of._helpers for worker in helper._workers]


@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_died_is_done_without(which: int, apart: Aside, tmp_path: Path) -> None:
    started = processes(apart)
    started[which].kill()
    assert apart.write(report(tmp_path))["seconds"] == 0.25
    assert (tmp_path / "metrics.json").exists()
    assert all(process.returncode is not None for process in started)


def test_a_report_that_cannot_be_sent_is_written_here(apart: Aside, tmp_path: Path) -> None:
    class Local(dict[str, Any]):
        """Has no name that another process could find it by."""

    found = report(tmp_path, rows=5)
    found.history[0] = Local(found.history[0])
    assert apart.write(found)["backend"] == "fused"


def test_without_threads_to_spare_it_is_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with Aside(apart=True) as here:
        assert not here._helpers
        assert here.write(report(tmp_path, rows=5))["backend"] == "fused"


@pytest.mark.parametrize("executable", ["/nowhere/python", ""])
def test_without_a_python_to_start_it_is_written_here(
    executable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with Aside(apart=True) as here:
        assert not here._helpers
        assert here.write(report(tmp_path, rows=5))["backend"] == "fused"


def test_its_errors_are_those_of_this_process(apart: Aside, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"nowhere/learning_curves\.png: cannot write here"):
        apart.write(report(tmp_path / "nowhere", rows=5))
    assert apart.write(report(tmp_path, rows=5))["backend"] == "fused"


def test_it_ends_with_who_started_it_and_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with Aside(apart=True) as started:
        begun, deadline = processes(started), time.monotonic() + 60
        while not any(tmp_path.iterdir()):  # until it rehearses
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert all(process.returncode is not None for process in begun)
    assert not any(tmp_path.iterdir())


def test_nor_does_a_report_leave_what_matplotlib_keeps_where_it_has_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in (("TMPDIR", tmp_path / "temporary"), ("MPLCONFIGDIR", Path("/proc/nowhere"))):
        monkeypatch.setenv(name, str(place))
    for place in ("temporary", "run"):
        (tmp_path / place).mkdir()
    with Aside(apart=True) as started:
        started.write(report(tmp_path / "run", rows=5))
        assert any((tmp_path / "temporary").iterdir())
    assert not any((tmp_path / "temporary").iterdir())


def test_a_rehearsal_imports_all_that_a_report_takes(tmp_path: Path) -> None:
    text = f"""
import sys
from pathlib import Path
from gcnbatch.train import aside
from tests.train.test_aside import report
written = report(Path({str(tmp_path)!r}))
aside.rehearse_numbers()
aside.rehearse_pictures()
known = set(sys.modules)
written.write()
print(sorted(set(sys.modules) - known))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(), check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("has_gpu", [True, False])
def test_training_on_a_gpu_has_its_report_written_aside(
    has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writers: list[Any] = []

    def start(config: object, folder: Path, quiet: bool, say: object, write: Any) -> tuple[Path, dict[str, Any]]:
        writers.append((write.__self__, bool(write.__self__._helpers)))
        return folder, {}

    monkeypatch.setattr(loader, "wake", lambda number: object() if has_gpu else None)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(run, "start", start)
    monkeypatch.setattr(sys, "argv", ["gcnbatch", "train", "--backend", "auto", "-q", "-o", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        app.main()
    assert left.value.code in (0, None)
    ((writer, apart),) = writers
    assert isinstance(writer, Aside)
    assert apart == has_gpu
    assert not writer._helpers  # they have ended
    capsys.readouterr()


def test_the_processes_start_before_anything_large_is_imported() -> None:
    text = """
import sys
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.train import aside
print(sorted({"numpy", "pydantic", "h5py"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(), check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
