"""Run commands under faults of the machine: a full or read-only disk, limits, closed streams, a hang-up.

``python -m tests.cli.faulty`` imports all modules, then forks a process for each case that it reads as a line of JSON.
Disks are tmpfs in a user namespace where that is allowed; elsewhere a full disk is a limit on the size of files.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gcnbatch import fileio, progress
from gcnbatch.tuning import page
from gcnbatch.workers import pool
from tests.training.runs import environment, lighten

_SECONDS = 300  # a case takes less than 5 s of processor time; one that hangs is ended by SIGALRM
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@dataclass(frozen=True)
class Case:
    """A command under a fault.

    Parameters
    ----------
    arguments : sequence of str
        The command works in an empty folder.
    disk : int
        Bytes of the folder's disk; 0: enough.
    read_only : bool
        The disk can only be read.
    limits : dict
        Name in `resource` -> soft limit.
    closed : sequence of int
        Standard streams that are closed.
    signal : str
        This signal arrives when a file is complete, before it gets its name.
    file : int
        Which file that is, from 0.
    clock : float
        Seconds by which the clock is set back whenever it is read.
    killed_call : int
        The worker process of this call, from 0, is killed as by a machine without memory; -1: none.
    together : int
        Number of processes that run the command at the same time.
    then : sequence of str
        A command for the same folder after the fault has ended.
    keep : str
        Path that becomes a copy of the folder.
    """

    arguments: Sequence[str]
    disk: int = 0
    read_only: bool = False
    limits: dict[str, int] | None = None
    closed: Sequence[int] = ()
    signal: str = ""
    file: int = 0
    clock: float = 0.0
    killed_call: int = -1
    together: int = 1
    then: Sequence[str] = ()
    keep: str = ""


@dataclass(frozen=True)
class Outcome:
    """Exit codes and stderr of the processes, and the files that they left."""

    codes: list[int]
    said: list[str]
    files: list[str]


@cache
def has_disks() -> bool:
    """Return whether this user may mount a disk in a namespace of its own."""
    if not shutil.which("unshare"):
        return False
    mount = ["mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run([*_NAMESPACE, *mount], capture_output=True, check=False).returncode == 0


class Machine:
    """The process that forks for each case."""

    def __init__(self, warm_up: Sequence[Sequence[str]], folder: Path) -> None:
        """Start it; it runs the commands `warm_up` first, so that later cases find their modules imported."""
        prefix = _NAMESPACE if has_disks() else ()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.cli.faulty", str(folder), json.dumps(warm_up)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment(),
        )

    def run(self, case: Case) -> Outcome:
        """Run a case in an empty folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def _serve(folder: Path, warm_up: Sequence[Sequence[str]]) -> None:
    patch = pytest.MonkeyPatch()
    lighten(patch)
    patch.setattr(page, "render", lambda *about: "")
    progress.LINE_SECONDS = math.inf  # no line of progress among the errors, however slow the machine
    disks = has_disks()
    said = os.dup(1)
    os.dup2(2, 1)
    os.chdir(folder)
    for arguments in warm_up:
        assert _call(Case(arguments)) == 0
    for number, line in enumerate(sys.stdin):
        place = folder / f"case{number}"
        place.mkdir()
        outcome = _one(Case(**json.loads(line)), place, disks)
        os.write(said, json.dumps(asdict(outcome)).encode() + b"\n")


def _one(case: Case, place: Path, disks: bool) -> Outcome:
    limits = dict(case.limits or {})
    if disks:
        _mount("-t", "tmpfs", "-o", f"size={case.disk or 1 << 24}", "none", str(place))
        if case.read_only:
            _mount("-o", "remount,ro", str(place))
    elif case.disk:
        limits["RLIMIT_FSIZE"] = case.disk
    elif case.read_only:
        place.chmod(0o500)
    started = [_fork(case, place, limits, place.with_suffix(f".{n}")) for n in range(case.together)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]
    said = [place.with_suffix(f".{n}").read_text(encoding="utf-8") for n in range(case.together)]
    files = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    if disks:
        _mount("-o", f"remount,rw,size={1 << 24}", str(place))
    place.chmod(0o700)
    if case.then:
        process = _fork(Case(case.then), place, {}, place.with_suffix(".then"))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        said.append(place.with_suffix(".then").read_text(encoding="utf-8"))
    if case.keep:
        shutil.copytree(place, case.keep)
    return Outcome(codes, said, files)


def _mount(*options: str) -> None:
    subprocess.run(["mount", *options], check=True, stdout=sys.stderr)


def _fork(case: Case, place: Path, limits: dict[str, int], errors: Path) -> int:
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.chdir(place)
        signal.alarm(_SECONDS)
        _redirect(case, errors)
        for name, limit in limits.items():
            which = getattr(resource, name)
            resource.setrlimit(which, (limit, resource.getrlimit(which)[1]))
        code = _call(case)
    finally:
        os._exit(code)


def _redirect(case: Case, errors: Path) -> None:
    said = os.open(errors, os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(said, 2)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    for stream in case.closed:
        os.close(stream)
        setattr(sys, ("stdin", "stdout", "stderr")[stream], None)


def _call(case: Case) -> int:
    from gcnbatch.cli.app import main

    if case.signal:
        _before(fileio, "_publish", case.file, lambda *_: signal.raise_signal(signal.Signals[case.signal]))
    if case.killed_call >= 0:
        _before(pool._Worker, "call", case.killed_call, lambda process, *_: process.process.kill())
    if case.clock:
        read, readings = time.time, count()
        time.time = lambda: read() - case.clock * next(readings)
    sys.argv = ["gcnbatch", *case.arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def _before(place: Any, name: str, number: int, happens: Callable[..., object]) -> None:
    """Let something happen before a call of a function, the `number`-th from 0."""
    function, calls = getattr(place, name), count()

    def called(*arguments: Any) -> Any:
        if next(calls) == number:
            happens(*arguments)
        return function(*arguments)

    setattr(place, name, called)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), json.loads(sys.argv[2]))
