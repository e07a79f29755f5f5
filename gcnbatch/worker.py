"""Processes beside this one that answer: an object goes in through a pipe, another comes back.

A worker starts from nothing (no fork of threads or of a GPU context, no second import of the caller's main module),
finds modules where this process does, not where it stands, and leaves when its stdin closes, so that it never outlives
this process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_START = (
    "import sys; module, function, *sys.path[:] = sys.argv[1:]; "
    "import importlib; getattr(importlib.import_module(module), function)()"
)
_IDLE_SECONDS, _TIDY_SECONDS = 0.2, 30.0  # that a process may take to leave, with nothing to do and at work


class WorkerDied(Exception):
    """The process has ended."""


class Worker:
    """A process in which a function runs that ends in `serve`.

    Parameters
    ----------
    function : function of a module, without parameters
    quiet : bool
        What it says on stderr goes nowhere: for one that can be done without.

    Raises
    ------
    OSError
        When no process can be started.
    """

    def __init__(self, function: Callable[[], None], quiet: bool = False) -> None:
        named, pipe = (function.__module__, function.__name__), subprocess.PIPE
        command = [sys.executable, "-c", _START, *named, *sys.path]
        said = subprocess.DEVNULL if quiet else None
        # A process group of its own: Ctrl-C in a terminal is for this process, which then stops its workers.
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, process_group=0)

    def ask(self, question: Any) -> Any:
        """Send an object and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            pickle.dump(question, self.process.stdin)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise WorkerDied from error

    def stop(self) -> None:
        """Let the process end: an idle one at once, one at work when it has tidied up."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            try:
                self.process.wait(_IDLE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.terminate()
                self.process.wait(_TIDY_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not sent any more
                pipe.close()


def serve(answer: Callable[[Any], Any], prepare: Callable[[], object] = lambda: None) -> None:
    """Be a worker: `prepare`, then answer objects from stdin until it closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that prints can come between
    with suppress(EOFError, BrokenPipeError):
        prepare()
        while True:
            pickle.dump(answer(pickle.load(sys.stdin.buffer)), answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
    os._exit(0)  # nothing is left to tidy up, which would take a while
