"""Requests to stop: Ctrl-C and other signals end training after the current step, with a checkpoint."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gcnbatch import machine
from gcnbatch.errors import GcnbatchError
from gcnbatch.ranks import world


class Interrupted(GcnbatchError):
    """Training stopped on request (Ctrl-C) after writing a checkpoint."""

    exit_code = 130


class StopRequest:
    """While entered, notes the first SIGINT, SIGTERM or SIGHUP in `made`; the second raises KeyboardInterrupt.

    A follower among ranks also stops when rank 0 asks it to. An ignored signal stays ignored: a background command of a
    script must survive a Ctrl-C that is meant for the foreground command. Threads other than the main one notice no
    signal: Python handles signals in the main thread.
    """

    def __init__(self) -> None:
        self._signalled = False

    @property
    def made(self) -> bool:
        """Whether a signal has arrived, or rank 0 asks to stop."""
        return self._signalled or world.stop_is_asked()

    def __enter__(self) -> StopRequest:
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
        handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._request) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            raise KeyboardInterrupt
        self._signalled = True


@contextmanager
def resumable(command: str, config: Path) -> Iterator[None]:
    """Add the command that goes on to an error of the machine and to an interrupt.

    Parameters
    ----------
    command : {"train", "tune"}
    config : Path
        A file of the folder; without it, there is nothing to go on with.
    """
    go_on = f"Go on with: gcnbatch {command} --resume {shlex.quote(str(config.parent))}"
    try:
        with world.advised(go_on, config):
            yield
    except (Interrupted, KeyboardInterrupt) as stop:
        what = str(stop) if isinstance(stop, Interrupted) else "stopped"
        raise Interrupted(what, hint=go_on if config.exists() else "Nothing was written.") from None
    except Exception as error:
        explained = machine.explain(error)
        if explained is None:
            raise
        if config.exists():
            explained.advise(go_on)
        if explained is error:
            raise
        raise explained from error
