"""Progress of a study on stderr: trials per second, the best so far, and the time left."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial

from gcnbatch.progress import on_terminal, write_line
from gcnbatch.text import figure
from gcnbatch.tuning.record import value_of

if TYPE_CHECKING:
    from gcnbatch.tuning.study import Study

LINE_SECONDS = 2.0  # least time between two lines in a pipe


class Watch:
    """Shows each trial that ends, a context: on a terminal one line that changes, in a pipe a line now and then.

    Parameters
    ----------
    study : Study
    count : int or None
        Trials of the whole study.
    deadline : float
        On the clock `time.monotonic`.
    monitor : str
        Name of the objective.
    quiet : bool
    """

    def __init__(self, study: Study, count: int | None, deadline: float, monitor: str, quiet: bool) -> None:
        self._study, self._count, self._deadline = study, count, deadline
        self._monitor, self._quiet = monitor, quiet
        self._began = self._shown = time.monotonic()
        self._ended, self._waiting = 0, ""

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._waiting:
            self._write("\n" if on_terminal() else "")

    def show(self, trial: FrozenTrial) -> None:
        """Count a trial that has ended."""
        self._ended += 1
        if self._quiet:
            return
        now = time.monotonic()
        rate = self._ended / max(now - self._began, 1e-9)
        done = len(self._study.trials)
        text = f"trial {done}" + (f" of {self._count}" if self._count else "")
        best = self._study.best
        if best is not None:
            text += f", best {self._monitor} {figure(value_of(best))} (trial {best.user_attrs['number']})"
        text += f", {rate:.2f} trials/s"
        left = min((self._count - done) / rate if self._count else math.inf, self._deadline - now)
        self._waiting = text + (f", {_clock(left)} left" if 0 < left < math.inf else "")
        if on_terminal() or now - self._shown >= LINE_SECONDS:
            self._write()

    def _write(self, end: str = "") -> None:
        if on_terminal():
            print(f"\r\x1b[2K{self._waiting}", end=end, file=sys.stderr, flush=True)
        else:
            write_line(self._waiting)
            self._waiting = ""
        self._shown = time.monotonic()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
