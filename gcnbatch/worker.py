"""Processes beside this one that call functions of modules for it: `Workers`, a `concurrent.futures.Executor`.

A worker starts from nothing (no fork of threads or of a GPU context, no second import of the caller's main module),
finds modules where this process does, not where it stands, and leaves when its stdin closes, so that it never outlives
this process. It is sent a function's name and arguments through a pipe, and sends back what that returns or raises.

This module imports little: the sooner workers start, the sooner they have imported what they need.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

_START = "import sys; sys.path[:] = sys.argv[1:]; from gcnbatch.worker import serve; serve()"
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_TIDY_SECONDS = 30.0  # that a process may take to leave


class WorkerDied(Exception):
    """The process that was to call the function has ended."""


class Workers(Executor):
    """So many processes; each calls the next function that is asked for as soon as it is idle.

    A future's exception is what the function raised, or `WorkerDied`.

    Parameters
    ----------
    count : int
    quiet : bool
        What they say on stderr goes nowhere: for those that can be done without.

    Raises
    ------
    OSError
        When no process can be started.
    """

    def __init__(self, count: int, quiet: bool = False) -> None:
        self._workers: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count)
        try:
            for _ in range(count):
                self._workers.append(_Worker(quiet))
                self._idle.put(self._workers[-1])
        except BaseException:
            self.shutdown()
            raise

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin the call of a function that its module knows by name."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def _call(self, *call: Any) -> Any:
        worker = self._idle.get()
        try:
            result, error = worker.ask(call)
        finally:
            self._idle.put(worker)
        if error is not None:
            raise error
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Tell the processes to leave when they have tidied up, and wait for them. What was not called will not be.

        Without `wait` another `shutdown` is to follow.
        """
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        for worker in self._workers:
            worker.process.terminate()
        if not wait:
            return
        try:
            deadline = time.monotonic() + _TIDY_SECONDS
            for worker in self._workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(deadline - time.monotonic(), 0.0))
        finally:
            for worker in self._workers:
                worker.process.kill()
            self._threads.shutdown(wait=True)
            for worker in self._workers:
                worker.close()


class _Worker:
    """A process in which `serve` runs."""

    def __init__(self, quiet: bool) -> None:
        command, pipe = [sys.executable, "-c", _START, *sys.path], subprocess.PIPE
        said = subprocess.DEVNULL if quiet else None
        # A process group of its own: Ctrl-C in a terminal is for this process, which then stops its workers.
        # One thread, as the other processors are other workers' or the caller's, unless the user says otherwise.
        threads = dict.fromkeys(_BLAS_THREADS, os.environ.get(_BLAS_THREADS[0], "1"))
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=said, process_group=0, env={**threads, **os.environ}
        )

    def ask(self, call: Any) -> Any:
        """Send a call and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        message = pickle.dumps(call)
        try:
            self.process.stdin.write(message)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise WorkerDied from error

    def close(self) -> None:
        """Give back the pipes, when the process has ended and nobody waits for it."""
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not sent any more
                pipe.close()


def serve() -> None:
    """Be a worker: call what comes from stdin until it closes, or SIGTERM comes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # no temporary file stays behind
    atexit.register(gc.freeze)  # else Python walks through all that was imported before it leaves
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that prints can come between
    with suppress(EOFError, BrokenPipeError):
        while True:
            answers.write(_answer(*pickle.load(sys.stdin.buffer)))
            answers.flush()


def _answer(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Return the result and nothing, or nothing and the error, as they are sent."""
    try:
        return pickle.dumps((function(*args, **kwargs), None), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        try:
            message = pickle.dumps((None, error))
            pickle.loads(message)
        except Exception:
            return pickle.dumps((None, RuntimeError(repr(error))))
        return message
