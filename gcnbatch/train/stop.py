"""Requests to stop: Ctrl-C and other signals end training after the current step, with a checkpoint."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

from gcnbatch.errors import GcnbatchError


class Interrupted(GcnbatchError):
    """Training stopped on request (Ctrl-C) after writing a checkpoint."""

    exit_code = 130


class StopRequest:
    """While entered, notes the first SIGINT, SIGTERM or SIGHUP in `made`; the second raises KeyboardInterrupt.

    An ignored signal stays ignored: a background command of a script must survive a Ctrl-C that is meant for the
    foreground command.
    """

    def __init__(self) -> None:
        self.made = False

    def __enter__(self) -> StopRequest:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._request) for number in handled}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.made:
            raise KeyboardInterrupt
        self.made = True
