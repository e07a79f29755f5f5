"""What a worker process runs: it answers calls; see `gcnbatch.workers`."""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from itertools import chain
from typing import IO, Any

from gcnbatch import timeline
from gcnbatch.workers.shared import AnswerPickler, attach


def serve(alive: int, memory: int, forks: str) -> None:
    """Answer calls from stdin until it closes or SIGTERM arrives; end at once when the pipe `alive` closes.

    `memory` is that of the pool. With `forks`, the two file descriptors of each, processes are forked when the first
    call is done. Each sends its number and then serves, too.
    """
    attach(memory)
    folder = os.environ.get(timeline.FOLDER)
    timeline.start("worker")
    signal.signal(signal.SIGTERM, _exit)
    answers, calls, answer = _stdout(), _calls(), b""
    ends = [tuple(map(int, pair.split(","))) for pair in forks.split()]
    if ends:
        answer = pickled_answer(*next(calls, (int, (), {})))
        gc.freeze()  # a collection would write to all objects, which are then copied
    while ends:
        own = ends.pop()
        if _fork():
            for end, place in zip(own, (0, 1), strict=True):
                os.dup2(end, place)
            answers.close()
            atexit._clear()  # what the first process cleans up is its own
            answers, calls, answer = _stdout(), _calls(), pickle.dumps(os.getpid())
            os.setpgid(0, 0)
            timeline.start("worker", folder)
            own, ends = (*own, *chain.from_iterable(ends)), []
        for end in own:
            os.close(end)
    threading.Thread(target=_end_with_caller, args=(alive,), daemon=True).start()
    atexit.register(gc.freeze)  # skips the final garbage collection of all imported modules
    with suppress(BrokenPipeError):
        while True:
            answers.write(answer)
            answers.flush()
            if (call := next(calls, None)) is None:
                return
            answer = pickled_answer(*call)


def _fork() -> bool:
    """Return whether this is the forked process. If none can be forked, the caller finds its pipes closed."""
    with warnings.catch_warnings(), suppress(OSError):
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of a BLAS know forks
        return os.fork() == 0
    return False


def _stdout() -> IO[bytes]:
    """Return what writes answers; prints of a function go to stderr, not between the answers."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _calls() -> Iterator[Any]:
    """Yield what arrives through stdin, until it closes."""
    arrived, arriving = os.pipe()  # readable once a signal has arrived: a read that begins just then would miss it
    os.set_blocking(arriving, False)
    signal.set_wakeup_fd(arriving)
    with suppress(EOFError):
        while True:
            select.select([0, arrived], [], [])
            yield pickle.load(sys.stdin.buffer)


def _exit(*_: object) -> None:
    """Exit as usual, which removes temporary files; another SIGTERM must not interrupt that.

    Python ignores the exception in some places, such as callbacks during an import. Then the process ends after its
    call, because stdin has no more calls.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.exit()


def _end_with_caller(alive: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they interrupt the thread that works
    os.read(alive, 1)  # nothing is ever written: it returns when the caller has died
    os._exit(1)


def pickled_answer(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Return the pickled `answer` of a call."""
    found = answer(function, args, kwargs)
    try:
        AnswerPickler(buffer := BytesIO(), pickle.HIGHEST_PROTOCOL).dump(found)
        return buffer.getvalue()
    except Exception as error:
        return pickle.dumps((None, _picklable(error)))


def answer(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    """Return the pair (result, None) or (None, error); the error can be pickled."""
    try:
        with timeline.span(function.__name__):
            return function(*args, **kwargs), None
    except Exception as error:
        return None, _picklable(error)


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))
    return error
