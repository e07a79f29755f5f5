"""Faults of the machine: one line, the right exit code, nothing half-written, and a run that can go on."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.cli.faulty import has_disks
from tests.fuzz import DRAWN
from tests.fuzz.faults import (
    COMPARE,
    IMPORT,
    INFER,
    RESUME,
    SCREEN,
    TRAIN,
    TUNE,
    Runner,
    check_fault,
    faults,
    only_line,
    open_runner,
    write_inputs,
)
from tests.training.runs import assert_same_run, environment

FULL = " could not be written ("
needs_read_only = pytest.mark.skipif(
    not has_disks() and os.geteuid() == 0, reason="root writes everywhere, and no disk can be mounted here"
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("inputs")
    write_inputs(place)
    return place


@pytest.fixture(scope="module")
def runner(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_runner(inputs, tmp_path_factory.mktemp("cases")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("command", "size"),
    [
        pytest.param(COMPARE, 4096, marks=pytest.mark.slow),
        (COMPARE, 40960),
        *((command, 4096) for command in (TRAIN, (*INFER, "p.h5"), IMPORT)),
        ((*INFER, "p.h5"), 8192),
    ],
    ids=lambda value: " ".join(value[:1] + value[-1:]) if isinstance(value, tuple) else str(value),
)
def test_a_full_disk_is_one_line_and_leaves_no_partial_file(
    runner: Runner, command: tuple[str, ...], size: int
) -> None:
    found = runner(command, disk=size)
    assert found.codes == [3], found
    assert FULL in only_line(found.said[0])
    assert "). Free some disk space and run again." in found.said[0]
    assert not [name for name in found.files if name.endswith(".tmp")]
    if command == COMPARE:
        assert ("r/report.json" in found.files) is (size > 4096)
    elif command != TRAIN:
        assert found.files == []


def test_a_run_goes_on_to_equal_bits_after_a_full_disk(runner: Runner, inputs: Path, tmp_path: Path) -> None:
    """Pages of a disk that hold one file more each time."""
    stopped = set()
    for size in range(4096, 9 * 4096, 4096) if has_disks() else (100, 900, 1000, 1500, 2000, 5000):
        kept = tmp_path / str(size)
        found = runner(TRAIN, disk=size, then=RESUME, keep=str(kept))
        if found.codes[0]:
            assert found.codes[0] == 3
            stopped.add(only_line(found.said[0]).partition(FULL)[0])
            if not found.files:  # not even a configuration
                continue
            assert found.said[0].endswith(" Go on with: gcnbatch train --resume r\n")
        assert found.codes[1] == 0, found
        assert_same_run(inputs / "run", kept / "r")
    if has_disks():
        assert stopped >= {f"error: r/{name}:" for name in ("splits.json", "history.jsonl", "last.safetensors")}


def test_a_study_on_a_full_disk_leaves_nothing_or_what_resume_completes(runner: Runner, tmp_path: Path) -> None:
    """Pages of a disk that hold one file more each time, from the set-up to the page."""
    pytest.importorskip("optuna")
    assert runner(TUNE, keep=str(tmp_path / "whole")).codes == [0]
    expected, stopped = (tmp_path / "whole" / "s" / "best.toml").read_bytes(), set()
    for size in (4096, 16384, 20480, 28672) if has_disks() else (60, 900, 2000, 3000):
        kept = tmp_path / str(size)
        found = runner(TUNE, disk=size, then=("tune", "--resume", "s", "-q"), keep=str(kept))
        assert found.codes[0] == 3, found
        assert FULL in only_line(found.said[0])
        stopped.add(found.said[0].partition(f":{FULL}")[0].rpartition("/")[2])
        if "s/config.toml" in found.files:
            assert found.said[0].endswith(" Go on with: gcnbatch tune --resume s\n")
            assert found.codes[1] == 0, found
            assert (kept / "s" / "best.toml").read_bytes() == expected.replace(b"/whole/", f"/{size}/".encode())
        else:
            assert found.files == []
    if has_disks():
        assert stopped >= {"study.json", "study.journal"}


@settings(DRAWN, max_examples=5)
@given(faults())
def test_a_drawn_fault_is_one_line_and_the_command_works_after_it(runner: Runner, inputs: Path, drawn: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        check_fault(runner, inputs, Path(place), *drawn)


@pytest.mark.slow
@settings(DRAWN, max_examples=60)
@given(faults())
def test_many_drawn_faults_are_one_line(runner: Runner, inputs: Path, drawn: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        check_fault(runner, inputs, Path(place), *drawn)


@needs_read_only
@pytest.mark.parametrize("command", [TRAIN, COMPARE, (*INFER, "p.csv"), IMPORT], ids=lambda words: words[0])
def test_a_read_only_folder_is_one_line(runner: Runner, command: tuple[str, ...]) -> None:
    found = runner(command, read_only=True)
    text = only_line(found.said[0])
    if command in (TRAIN, COMPARE):
        assert found.codes == [2]
        assert text.startswith("error: r: cannot be made (")
        assert text.endswith("; expected a writable place. Choose another -o.\n")
    else:
        assert found.codes == [3]
        assert text.endswith("). Check that the folder exists and is writable.\n")


@pytest.mark.parametrize("name", ["train", "infer", "import", "explain"])
def test_of_commands_with_one_output_one_writes_and_others_are_refused(
    runner: Runner, inputs: Path, tmp_path: Path, name: str
) -> None:
    check_fault(runner, inputs, tmp_path, name, {"together": 3})


def test_few_open_files_are_enough_or_refused(runner: Runner) -> None:
    refused = runner(TRAIN, limits={"RLIMIT_NOFILE": 31})
    assert refused.codes == [3]
    assert refused.said == ["error: open files: a limit of 31; expected at least 32. Raise ulimit -n.\n"]
    for command in (TRAIN, IMPORT, (*INFER, "p.csv")):
        assert runner(command, limits={"RLIMIT_NOFILE": 64}).codes == [0]


def test_closed_standard_streams_lose_nothing(runner: Runner, inputs: Path, tmp_path: Path) -> None:
    loud = tuple(word for word in TRAIN if word != "--quiet")
    assert runner(loud, closed=(0, 1, 2), keep=str(tmp_path / "kept")).codes == [0]
    assert_same_run(inputs / "run", tmp_path / "kept" / "r")
    assert runner(SCREEN, closed=(1,)).codes == [0]
    table = runner((*INFER, "-"), closed=(1,))
    assert table.codes == [2]
    assert table.said == ["error: output -: standard output is closed; expected an open one. Give -o FILE.\n"]


@pytest.mark.parametrize(
    ("command", "left"),
    [(COMPARE, []), ((*INFER, "p.csv"), ["p.csv.partial"]), (IMPORT, [])],
    ids=["compare", "infer", "import"],
)
def test_a_hang_up_leaves_no_file_but_what_resume_needs(
    runner: Runner, command: tuple[str, ...], left: list[str]
) -> None:
    """`train` and `synth` have tests of their own."""
    found = runner(command, signal="SIGHUP")
    assert (found.codes, found.files) == ([130], left)


def test_a_reader_that_leaves_ends_the_command_quietly(inputs: Path) -> None:
    command = [sys.executable, "-m", "gcnbatch", "data", "info", str(inputs / "set.h5")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.parametrize(
    ("which", "kib", "code", "said"),
    [
        ("RLIMIT_DATA", 204_800, 3, "error: memory: too little is free or allowed; expected 368 MiB for "),
        ("RLIMIT_AS", 600_000, 3, "error: memory: too little is free or allowed; expected 768 MiB for "),
        ("RLIMIT_AS", 1_500_000, 0, ""),
    ],
)
def test_too_little_memory_is_one_line_before_libraries_hang(
    runner: Runner, tmp_path: Path, which: str, kib: int, code: int, said: str
) -> None:
    command = [sys.executable, "-m", "gcnbatch", *runner.words((*INFER, str(tmp_path / "p.csv")))]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=240,
        preexec_fn=lambda: resource.setrlimit(getattr(resource, which), (kib << 10,) * 2),
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(code)
    assert (tmp_path / "p.csv").exists() is (code == 0)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, whom ulimit -u does not bind")
def test_too_few_processes_are_one_line() -> None:
    """As a user of whom no other process runs, with the capability to read this user's interpreter."""
    capability = "+dac_read_search"
    user = ["setpriv", "--reuid", "54321", "--clear-groups", f"--inh-caps={capability}", f"--ambient-caps={capability}"]
    done = subprocess.run(
        [*user, sys.executable, "-m", "gcnbatch", "info"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=240,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (2, 2)),
    )
    assert done.returncode == 3
    assert only_line(done.stderr).startswith(
        "error: threads: 1 can be started; expected 4. Raise ulimit -u, end other "
    )
