"""Worker processes: results, errors, deaths, and their end."""

from __future__ import annotations

import atexit
import os
import pickle
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch import confined
from gcnbatch.errors import InputError
from gcnbatch.workers import pool
from gcnbatch.workers.pool import WorkerDied, Workers, ahead
from gcnbatch.workers.shared import Shared

STUBBORN = "import os, signal, time; signal.signal(15, lambda *_: 0); os.write(1, b'!'); time.sleep(600)"


def started(workers: Workers) -> list[Any]:
    return [each.process for each in workers._workers]


def test_calls_return_the_functions_results() -> None:
    with Workers(1) as workers:
        assert [workers.submit(divmod, number, 4).result() for number in (7, 8)] == [(1, 3), (2, 0)]
        assert workers.submit(sorted, "bca", reverse=True).result() == ["c", "b", "a"]
        large = "x" * 1_000_000  # more than a pipe holds
        assert workers.submit(str.upper, large).result() == large.upper()


def name_of(shared: Shared) -> int:
    """Return the address of the loaded value."""
    return id(shared.load())


def test_a_shared_argument_is_loaded_once_in_each_process() -> None:
    with Workers(1) as workers:
        first, other = Shared({"a": np.ones(3)}), Shared({"a": np.zeros(3)})
        places = [workers.submit(name_of, value).result() for value in (first, other, first, first, other)]
    assert places[0] == places[2] == places[3] != places[1] == places[4]
    assert first.load()["a"].tolist() == [1, 1, 1]


def sum_of(shared: Shared) -> tuple[float, bool]:
    """Return the sum of the loaded array, and whether it can be written to."""
    values = shared.load()["values"]
    return float(values.sum()), bool(values.flags.writeable)


def room(shared: Shared) -> int:
    """Return how many bytes of the limit on the address space are left, when the value is loaded."""
    shared.load()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return resource.getrlimit(resource.RLIMIT_AS)[0] - pages * resource.getpagesize()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")
def test_shared_arrays_do_not_count_for_a_limit_on_memory() -> None:
    with Workers(1, confined.limit_memory, (200_000_000,)) as workers:
        assert workers.shares_memory
        before = workers.submit(room, Shared(0)).result()
        after = workers.submit(room, Shared(np.zeros(300_000_000, np.uint8))).result()
    assert abs(after - before) < 150_000_000  # half of the array; glibc may map 64 MB more for a thread


@pytest.mark.parametrize("has_files_in_memory", [True, False])
def test_large_arrays_of_a_shared_argument_lie_in_memory_once(
    has_files_in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_files_in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no files in memory")
    shared = [Shared({"values": np.arange(size), "others": np.ones(70_001, np.uint8)}) for size in (30_000.0, 50_000.0)]
    with Workers(2, dict) as workers:
        found = [workers.submit(sum_of, shared[number]).result() for number in (0, 1, 1, 0)]
        assert found == [(sum_of(shared[number])[0], not has_files_in_memory) for number in (0, 1, 1, 0)]
    assert shared[0].load()["values"].flags.writeable


class Numbers:
    def __init__(self, first: Path, others: Path) -> None:
        self.first, self.others = first, others


def first_of(shared: Shared, other: bytes) -> tuple[Any, Any, bytes]:
    return shared.load(), [shared.load().first], other


def test_parts_of_a_shared_argument_come_back_as_they_are() -> None:
    with Workers(2) as workers:
        values = [Numbers(Path("a"), Path("b")), Numbers(Path("a"), Path("c"))]
        shared = [*map(Shared, values)]
        for number in (0, 1, 0, 1, 1):
            whole, (first,), other = workers.submit(first_of, shared[number], b"x").result()
            assert whole is values[number]
            assert first is values[number].first
            assert other == b"x"


def test_a_new_process_receives_what_a_dead_one_had() -> None:
    with Workers(1) as workers:
        shared = Shared(Numbers(Path("a"), Path("b")))
        workers.submit(name_of, shared).result()
        with pytest.raises(WorkerDied):
            workers.submit(os._exit, 1).result()
        assert workers.submit(first_of, shared, b"").result()[0] is shared.load()


def meet(folder: Path, number: int) -> int:
    """Wait until `number` processes have arrived; return this one's id."""
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + 300
    while len(list(folder.iterdir())) < number and time.monotonic() < deadline:
        time.sleep(0.01)
    return os.getpid()


def go_on(place: Path) -> None:
    """Ignore the exit that SIGTERM asks for, as Python does in a callback."""
    try:
        place.touch()
        while True:
            time.sleep(1)
    except SystemExit:
        return


def test_a_process_whose_exit_is_ignored_ends_after_its_call(tmp_path: Path) -> None:
    with Workers(1) as workers:
        (process,) = started(workers)
        workers.submit(go_on, tmp_path / "begun")
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
    assert process.returncode == 0  # it was not killed


def leave_signals_to_another_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def test_a_process_ends_though_sigterm_does_not_interrupt_its_read() -> None:
    with Workers(1) as workers:
        (process,) = started(workers)
        workers.submit(leave_signals_to_another_thread).result()
    assert process.returncode == 0  # it was not killed


def tidy(folder: Path) -> None:
    (folder / "tidying").touch()
    time.sleep(0.1)
    (folder / "tidied").touch()


def tidy_at_exit(folder: Path) -> None:
    atexit.register(tidy, folder)


def test_a_second_sigterm_does_not_interrupt_a_process_that_removes_its_files(tmp_path: Path) -> None:
    with Workers(1) as workers:
        workers.submit(tidy_at_exit, tmp_path).result()
        workers.shutdown(wait=False)
        while not (tmp_path / "tidying").exists():
            time.sleep(0.01)
    assert (tmp_path / "tidied").exists()


def test_workers_run_concurrently(tmp_path: Path) -> None:
    with Workers(3) as workers:
        met = [workers.submit(meet, tmp_path, 3) for _ in range(3)]
        assert {each.result() for each in met} == {process.pid for process in started(workers)}


@pytest.mark.parametrize(
    ("said", "found"), [((), "111"), (("OMP_NUM_THREADS",), "333"), (("OPENBLAS_NUM_THREADS",), "131")]
)
def test_a_worker_uses_one_blas_thread_by_default(
    said: tuple[str, ...], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name in said:
        monkeypatch.setenv(name, "3")
    with Workers(1) as workers:
        assert "".join(workers.submit(os.getenv, name).result() for name in names) == found
    with Workers(1, one_blas_thread=False) as workers:
        assert [workers.submit(os.getenv, name).result() for name in names] == [os.getenv(name) for name in names]


def mark(folder: Path) -> None:
    with (folder / str(os.getpid())).open("x"):  # fails at a second call
        os.environ["MARKED"] = "yes"


def meet_marked(folder: Path, number: int) -> int:
    assert os.environ["MARKED"] == "yes"
    return meet(folder, number)


def refuse_to_fork(folder: Path) -> None:
    def fork() -> int:
        raise BlockingIOError("no process to spare")

    mark(folder)
    os.fork = fork


def raise_os_error(*_: object) -> int:
    raise OSError("not in this container")


def is_alive(number: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return "(zombie)" not in Path(f"/proc/{number}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("initializer", "changed", "calls"),
    [
        (mark, {}, 1),
        (mark, {(pool, "_CAN_FORK"): False}, 3),  # not Linux
        (mark, {(os, "pidfd_open"): raise_os_error}, 3),
        (refuse_to_fork, {}, 3),
    ],
)
def test_an_initializer_prepares_all_processes(
    initializer: Any, changed: dict[Any, Any], calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("marked", "met"):
        (tmp_path / name).mkdir()
    for (where, name), value in changed.items():
        monkeypatch.setattr(where, name, value)
    with Workers(3, initializer, (tmp_path / "marked",)) as workers:
        met = {call.result() for call in [workers.submit(meet_marked, tmp_path / "met", 3) for _ in range(3)]}
        assert met == {process.pid for process in started(workers)}
        marked = {int(path.name) for path in (tmp_path / "marked").iterdir()}
        assert len(marked) == calls
        assert marked <= met
    assert not any(map(is_alive, met))


def test_a_new_process_is_prepared_in_the_place_of_a_forked_one(tmp_path: Path) -> None:
    for name in ("marked", "before", "after"):
        (tmp_path / name).mkdir()
    with Workers(2, mark, (tmp_path / "marked",)) as workers:
        before = {call.result() for call in [workers.submit(meet_marked, tmp_path / "before", 2) for _ in range(2)]}
        (dead,) = before - {int(path.name) for path in (tmp_path / "marked").iterdir()}
        os.kill(dead, signal.SIGKILL)
        while is_alive(dead):
            time.sleep(0.01)
        calls = [workers.submit(meet_marked, tmp_path / "after", 2) for _ in range(3)]
        wait(calls)
        assert sum(isinstance(call.exception(), WorkerDied) for call in calls) == 1
        assert dead not in {call.result() for call in calls if not call.exception()}


def test_forked_processes_leave_what_the_first_one_cleans_up(tmp_path: Path) -> None:
    with Workers(2, tidy_at_exit, (tmp_path,)) as workers:
        (tmp_path / "met").mkdir()
        met = {call.result() for call in [workers.submit(meet, tmp_path / "met", 2) for _ in range(2)]}
        (first,) = {process.pid for process in started(workers) if isinstance(process, subprocess.Popen)}
        (forked,) = met - {first}
        os.kill(forked, signal.SIGTERM)
        while is_alive(forked):
            time.sleep(0.01)
        assert not (tmp_path / "tidied").exists()
    assert (tmp_path / "tidied").exists()


def test_a_forked_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_EXIT_SECONDS", 0.1)
    with Workers(3, signal.signal, (signal.SIGTERM, signal.SIG_IGN)) as workers:
        met = {call.result() for call in [workers.submit(meet, tmp_path, 3) for _ in range(3)]}
    assert not any(map(is_alive, met))


def test_processes_that_are_not_forked_yet_end_with_the_pool() -> None:
    workers = Workers(3, time.sleep, (600,))
    call = workers.submit(int)
    workers.shutdown()
    assert call.cancelled()


@pytest.mark.parametrize("count", [1, 2])
def test_calls_fail_if_the_initializer_ended_the_process(count: int) -> None:
    with Workers(count, os._exit, (3,)) as workers, pytest.raises(WorkerDied):
        workers.submit(os.getpid).result()


class TwoWords(Exception):
    """An exception that cannot be unpickled, because it has two required arguments."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def refuse(what: str) -> None:
    raise InputError(what, "not here")


def fail() -> None:
    raise TwoWords("no", "more")


def test_a_functions_error_is_raised_and_the_worker_survives() -> None:
    with Workers(1) as workers:
        with pytest.raises(ValueError, match="invalid literal for int"):
            workers.submit(int, "seven").result()
        with pytest.raises(InputError, match="no-such-module: not here"):
            workers.submit(refuse, "no-such-module").result()
        assert workers.submit(int, "7").result() == 7


def test_an_unpicklable_call_or_result_is_an_error_and_the_worker_survives() -> None:
    with Workers(1) as workers:
        with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
            workers.submit(list, (np.zeros(100_000), lambda: 1)).result()
        with pytest.raises(TypeError, match="pickle"):
            workers.submit(threading.Lock).result()
        with pytest.raises(RuntimeError, match=r"TwoWords.*no more"):
            workers.submit(fail).result()
        assert workers.submit(sorted, (3, 1, 2)).result() == [1, 2, 3]


def test_prints_do_not_corrupt_the_results(capfd: pytest.CaptureFixture[str]) -> None:
    with Workers(1) as loud, Workers(1, quiet=True) as quiet:
        for workers, said in ((loud, "said"), (quiet, "never")):
            assert workers.submit(print, said, flush=True).result() is None
    assert capfd.readouterr() == ("", "said\n")


def test_a_process_that_ends_raises_worker_died() -> None:
    with Workers(1) as workers, pytest.raises(WorkerDied):
        workers.submit(os._exit, 3).result()


def test_modules_in_the_working_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pickle.py", "gcnbatch.py"):
        (tmp_path / name).write_text("raise SystemExit", encoding="utf-8")
    with Workers(1) as workers:
        assert workers.submit(int, "7").result() == 7


def test_idle_and_busy_workers_end_soon() -> None:
    workers = Workers(2)
    wait([workers.submit(int) for _ in range(2)])
    busy = workers.submit(time.sleep, 600)
    waiting = [workers.submit(time.sleep, 600) for _ in range(2)]
    while not busy.running():
        time.sleep(0.01)
    workers.shutdown()
    assert isinstance(busy.exception(), WorkerDied)
    assert waiting[-1].cancelled()
    assert all(process.returncode in (0, -signal.SIGTERM) for process in started(workers))  # none waited for SIGKILL


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Return a pool whose worker neither reads nor reacts to SIGTERM."""
    monkeypatch.setattr(pool, "_START", STUBBORN)
    monkeypatch.setattr(pool, "_EXIT_SECONDS", 0.1)
    workers = Workers(1)
    (process,) = started(workers)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"!"
    return workers


def test_a_worker_that_ignores_sigterm_is_killed(stubborn: Workers) -> None:
    under_way = stubborn.submit(str.upper, "x" * 1_000_000)  # more than a pipe holds
    while not under_way.running():
        time.sleep(0.01)
    stubborn.shutdown()
    assert started(stubborn)[0].returncode == -9
    assert isinstance(under_way.exception(), WorkerDied)


def test_an_interrupt_during_shutdown_kills_the_workers(stubborn: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_EXIT_SECONDS", 600)
    (process,) = started(stubborn)
    leave, waits = process.wait, iter([KeyboardInterrupt])

    def interrupted(seconds: float | None = None) -> int:
        for reason in waits:
            raise reason
        return leave(seconds)

    monkeypatch.setattr(process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stubborn.shutdown()
    assert process.returncode == -9


def test_if_one_worker_cannot_start_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def start_one(*about: Any, **more: Any) -> subprocess.Popen[bytes]:
        if begun:
            raise BlockingIOError("no process to spare")
        begun.append(start(*about, **more))
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", start_one)
    with pytest.raises(BlockingIOError):
        Workers(2)
    assert begun[0].returncode is not None


@pytest.mark.parametrize(("sizes", "most", "begun"), [([1] * 6, 2, [3, 4, 5, 6, 6, 6]), ([9] * 3, 4, [2, 3, 3])])
def test_work_begins_a_bounded_number_of_items_ahead(sizes: list[int], most: int, begun: list[int]) -> None:
    started: list[int] = []

    def begin() -> Iterator[int]:
        for number, _ in enumerate(sizes):
            started.append(number)
            yield number

    found = [(item, len(started)) for item in ahead(begin(), most, lambda number: sizes[number])]
    assert found == list(enumerate(begun))
