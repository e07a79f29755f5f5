"""A pool of worker processes: `Workers`; see `gcnbatch.workers`."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from itertools import chain
from queue import LifoQueue
from typing import IO, Any, NamedTuple, TypeVar

from gcnbatch.workers.shared import CallPickler, Memory

Begun = TypeVar("Begun")
_START = (
    "import gc, sys; alive, memory, forks, new, *sys.path[:] = sys.argv[1:]; gc.set_threshold(int(new)); "
    "from gcnbatch.workers.process import serve; serve(int(alive), int(memory), forks)"
)
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Of glibc: RDKit makes and frees hundreds of small objects for a molecule, which a cache of 7 of each size cannot keep
_MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=127"}
_PIPE_BYTES = 1 << 20  # as large as Linux allows: a result that fits lets the process go on, and takes few reads
_CAN_FORK = hasattr(os, "pidfd_open")  # on Linux: a process that another one forked can be ended and waited for
_EXIT_SECONDS = 30.0  # after SIGTERM, a process may take this long to remove its temporary files; then it is killed


class _InlineExecutor(Executor):
    """Runs each call at once in the caller's thread, which receives its exception."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


INLINE = _InlineExecutor()


class WorkerDied(Exception):
    """The worker process ended without returning a result."""


def ahead(begun: Iterable[Begun], most: int, size: Callable[[Begun], int] = lambda item: 1) -> Iterator[Begun]:
    """Yield items of an iterable that begins work on each, in order, while up to `most` later ones are under way.

    Parameters
    ----------
    begun : iterable
        Advancing it submits a call to a pool; its items are futures, or hold some.
    most : int
    size : callable
        Number that an item counts for; at least one later item is under way, whatever its number.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor() as pool:
    ...     [call.result() for call in ahead((pool.submit(abs, number) for number in range(-3, 0)), 2)]
    [3, 2, 1]
    """
    waiting: deque[Begun] = deque()
    for item in begun:
        waiting.append(item)
        while len(waiting) > 1 and sum(map(size, waiting)) > most:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


class Workers(Executor):
    """A pool of processes. The process that was busy last takes a call: its data are in the caches of a processor.

    A new process takes the place of one that died.

    A future's exception is the one that the function raised, or `WorkerDied`.

    Parameters
    ----------
    count : int
        Number of processes.
    initializer : callable or None
        Called before anything else: once in each process, or once for several. Its errors are ignored; later calls fail
        for the same reason.
    initargs : tuple
        Arguments of `initializer`.
    quiet : bool
        Discard what the processes write to stderr.
    one_blas_thread : bool
        Use one BLAS thread per process, unless the user sets another number: other workers use the other cores.
    keep_open : sequence of int
        File descriptors that the processes hold open, too.

    Raises
    ------
    OSError, RuntimeError
        When a process or a thread cannot be started.
    """

    def __init__(
        self,
        count: int,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        quiet: bool = False,
        one_blas_thread: bool = True,
        keep_open: Sequence[int] = (),
    ) -> None:
        self.count = count
        self._pipe = list(os.pipe())  # the second end is open as long as this process lives
        self._memory = Memory()
        self._made = _Settings(self._pipe[0], self._memory, quiet, one_blas_thread, tuple(keep_open))
        self._initialize: Any = (initializer, initargs, {}) if initializer else None
        self._ending, self._ended = threading.Lock(), False
        self._workers: list[_Worker] = []
        self._idle: LifoQueue[_Worker] = LifoQueue()
        self._threads = ThreadPoolExecutor(count)  # each thread waits for the result of one worker
        forks: list[_Fork] = []
        try:
            for number in reversed(range(count)):  # the first one last, as it needs the pipes of those that it forks
                if number and initializer and _CAN_FORK:
                    forks.append(_Fork())
                    self._workers.append(_Worker(forks[-1], self._memory, *forks[-1].pipes))
                else:
                    self._workers.append(_new_worker(self._made, forks))
            for worker in self._workers:
                self._threads.submit(self._prepare, worker)
        except BaseException:
            self.shutdown()
            raise

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call of `fn`, which must be importable by name."""
        return self._threads.submit(self.call, fn, *args, **kwargs)

    @property
    def shares_memory(self) -> bool:
        """Whether large arrays of `Shared` values lie in memory once, not in each process."""
        return self._memory.number >= 0

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a call; without a thread between the caller and the process, it comes earlier.

        Raises
        ------
        Exception
            The one that `fn` raised, or `WorkerDied`.
        """
        worker = self._idle.get()
        try:
            result, error = worker.call((fn, args, kwargs))
        except WorkerDied:
            worker = self._replaced(worker)
            raise
        finally:
            self._idle.put(worker)
        if error is not None:
            raise error
        return result

    def _prepare(self, worker: _Worker) -> None:
        try:
            if isinstance(worker.process, _Fork):
                worker.process.find(worker.answer())
            elif self._initialize:
                worker.call(self._initialize)
        except WorkerDied:
            worker = self._replaced(worker)
        finally:
            self._idle.put(worker)

    def _replaced(self, dead: _Worker) -> _Worker:
        """Return a new worker in the place of a dead one, or the dead one if none can be started."""
        with self._ending, suppress(OSError):
            if not self._ended:
                worker = _new_worker(self._made)
                self._workers[self._workers.index(dead)] = worker
                dead.process.kill()
                dead.close()
                worker.first = self._initialize
                return worker
        return dead

    def terminate(self) -> None:
        """Send SIGTERM to the processes; a call may answer it with an early end. `shutdown` must follow."""
        for worker in self._workers:
            worker.process.terminate()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the processes with SIGTERM and, after 30 seconds, SIGKILL. Calls that have not started are cancelled.

        Without `wait` only send SIGTERM; another `shutdown` must follow. Several pools then end at the same time.
        """
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        with self._ending:
            self._ended = True
        self.terminate()
        if not wait:
            return
        try:
            deadline = time.monotonic() + _EXIT_SECONDS
            for worker in self._workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(deadline - time.monotonic(), 0.0))
        finally:
            for worker in self._workers:
                worker.process.kill()
            self._threads.shutdown(wait=True)
            for worker in self._workers:
                worker.close()
            self._memory.close()
            while self._pipe:
                os.close(self._pipe.pop())


class _Settings(NamedTuple):
    """How processes of a pool start; `alive` is the end of a pipe that closes when their caller dies."""

    alive: int
    memory: Memory
    quiet: bool
    one_blas_thread: bool
    keep_open: tuple[int, ...]


class _Fork:
    """A process that another worker forks: as much of `subprocess.Popen` as a pool needs."""

    def __init__(self) -> None:
        self.pid: int | None = None  # until it answers
        self._handle = -1
        calls, answers = os.pipe(), os.pipe()
        self.ends: tuple[int, ...] = calls[0], answers[1]
        self.pipes = os.fdopen(calls[1], "wb"), os.fdopen(answers[0], "rb")

    def find(self, pid: int) -> None:
        """Take note of the process; its number is not used again before the process that forked it has ended."""
        try:
            self._handle = os.pidfd_open(pid)
        except OSError as error:
            raise WorkerDied from error
        self.pid = pid

    def give(self) -> None:
        """Close the ends of the pipes that are the process's own; it may be called again."""
        for end in self.ends:
            os.close(end)
        self.ends = ()

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._handle >= 0:  # else it ends because its pipes close
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def wait(self, timeout: float | None = None) -> None:
        if self._handle < 0:
            return
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        if not ended.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)

    def close(self) -> None:
        self.give()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _new_worker(made: _Settings, forks: Sequence[_Fork] = ()) -> _Worker:
    """Start a process, which forks others when its first call is done."""
    threads = dict.fromkeys(_BLAS_THREADS, os.environ.get(_BLAS_THREADS[0], "1")) if made.one_blas_thread else {}
    ends = " ".join(f"{calls},{answers}" for calls, answers in (fork.ends for fork in forks))
    memory = made.memory.number
    held = (made.alive, *([memory] if memory >= 0 else []), *made.keep_open)
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(made.alive), str(memory), ends, str(gc.get_threshold()[0]), *sys.path],
        pass_fds=(*held, *chain.from_iterable(fork.ends for fork in forks)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if made.quiet else None,
        process_group=0,  # Ctrl-C in a terminal reaches only the caller, which then ends its workers
        env={**_MALLOC, **threads, **os.environ},
    )
    for fork in forks:
        fork.give()
    assert process.stdin is not None
    assert process.stdout is not None
    return _Worker(process, made.memory, process.stdin, process.stdout)


class _Worker:
    """A process that runs `serve`, with its pipes."""

    def __init__(
        self, process: subprocess.Popen[bytes] | _Fork, memory: Memory, calls: IO[bytes], answers: IO[bytes]
    ) -> None:
        self.process, self._memory = process, memory
        self._calls, self._answers = calls, answers
        self.first: Any = None  # a call before the first one
        self._received: set[int] = set()  # keys of shared values
        with suppress(OSError):  # the user's pipes may be too many for it
            fcntl.fcntl(answers, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def call(self, call: Any) -> Any:
        """Send a call, wait for it, and return (result, error)."""
        if self.first is not None:
            first, self.first = self.first, None
            self.call(first)
        message = CallPickler(buffer := BytesIO(), self._received, self._memory)
        message.dump(call)
        self._received |= message.sent
        try:
            self._calls.write(buffer.getbuffer())
            self._calls.flush()
        except OSError as error:
            raise WorkerDied from error
        return self.answer()

    def answer(self) -> Any:
        """Wait for what the process sends next, and return it."""
        try:
            return pickle.load(self._answers)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise WorkerDied from error

    def close(self) -> None:
        """Wait for the process to end and close its pipes."""
        self.process.wait()
        for pipe in (self._calls, self._answers):
            with suppress(OSError):  # the rest of an unsent message cannot be flushed
                pipe.close()
        if isinstance(self.process, _Fork):
            self.process.close()
