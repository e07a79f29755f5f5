"""``--timeline``: spans of every process of a command, as a table and as a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gcnbatch import timeline
from gcnbatch.cli.timeline import Span, own_seconds, table, taken_from, trace
from gcnbatch.errors import InputError
from tests.training.runs import command, environment, write_set


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), check=False, timeout=300
    )


def train(folder: Path, *more: object) -> subprocess.CompletedProcess[str]:
    write_set(folder / "set.h5", 40)
    settings = ("--set", "model.widths=[4]", "--set", "train.batch_size=8", "--epochs", 1, "--backend", "cpu", "-q")
    return run("train", *more, "--data", folder / "set.h5", *settings, "-o", folder / "run")


@pytest.mark.slow
def test_a_command_writes_where_its_seconds_go(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    done = train(tmp_path, "--timeline", path, "--ensemble", 2, "--jobs", 2)
    assert done.returncode == 0, done.stderr
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["gcnbatch", "worker", "worker"]
    spans = [event for event in events if event["ph"] == "X"]
    first = spans[0]["pid"]
    of_first = {event["name"] for event in spans if event["pid"] == first}
    of_workers = {event["name"] for event in spans if event["pid"] != first}
    assert {timeline.START, "import numpy", "read the data", "wait for training processes"} <= of_first
    assert {timeline.START, "fit_members", "run the steps of an epoch"} <= of_workers
    assert min(event["ts"] for event in spans) == 0
    lines = done.stderr.splitlines()
    assert "s from process start to exit" in lines[0]
    others = lines.index("other threads and processes:")
    whole, parts = float(lines[0].split()[0]), [line.split()[0] for line in lines[1:others]]
    rounded = 0.01 * len(parts)  # times, which no processor computes otherwise: the test is not numerical
    assert whole - rounded <= sum(map(float, parts)) <= whole + rounded
    assert any(line.split("  ")[-1].startswith("worker: ") for line in lines[others:])
    assert not list(tmp_path.glob("*.parts"))


def test_without_the_option_nothing_is_recorded(tmp_path: Path) -> None:
    code = (
        "import sys; from gcnbatch import timeline; import gcnbatch.cli.app\n"
        "assert timeline.span('work') is timeline.span('other work')\n"
        "assert not any(type(one).__module__ == 'gcnbatch.timeline' for one in sys.meta_path)\n"
        "assert 'gcnbatch.cli.timeline' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failed_command_has_a_timeline_too(tmp_path: Path) -> None:
    done = run(f"--timeline={tmp_path / 'seconds.json'}", "data", "info", tmp_path / "missing.h5")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert (tmp_path / "seconds.json").exists()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("seconds.txt", "error: --timeline seconds.txt: unknown ending; expected .json"),
        ("set.json", "set.json"),
        ("no/seconds.json", "no folder"),
        (None, "error: --timeline: without a file; expected FILE.json"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set.json").write_text('{"mine": 1}')
    done = run("info", "--timeline", *([] if path is None else [path]))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert (tmp_path / "set.json").read_text() == '{"mine": 1}'


def test_the_option_is_taken_from_anywhere_but_behind_a_double_dash() -> None:
    for given, file, left in (
        (["--timeline", "a.json", "train"], "a.json", ["train"]),
        (["train", "--timeline=a.json", "-q"], "a.json", ["train", "-q"]),
        (["infer", "--", "--timeline", "a.json"], None, ["infer", "--", "--timeline", "a.json"]),
        (["compare-backends", "--timeline", "a"], None, ["compare-backends", "--timeline", "a"]),
        (["--timeline", "a.json", "compare-backends"], "a.json", ["compare-backends"]),
    ):
        assert taken_from(given) == file
        assert given == left
    with pytest.raises(InputError, match="without a file"):
        taken_from(["train", "--timeline"])


def spans() -> list[Span]:
    """Return 10 seconds: 1 s of start, a 6 s train with 2 s of import within, in which 0.5 s are NumPy's; a worker."""
    return [
        Span("Python starts", 100, 101, 7, 0),
        Span("import scipy.sparse", 102, 104, 7, 0),
        Span("import numpy", 103, 103.5, 7, 0),
        Span("train", 101, 107, 7, 0),
        Span("write", 102, 105, 7, 55),
        Span("plot", 103, 107, 8, 0),
        Span("plot", 104, 106, 8, 81),
    ]


def test_work_within_other_work_counts_once() -> None:
    own = own_seconds([span for span in spans() if (span.pid, span.thread) == (7, 0)])
    assert own == {"Python starts": 1, "train": 4, "import scipy": 1.5, "import numpy": 0.5}


def test_the_table_adds_up_to_the_whole() -> None:
    assert table({7: "gcnbatch", 8: "worker"}, spans(), 7, 110) == [
        "   10.00 s from process start to exit",
        "    4.00 s  40.0%  train",
        "    3.00 s  30.0%  other work",
        "    1.50 s  15.0%  import scipy",
        "    1.00 s  10.0%  Python starts",
        "    0.50 s   5.0%  import numpy",
        "other threads and processes:",
        "    6.00 s  worker: plot, in 2 threads",
        "    3.00 s  another thread: write",
    ]


def test_the_trace_begins_at_the_first_span_with_the_first_process() -> None:
    events = trace({8: "worker", 7: "gcnbatch"}, spans(), 7)["traceEvents"]
    assert [event["args"] for event in events if event["ph"] == "M"] == [
        {"name": "gcnbatch"},
        {"sort_index": 0},
        {"name": "worker"},
        {"sort_index": 1},
    ]
    plot = next(event for event in events if event["name"] == "plot")
    assert (plot["ts"], plot["dur"], plot["pid"]) == (3e6, 4e6, 8)


def test_a_fork_that_may_write_no_file_records_nothing(tmp_path: Path) -> None:
    code = (
        "from gcnbatch import confined, timeline; timeline.start('it', '.')\n"
        "def work():\n"
        "    with timeline.span('confined'): import scipy.optimize\n"
        "    return b'done'\n"
        "assert confined.call(work, 'it', 60, 1 << 30, 1 << 20) == b'done'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), cwd=tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    assert "confined" not in file.read_text()


def test_a_process_records_from_its_start(tmp_path: Path) -> None:
    began = time.monotonic()
    code = (
        "import time; from gcnbatch import timeline; timeline.start('it', '.')\n"
        "with timeline.span('sleep'): time.sleep(0.05)\n"
        "timeline.spanned('call')(lambda: None)()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(), cwd=tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    head, *lines = map(json.loads, file.read_text().splitlines())
    assert head["process"] == "it"
    assert [line["name"] for line in lines] == [timeline.START, "sleep", "call"]
    tick = 1 / os.sysconf("SC_CLK_TCK")  # the system counts starts in ticks
    assert began - 2 * tick <= lines[0]["begin"] <= lines[0]["end"] <= lines[1]["begin"]
    assert lines[1]["end"] - lines[1]["begin"] >= 0.05
