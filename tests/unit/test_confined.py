"""Calls in a process with limits: an answer, or one line that says why there is none."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gcnbatch import confined
from gcnbatch.errors import MachineError


def call(function, seconds=5, memory_mb=64, answer_bytes=1000):
    return confined.call(function, "libx", seconds, memory_mb << 20, answer_bytes)


def spin():
    while True:
        pass


def test_the_answer_comes_back_from_another_process():
    assert call(lambda: str(os.getpid()).encode()) != str(os.getpid()).encode()
    assert call(lambda: b"") == b""
    assert call(lambda: bytes(1000)) == bytes(1000)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: ctypes.string_at(0), r"crashes libx \(SIGSEGV\)"),
        (os.abort, r"crashes libx \(SIGABRT\)"),
        (lambda: bytearray(200 << 20), "libx takes more than 64 MiB of memory"),
        (lambda: bytes(1001), "libx answers with more than 1000 bytes"),
        (lambda: 1 / 0, "libx gives no answer"),
        (lambda: os._exit(0), "libx gives no answer"),
        (lambda: os.write(3, (500).to_bytes(8, "little") + bytes(100)) and os._exit(0), "libx gives no answer"),
    ],
    ids=["segfault", "abort", "memory", "long answer", "exception", "exit", "part of an answer"],
)
def test_a_call_without_an_answer_fails_with_the_reason(function, message):
    with pytest.raises(confined.Failed, match=f"^{message}$"):
        call(function)


def test_an_endless_call_ends_at_its_limit_of_processor_time():
    with pytest.raises(confined.Failed, match=r"^libx takes more than 1 s of processor time$"):
        call(spin, seconds=1)


def test_a_process_killed_from_outside_is_an_error_of_the_machine():
    with pytest.raises(MachineError, match=r"^libx: its process was killed\. Free some memory and run again"):
        call(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_no_process_can_be_started(monkeypatch):
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(MachineError, match=r"a process for libx: cannot be started \(Resource .*ulimit -u"):
        call(lambda: b"")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_limit_of_the_user_is_named():
    """In a process of its own, because a limit of memory cannot be raised again for sure."""
    code = (
        "import resource, os; from gcnbatch import confined; from gcnbatch.errors import MachineError\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + (32 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
        "try: confined.call(lambda: bytearray(100 << 20), 'libx', 5, 256 << 20, 1000)\n"
        "except MachineError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "libx: not enough memory. Raise ulimit -v.\n"


def test_the_process_has_no_file_of_its_parent_and_writes_none(tmp_path):
    with (tmp_path / "mine").open("w") as mine:
        number = mine.fileno()
        assert call(lambda: b" ".join(name.encode() for name in sorted(os.listdir("/proc/self/fd"))[:4])) == b"0 1 2 3"

        def write():
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(number, b"x")
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            with pytest.raises(OSError, match="File too large"):
                (tmp_path / "mine").write_text("x")
            return b"refused"

        assert call(write) == b"refused"
    assert (tmp_path / "mine").read_text() == ""


def own_children() -> set[str]:
    """Return the numbers of this process's children, ended ones that nobody waited for among them."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            if f"PPid:\t{os.getpid()}\n" in status.read_text():
                found.add(status.parent.name)
    return found


def test_it_leaves_no_process_and_no_descriptor():
    before, children = set(os.listdir("/proc/self/fd")), own_children()
    for function in (lambda: b"x", lambda: ctypes.string_at(0)):
        with contextlib.suppress(confined.Failed):
            call(function)
    assert set(os.listdir("/proc/self/fd")) == before
    assert own_children() <= children  # other tests of this process may have started some


def test_threads_can_call_at_once():
    answers = []
    threads = [threading.Thread(target=lambda n=n: answers.append(call(lambda: bytes([n])))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [bytes([n]) for n in range(4)]


def test_limits_of_this_process_stay():
    before = [resource.getrlimit(which) for which in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)]
    call(lambda: b"")
    assert before == [resource.getrlimit(w) for w in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)]
