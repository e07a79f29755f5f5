"""Where the seconds of a command go: spans of work, recorded only if ``--timeline`` is given.

Every process of the command appends its spans to a file of its own in one folder, line by line, so that a process which
is killed loses none; `gcnbatch.cli.timeline` puts them together. Without the option, a span takes 0.2 us.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")
FOLDER = "GCNBATCH_TIMELINE"  # environment variable: where processes write their spans
START = "Python starts"
_LEAST_IMPORT = 5e-3  # seconds: shorter imports are none of their own
_NOTHING: AbstractContextManager[None] = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Return a context whose time is recorded under `name`: an imperative, such as "read the data"."""
    return _NOTHING if _recorder is None else _Span(name)


def spanned(name: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Record the time of each call of a function under `name`."""

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> Result:
            with span(name):
                return function(*arguments, **keywords)

        return call

    return decorate


def start(process: str, folder: str | None = None) -> None:
    """Record the spans of this process, named `process`, from its start on, and those of the processes that it starts.

    Without `folder`, only if the process that started this one does.
    """
    global _recorder  # noqa: PLW0603 -- as global as the process
    folder = folder or os.environ.get(FOLDER)
    if folder and _recorder is None:
        os.environ[FOLDER] = folder
        _recorder = _Recorder(folder, process)
        sys.meta_path.insert(0, _Imports())
        os.register_at_fork(after_in_child=stop)  # a confined process may write no file


def stop() -> None:
    """Record nothing any more, neither here nor in processes that start from now on."""
    global _recorder  # noqa: PLW0603 -- as above
    _recorder = None
    os.environ.pop(FOLDER, None)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Imports)]


def _record(name: str, begin: float) -> None:
    if _recorder is not None:
        _recorder.record(name, begin, time.monotonic())


class _Recorder:
    def __init__(self, folder: str, process: str) -> None:
        # Lines that are buffered would be lost in a process that is killed.
        self._file = open(os.path.join(folder, f"{os.getpid()}.jsonl"), "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._write({"process": process})
        self.record(START, _started(), time.monotonic())

    def record(self, name: str, begin: float, end: float) -> None:
        thread = threading.current_thread()
        number = 0 if thread is threading.main_thread() else threading.get_native_id()
        self._write({"name": name, "begin": begin, "end": end, "thread": number, "of": thread.name})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps({"pid": os.getpid(), **line}) + "\n")


_recorder: _Recorder | None = None


class _Span:
    __slots__ = ("_begin", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        _record(self._name, self._begin)


class _Imports:
    """Finds modules as the other finders do, and records the time of their code.

    It is no MetaPathFinder: `importlib.abc` would take 3 ms of the start of every process.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self)
        found = next((spec for one in others if (spec := one.find_spec(fullname, path, target))), None)
        if found is not None and found.loader is not None and not isinstance(found.loader, type):
            execute = found.loader.exec_module

            def timed(module: ModuleType) -> None:
                begin = time.monotonic()
                execute(module)
                if time.monotonic() - begin >= _LEAST_IMPORT:
                    _record(f"import {fullname}", begin)

            found.loader.exec_module = timed  # type: ignore[method-assign]
        return found


def _started() -> float:
    """Return when this process started, in seconds of `time.monotonic`."""
    with open("/proc/self/stat", "rb") as stat:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])
    after_boot = ticks / os.sysconf("SC_CLK_TCK")
    return after_boot - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()
