"""Complete comparisons of test backends: contents of the report, left-out backends, refused options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest

import gcnbatch
from gcnbatch.backends.cpu import CpuOps
from gcnbatch.config import resolve
from gcnbatch.errors import BackendUnavailable, DeviceLost, InputError, MachineError
from gcnbatch.lab.backend_comparison import comparison, workload
from gcnbatch.lab.backend_comparison.timeline import DEVICE, HOST
from gcnbatch.lab.backend_comparison.workload import QUICK, opened
from gcnbatch.runners.single import SingleRunner
from tests.lab.backend_comparison import backends
from tests.lab.backend_comparison.backends import Another, CountingMeter, DeviceLike, FusedLike, LaunchingOps

SPEED = re.compile(r"speedup|as fast as|graphs per second|GB/s|us per|seconds per", re.IGNORECASE)
FILES = {"report.json", "report.md", "report.html", "training.png", "inference.png", "operations.png", "timeline.png"}


@pytest.fixture
def run(small, tmp_path: Path):
    def compare(*names: str, **options):
        tree = {"name": "small", "data": {"path": str(small)}, "model": {"widths": [8, 8]}, "train": {"batch_size": 12}}
        options = {"folder": tmp_path / "report", "effort": QUICK, **options}
        return comparison.compare(resolve(tree), names, **options)

    return compare


def test_a_report_of_a_host_and_a_device_backend(install, run, tmp_path: Path) -> None:
    install(cpu=Another("cpu"), nonbatched="no driver", batched=DeviceLike())
    said: list[str] = []
    folder, report = run(trace_file=tmp_path / "trace.json", say=said.append)
    assert {path.name for path in folder.iterdir()} == FILES
    assert json.loads((folder / "report.json").read_text()) == report
    assert said == ["nonbatched is left out: no driver"]
    states = {one["name"]: one for one in report["backends"]}
    assert (states["nonbatched"]["ready"], states["nonbatched"]["reason"]) == (False, "no driver")
    assert (states["cpu"]["clock"], states["batched"]["clock"]) == ("host", "device")

    timing = report["timing"]
    assert timing["cpu"]["launches_per_step"] is None
    operations = report["operations"]["batched"]
    launches = sum(cost["launches"] for cost in operations.values())
    apart = 2 * 2 * 3  # of three products with bias, forward and backward, a launching Add each
    assert timing["batched"]["launches_per_step"] == launches - apart > 20
    assert operations["MatMul forward"]["calls"] == operations["Add forward"]["calls"] == 3
    assert "MatMul + Add forward" not in operations
    assert operations["SpMM forward"]["calls"] == 2
    assert operations["SpMM forward"]["launches"] == 4
    assert operations["Gather"]["launches"] == 0
    assert operations["SpMM forward"]["bytes"] == report["operations"]["cpu"]["SpMM forward"]["bytes"] > 0
    assert 0 < timing["batched"]["busy_share"] <= 1
    assert timing["cpu"]["peak_bytes"] > 1000
    for work in ("training", "inference"):
        medians = {name: one[work]["seconds"]["median"] for name, one in timing.items()}
        assert report["speedup"][work]["cpu"]["batched"] == pytest.approx(medians["cpu"] / medians["batched"])
    assert timing["cpu"]["training"]["graphs"] == 31
    assert timing["cpu"]["inference"]["graphs"] == 40
    for key in ("numpy", "h5py"):
        assert report["environment"]["packages"][key]

    before = (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    assert gcnbatch.report(folder) == folder / "report.html"
    assert (folder / "report.html").read_text() == before
    (folder / "report.json").write_text(json.dumps({**report, "data": []}))
    with pytest.raises(InputError, match=r"report\.json: TypeError: .*; expected the report of compare-backends"):
        gcnbatch.report(folder)


@pytest.mark.usefixtures("no_charts")
def test_a_backend_is_also_timed_with_its_own_batch_size(install, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "EVAL_BATCH_SIZE", 12)
    sizes = {"cpu": 12, "batched": 35}
    monkeypatch.setattr(SingleRunner, "eval_batch_size", property(lambda self: sizes[self.backend]))
    install(cpu=Another("cpu"), batched=DeviceLike())
    folder, report = run()
    assert report["timing"]["cpu"]["own_inference"] is None
    own = report["timing"]["batched"]["own_inference"]
    assert (own["batch_size"], own["batches"], own["graphs"]) == (35, 2, 40)
    assert report["timing"]["batched"]["inference"]["batch_size"] == report["data"]["inference_batch_size"] == 12
    lines = (folder / "report.md").read_text().splitlines()
    rows = {cells[1].strip(): cells[2:4] for line in lines if len(cells := line.split("|")) == 5}
    assert [cell.strip() for cell in rows["graphs in such a batch"]] == ["–", "35"]
    assert rows["graphs per second, own batches"][0].strip() == "–"
    assert any("Own batches: as many graphs" in line for line in lines)


def test_the_html_page_is_self_contained(install, run) -> None:
    install(cpu=Another("cpu"), batched=DeviceLike())
    folder, _ = run()
    page = (folder / "report.html").read_text()
    assert not re.search(r"https?:|<script src|<link|@import|url\(", page)
    assert re.findall(r'src="(.{22})', page) == ["data:image/png;base64,"] * 4
    assert "made up &lt;for tests&gt;" in page
    text = (folder / "report.md").read_text()
    for name in re.findall(r"!\[.*\]\((.*)\)", text):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    for shown in (page, text):
        for part in (
            "Parity",
            "Training time",
            "Inference time",
            "Operations",
            "speedup over cpu",
            "Environment",
            "sha256",
        ):
            assert part in shown


@pytest.mark.usefixtures("no_charts")
def test_the_timeline_has_every_call_and_launch(install, run, tmp_path: Path) -> None:
    install(cpu=Another("cpu"), batched=DeviceLike())
    trace = tmp_path / "trace.json"
    _, report = run(trace_file=trace)
    events = json.loads(trace.read_text())["traceEvents"]
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert list(processes) == ["cpu: one training step", "batched: one training step"]
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= -1 and event["dur"] >= 0 for event in spans)
    host = [event for event in spans if event["pid"] == 2 and event["tid"] == 1]
    device = [event for event in spans if event["pid"] == 2 and event["tid"] == 2]
    assert [event["name"] for event in host][:4] == ["gather", "linear", "spmm", "batch_norm"]
    assert host[-1]["name"] == "adam_step"
    assert len(device) == report["timing"]["batched"]["launches_per_step"]
    assert [(event["name"], event["cat"]) for event in device[:3]] == [
        ("linear_1", "MatMul + Add"),
        ("linear_2", "MatMul + Add"),
        ("spmm_1", "SpMM"),
    ]
    assert not [event for event in spans if event["pid"] == 1 and event["tid"] == 2]


@pytest.mark.usefixtures("no_charts")
def test_a_fused_step_is_shown_by_its_kernels(install, run, tmp_path) -> None:
    install(batched=DeviceLike(), fused=FusedLike())
    _, report = run(trace_file=tmp_path / "trace.json")
    assert report["parity"]["backends"]["fused"]["passed"]
    launches = report["timing"]["fused"]["launches_per_step"]
    kernels = report["operations"]["fused"]
    assert [kernels[name]["launches"] for name in ("linear_1", "spmm_2", "adam_step_1")] == [3, 2, 1]
    assert sum(kernel["launches"] for kernel in kernels.values()) == launches
    assert all(kernel["bytes"] is None and kernel["microseconds"] >= 0 for kernel in kernels.values())
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    pids = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == pids["fused: one training step"]]
    assert [span["name"] for span in spans if span["tid"] == HOST] == ["step"]
    shown = [span for span in spans if span["tid"] == DEVICE]
    assert {span["name"] for span in shown} == set(kernels)
    assert len(shown) == launches
    assert [span["ts"] for span in shown] == sorted(span["ts"] for span in shown)


def test_without_parity_no_speed_is_reported(install, run, tmp_path: Path) -> None:
    install(cpu=Another("cpu"), batched=Another("batched", backends.OneWrongElement()))
    trace = tmp_path / "trace.json"
    folder, report = run(trace_file=trace)
    assert not report["parity"]["passed"]
    assert report["parity"]["backends"]["cpu"]["passed"]
    found = report["parity"]["backends"]["batched"]
    worst = found["worst"]
    assert worst["name"].endswith(".weight")
    assert any(one["where"].startswith("batch ") and one["error"] > one["bound"] for one in found["deviations"])
    assert report["timing"] is report["speedup"] is report["operations"] is None
    assert {path.name for path in folder.iterdir()} == {"report.json", "report.md", "report.html"}
    assert not trace.exists()
    for name in ("report.md", "report.html"):
        shown = (folder / name).read_text()
        assert "batched does not agree with the reference" in shown
        assert worst["name"] in shown
        assert not SPEED.search(re.sub(r"<style>.*</style>", "", shown, flags=re.DOTALL))


NO_ROOM = MachineError("device 0 (H)", "out of memory: 3 of 8 MiB free", hint="Lower train.batch_size.")


class NoRoomMeter(CountingMeter):
    """A meter whose method `where` fails with too little memory."""

    def __init__(self, where: str) -> None:
        super().__init__()

        def fail(*given: object) -> NoReturn:
            raise NO_ROOM

        setattr(self, where, fail)


class NoRoom(DeviceLike):
    """A backend whose meter fails with too little memory."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.meter = NoRoomMeter(where)
        self.ops = LaunchingOps(self.meter)


class FailingOps(CpuOps):
    """Operations that fail in training."""

    def __init__(self, error: MachineError = NO_ROOM) -> None:
        super().__init__()
        self._error = error

    def spmm_backward(self, *arguments):
        raise self._error


def left_out(report: dict[str, Any], folder: Path, said: list[str]) -> None:
    states = {one["name"]: one for one in report["backends"]}
    assert (states["batched"]["ready"], states["cpu"]["ready"]) == (False, True)
    assert states["batched"]["reason"] == "device 0 (H): out of memory: 3 of 8 MiB free"
    assert said == [f"batched is left out: {NO_ROOM}"]
    assert report["parity"]["passed"]
    for part in ("timing", "operations"):
        assert list(report[part]) == ["cpu"]
    assert list(report["parity"]["backends"]) == ["cpu"]
    shown = (folder / "report.md").read_text()
    assert "left out: device 0 (H): out of memory: 3 of 8 MiB free. Lower train.batch_size." in shown
    assert "cpu agrees with the reference." in shown


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize(
    "failing",
    [Another("batched", FailingOps()), NoRoom("peak_bytes"), NoRoom("traced")],
    ids=["parity", "measuring", "operations"],
)
def test_a_backend_that_fails_during_the_comparison_is_left_out(install, run, failing) -> None:
    install(cpu=Another("cpu"), batched=failing)
    said: list[str] = []
    folder, report = run(say=said.append)
    left_out(report, folder, said)


@pytest.mark.usefixtures("no_charts")
def test_a_backend_that_does_not_open_is_left_out(install, run) -> None:
    install(cpu=Another("cpu"), batched=NO_ROOM)
    said: list[str] = []
    folder, report = run(say=said.append)
    left_out(report, folder, said)
    with pytest.raises(
        BackendUnavailable, match=r"none can be compared here \(batched: device 0 \(H\): out of memory.*\)\. Lower"
    ):
        run("batched", folder=folder.parent / "none")


def test_failures_of_the_host_or_a_lost_device_end_the_comparison(install, run, tmp_path: Path) -> None:
    install(cpu=Another("cpu"), batched=Another("batched", FailingOps(DeviceLost("device 0 (H)", "illegal access"))))
    with pytest.raises(DeviceLost):
        run()
    install(cpu=Another("cpu", FailingOps()), batched=DeviceLike())
    with pytest.raises(MachineError, match="out of memory"):
        run()
    install(nonbatched=Another("nonbatched", FailingOps()), batched=NoRoom("peak_bytes"))
    with pytest.raises(BackendUnavailable, match=r"none can be compared here \(nonbatched: .*; batched: .*\)\. Lower"):
        run()
    assert not (tmp_path / "report").exists()


@pytest.mark.usefixtures("no_charts")
def test_nan_is_null_in_the_report(install, run) -> None:
    install(cpu=Another("cpu", backends.NotANumber()))
    folder, report = run()
    assert json.loads((folder / "report.json").read_text()) == report
    assert report["parity"]["backends"]["cpu"]["worst"]["error"] is None


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize(
    ("section", "graphs"),
    [({"split": {"folds": 4}}, 26), ({"train": {"batch_size": 1000}}, 31), ({"train": {"optimizer": "sgd"}}, 31)],
    ids=["folds", "one batch", "sgd"],
)
def test_folds_one_batch_and_sgd_can_be_compared(small, install, tmp_path: Path, section, graphs: int) -> None:
    install(cpu=Another("cpu"))
    tree = {"data": {"path": str(small)}, "model": {"widths": [4]}, **section}
    _, report = comparison.compare(resolve(tree), (), tmp_path / "report", effort=QUICK)
    assert report["parity"]["passed"]
    assert report["data"]["training_graphs"] == graphs


def test_more_steps_than_an_epoch_repeat_its_batches(small) -> None:
    with opened(resolve({"data": {"path": str(small)}, "train": {"batch_size": 20}})) as work:
        assert [len(graphs) for graphs in work.repeated(5)] == [20, 11, 20, 11, 20]


def test_refused_comparisons_leave_no_folder(install, run, small, tmp_path: Path) -> None:
    install(cpu=Another("cpu"), batched="no driver")
    with pytest.raises(InputError, match=r"--backends: 'batchd'; expected cpu, batched. Did you mean 'batched'"):
        run("batchd")
    with pytest.raises(InputError, match=r"--backends: 'zzz'; expected cpu, batched$"):
        run("zzz")
    with pytest.raises(BackendUnavailable, match=r"none can be compared here \(batched: no driver\). Fix it"):
        run("batched")
    assert not (tmp_path / "report").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="already exists; expected a new or empty folder"):
        run(folder=tmp_path / "full")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be made"):
        run(folder=tmp_path / "file" / "report")
    with pytest.raises(InputError, match=r"trace\.json: no folder '.*missing'\. Make the folder first"):
        run(trace_file=tmp_path / "missing" / "trace.json")
    assert not (tmp_path / "report").exists()
    with pytest.raises(InputError, match=r"data.path: empty; expected a data set"):
        comparison.compare(resolve({}), (), tmp_path / "report")
