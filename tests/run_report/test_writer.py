"""Report workers write the same bytes as this process; if they fail, this process writes the report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch import resampling, startup
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.cli import app
from gcnbatch.data.copies import across_splits
from gcnbatch.data.featurizer_options import FeaturizerOptions
from gcnbatch.data.graphs import Split
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.errors import MachineError
from gcnbatch.metrics import activate
from gcnbatch.run_report import page
from gcnbatch.run_report.writer import ParallelWriter, beside_training, open_writer
from gcnbatch.training import finished, plots, run
from gcnbatch.training.finished import read_fits
from gcnbatch.training.reports import Report
from gcnbatch.training.summary import draw_curves
from gcnbatch.workers.pool import INLINE, Workers
from tests.run_report.runs import with_data
from tests.training.runs import environment
from tests.workers.test_pool import is_alive


def report(folder: Path, rows: int = 800, tasks: int = 3) -> Report:
    """Return a report that is by default larger than the buffer of a pipe."""
    rng = np.random.default_rng(0)
    parts = ("train", "valid", "test")
    labels = {part: (rng.random((rows, tasks)) < 0.3).astype(np.float32) for part in parts}
    outputs = {part: activate("binary", rng.normal(size=y.shape) + y) for part, y in labels.items()}
    names = tuple(f"task {number}" for number in range(tasks))
    header = Header(name="a", level="graph", target="binary", task_names=names, n_features=3, channel_names=("bond",))
    history = [{"epoch": e, "train_loss": 1 / e, "valid_loss": None, "learning_rate": 1e-3} for e in (1, 2)]
    ids = np.array([f"molecule {row}" for row in range(rows)])
    course = {"backend": "fused", "seconds": 0.25}
    return Report(folder, header, labels, outputs, folder / "set.h5", np.arange(rows), ids, history, course)


PAGES = ("report.html", "model_card.md")
UNCERTAIN = ("uncertainty.safetensors", "uncertainty.png")


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Workers]:
    """Return a list that collects the pools of workers as they start."""
    started: list[Workers] = []

    class Noted(Workers):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(startup, "Workers", Noted)
    return started


def processes(pools: list[Workers]) -> list[Any]:
    return [worker.process for pool in pools for worker in pool._workers]


def has_ended(process: Any) -> bool:
    """Return whether a process of a pool has ended; one that was never forked has."""
    return process.pid is None or not is_alive(process.pid)


@pytest.fixture
def writer(pools: list[Workers]) -> Iterator[ParallelWriter]:
    """Return what writes reports in workers."""
    with beside_training(1, 1) as writer:
        assert [len(pool._workers) for pool in pools] == [1, startup.PLOT_WORKERS, 1]
        yield writer


@pytest.fixture
def light_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the preloading of modules and the first figure in tests whose workers compute nothing."""
    for name in ("FITS", "PAGE", "MIXTURE"):
        monkeypatch.setattr(startup, name, ())
    monkeypatch.setattr(startup, "prepare_plots", startup.preload)


@pytest.fixture
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the preloading of the page's modules, and draw in one process."""
    monkeypatch.setattr(startup, "PAGE", ())
    monkeypatch.setattr(startup, "PLOT_WORKERS", 1)


@pytest.fixture
def only_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbid evaluation and plotting in this process."""

    def here(*call: object) -> Future[Any]:
        raise AssertionError("computed here")

    monkeypatch.setattr(type(INLINE), "submit", here)


@pytest.mark.slow
def test_workers_write_the_same_bytes_as_this_process(
    without_page: None, writer: ParallelWriter, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for place in ("here", "workers", "again"):
        (tmp_path / place).mkdir()
    found = [report(tmp_path / "here").write()]
    request.getfixturevalue("only_in_workers")
    found += [writer.write(report(tmp_path / place)) for place in ("workers", "again")]
    assert found[0] == found[1] == found[2]
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {"metrics.json", "predictions.csv", "learning_curves.png", "roc_pr.png", *UNCERTAIN}
    for place in ("workers", "again"):
        assert {path.name for path in (tmp_path / place).iterdir()} == names
        for name in names:
            assert (tmp_path / place / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name


@pytest.mark.usefixtures("light_workers", "only_in_workers")
def test_a_worker_writes_a_whole_report_without_figures(tmp_path: Path) -> None:
    (tmp_path / "roc_pr.png").touch()  # of an earlier end of the run
    with beside_training(2, 1) as writer:
        metrics = writer.write(replace(report(tmp_path, rows=60), has_figures=False))
    assert metrics == json.loads((tmp_path / "metrics.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "predictions.csv", UNCERTAIN[0]}


@pytest.mark.usefixtures("light_workers")
def test_a_worker_finds_copies_in_different_parts_of_a_split(
    tmp_path: Path, writer: ParallelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.csv").write_text("smiles,y\nCCO,1\nOCC,0\nCC,1\nCN,1\n")
    import_smiles(tmp_path / "m.csv", tmp_path / "m.h5", FeaturizerOptions(), processes=1)
    splits = {"": Split(*(np.array(rows) for rows in ([0, 2], [3], [1])))}
    with Dataset(tmp_path / "m.h5") as dataset:
        expected = across_splits(dataset, splits)
        assert expected[0].startswith("copies: 1 molecule stands in different parts of the split, in 2 rows")
        monkeypatch.setattr("gcnbatch.training.reports.across_splits", lambda *about: ["found here"])
        assert writer.copies(dataset, splits) == expected
        assert writer._pools
        for worker in writer._pools.page._workers:
            worker.process.kill()
        assert writer.copies(dataset, splits) == ["found here"]


# ------------------------------------------------------------------------------------------------ without workers


@pytest.mark.usefixtures("light", "light_workers")
@pytest.mark.parametrize("which", [0, 1])
def test_this_process_writes_the_report_if_a_worker_died(
    which: int, pools: list[Workers], writer: ParallelWriter, tmp_path: Path
) -> None:
    for worker in pools[which]._workers:
        worker.process.kill()
    assert writer.write(report(tmp_path, rows=5))["seconds"] == 0.25
    assert (tmp_path / "metrics.json").exists()


@pytest.mark.usefixtures("light", "light_workers")
def test_this_process_writes_a_report_that_cannot_be_pickled(writer: ParallelWriter, tmp_path: Path) -> None:
    class Local(np.ndarray[Any, Any]):
        """A class that another process cannot import by name."""

    found = report(tmp_path, rows=5)
    found.labels["test"] = found.labels["test"].view(Local)
    assert writer.write(found)["backend"] == "fused"


@pytest.mark.usefixtures("light")
def test_this_process_writes_the_report_if_no_thread_can_start(
    pools: list[Workers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: begun.append(popen(*given, **named)) or begun[-1])
    monkeypatch.setattr(threading.Thread, "start", start)
    with beside_training(1, 1) as writer:
        assert not pools
        assert [process.returncode is None for process in begun] == [False]  # started, and ended again
        assert writer.write(report(tmp_path, rows=5))["backend"] == "fused"


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("executable", ["/nowhere/python", "", None])
def test_this_process_writes_the_report_without_a_python_executable(
    executable: str | None, pools: list[Workers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with beside_training(1, 1) as writer:
        assert not pools
        assert writer.write(report(tmp_path, rows=5))["backend"] == "fused"


@pytest.mark.usefixtures("light_workers")
def test_an_error_of_the_report_is_raised_in_this_process(
    writer: ParallelWriter, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(MachineError, match=r"nowhere/learning_curves\.png: cannot write here"):
        writer.write(report(tmp_path / "nowhere", rows=5))
    request.getfixturevalue("light")
    assert writer.write(report(tmp_path, rows=5))["backend"] == "fused"


# ------------------------------------------------------------------------------------------------ start and end


def test_workers_end_with_the_run_even_while_they_import(pools: list[Workers]) -> None:
    with beside_training(1, 1):
        started = processes(pools)
        assert len(started) == 5
        assert not all(map(has_ended, started))
    assert all(map(has_ended, started))


def test_workers_remove_matplotlibs_temporary_folder(
    pools: list[Workers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in (("TMPDIR", tmp_path / "temporary"), ("MPLCONFIGDIR", Path("/proc/nowhere"))):
        monkeypatch.setenv(name, str(place))
    for name in ("FITS", "PAGE"):
        monkeypatch.setattr(startup, name, ())
    monkeypatch.setattr(startup, "PLOT_WORKERS", 1)  # it looks for all fonts
    (tmp_path / "temporary").mkdir()
    with beside_training(1, 1):
        pools[1].submit(os.getpid).result()  # it has imported matplotlib
        assert len(list((tmp_path / "temporary").iterdir())) == 1
    assert not any((tmp_path / "temporary").iterdir())


@pytest.mark.slow
def test_each_worker_preloads_every_module_that_its_part_of_a_report_needs(tmp_path: Path) -> None:
    """Pillow's plugins are left out: Pillow imports them on demand; safetensors, too: training has written weights."""
    fits = Workers(1, startup.preload, startup.FITS, quiet=True)
    plots = Workers(1, startup.prepare_plots, quiet=True)
    with fits, plots:
        known = [loaded(fits), loaded(plots)]
        written = report(tmp_path, rows=60)
        written.write(fits, plots)
        histories = [(tmp_path / "history.jsonl", 1)]
        histories[0][0].write_text(json.dumps({"epoch": 1, "train_loss": 1.0, "valid_loss": None}) + "\n")
        plots.submit(draw_curves, tmp_path, histories).result()
        fits.submit(Report.write, replace(written, has_figures=False)).result()
        assert [sorted(loaded(pool) - before) for pool, before in zip((fits, plots), known, strict=True)] == [[], []]


def loaded(pool: Workers) -> set[str]:
    names: list[str] = pool.submit(eval, "list(__import__('sys').modules)").result()
    return {name for name in names if not name.startswith(("PIL.", "safetensors"))}


@pytest.mark.usefixtures("light_workers")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), 5), (("--folds", "6"), 5), (("--set", "split.cross_fit=2", "--set", "train.mixture=true"), 6)],
    ids=["one model", "many", "mixture"],
)
@pytest.mark.parametrize("has_gpu", [True, False])
def test_training_starts_workers_on_a_gpu_only(
    has_gpu: bool,
    arguments: tuple[str, ...],
    expected: int,
    pools: list[Workers],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    running: list[int] = []

    def start(
        config: object, folder: Path, quiet: bool, say: object, *more: object, **named: object
    ) -> tuple[Path, dict[str, Any]]:
        running.append(len(processes(pools)))
        assert not any(process.pid and has_ended(process) for process in processes(pools))
        return folder, {}

    monkeypatch.setattr(loader, "wake", lambda number: object() if has_gpu else None)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(run, "start", start)
    monkeypatch.setattr("gcnbatch.run_report.writer.update", print)
    monkeypatch.setattr(sys, "argv", ["gcnbatch", "train", "--backend", "auto", "-q", "-o", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as left:
        app.main()
    assert left.value.code in (0, None)
    assert running == [expected if has_gpu else 0]
    assert all(map(has_ended, processes(pools)))
    capsys.readouterr()


@pytest.mark.usefixtures("light_workers")
@pytest.mark.parametrize(("members", "expected"), [(2, [2, 3, 1]), (5, [5, 3, 1]), (100, [12, 3, 1])])
def test_several_members_have_more_workers_up_to_the_number_of_cores(
    members: int, expected: list[int], pools: list[Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(14)))
    with startup.report_pools(members):
        assert [len(pool._workers) for pool in pools] == expected


def test_workers_start_before_anything_large_is_imported() -> None:
    text = """
import sys
from gcnbatch.backends.cuda.runtime import loader
import gcnbatch.startup
print(sorted({"numpy", "pydantic", "h5py"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(), check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


STARTING = """
import sys
from gcnbatch import startup
from gcnbatch.backends import registry
from gcnbatch.backends.cuda.runtime import loader

registry.may_use_gpu = lambda name: True
loader.wake = lambda device: object()

def start(models):
    large = "gcnbatch.config", "numpy", "scipy", "h5py", "sklearn", "matplotlib"
    print([name for name in large if name in sys.modules])
    raise SystemExit

startup.report_pools = start
startup._cores = lambda: 2
sys.argv = ["gcnbatch", "train", "quickstart"]
from gcnbatch.cli.app import main
main()
"""


def test_workers_start_before_large_libraries_are_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTING], capture_output=True, text=True, env=environment(), check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# ------------------------------------------------------------------------------------------------ the page


def of_run(folder: Path) -> Report:
    """Return the report of a run that a test has copied, with its test rows alone."""
    (fit,) = read_fits(folder)
    with Dataset(Path((folder / "data.sha256").read_text().split()[1])) as data:
        rows, outputs = fit.split.test, {"test": fit.outputs(data.header)}
        labels, course = (
            {"test": data.y[rows]},
            {key: fit.metrics[key] for key in ("backend", "epochs", "seconds", "split")},
        )
        return Report(folder, data.header, labels, outputs, data.path, rows, data.ids[rows], [], course)


@pytest.mark.usefixtures("light_workers")
def test_a_worker_writes_the_page_that_this_process_writes_where_it_died(
    runs: Path, tmp_path: Path, writer: ParallelWriter, pools: list[Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(runs / "molecules", tmp_path / "run"))
    monkeypatch.setattr(plots, "roc_pr", print)  # a worker can import it, and it is quick
    writer.write(of_run(folder))
    found = []
    for dies in (False, True):
        for name in PAGES:
            (folder / name).unlink()
        with monkeypatch.context() as patch:
            if dies:
                pools[2]._workers[0].process.kill()
            else:
                patch.delattr(resampling, "intervals")
                patch.delattr(page, "render")
            writer.page(folder)
        found.append([(folder / name).read_bytes() for name in PAGES])
    assert found[0] == found[1]
    assert b"<svg" in found[0][0]
    assert b"resamples of the test rows" in found[0][0]


def test_a_page_without_workers_takes_the_test_rows_of_the_report(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(runs / "molecules", tmp_path / "run"))
    report, found = of_run(folder), []
    monkeypatch.setattr(plots, "roc_pr", print)
    with open_writer(None, 1) as writer, monkeypatch.context() as patch:
        writer.write(report)
        patch.delattr(finished, "read_outputs")
        writer.page(folder)
        found.append([(folder / name).read_bytes() for name in PAGES])
    with open_writer(None, 1) as writer:  # it has no report and reads the rows
        writer.page(folder)
        found.append([(folder / name).read_bytes() for name in PAGES])
    assert found[0] == found[1]
    assert b"resamples of the test rows" in found[0][0]


def test_a_page_without_workers_says_why_it_has_no_test_rows(runs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs / "molecules", tmp_path / "run"))
    report = replace(of_run(folder), data=tmp_path / "gone.h5", has_figures=False)
    with_data(folder, report.data)
    with open_writer(None, 1) as writer:
        writer.write(report)
        writer.page(folder)
    assert "gone.h5" in (folder / "report.html").read_text()
