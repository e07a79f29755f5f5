"""Progress of training on stderr: a bar on a terminal, a line per epoch in a pipe or a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from gcnbatch.metrics import label
from gcnbatch.progress import on_terminal, write_line
from gcnbatch.text import figure

EPOCH_SECONDS = 1.0  # least time between the lines of two epochs
STEP_SECONDS = 30.0  # an epoch that takes longer writes lines of its own


class Progress:
    """Progress of a fit, a context. This base class shows nothing.

    Parameters
    ----------
    epochs, steps : int
        Epochs of the fit, and steps of an epoch.
    done : int
        Steps that a resumed run has done before.
    """

    def __init__(self, epochs: int, steps: int, done: int) -> None:
        self.epochs, self.steps, self.done = epochs, steps, done

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self) -> None:
        """Count a step."""
        self.done += 1
        self._show_step()

    def end(self, row: dict[str, Any], best: int) -> None:
        """Take the history row of a finished epoch and the number of the best epoch so far."""

    def close(self) -> None:
        """Show what is not yet shown, and end."""

    def _show_step(self) -> None:
        pass


class Bar(Progress):
    """A bar that counts steps. It counts them as whole numbers: a sum of fractions would pass its end."""

    def __init__(self, epochs: int, steps: int, done: int) -> None:
        super().__init__(epochs, steps, done)
        self._bar = tqdm(
            total=epochs * steps,
            initial=done,
            unit="step",
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining} {postfix}",
        )

    def _show_step(self) -> None:
        epoch, step = divmod(self.done - 1, self.steps)
        self._bar.set_description_str(f"epoch {epoch + 1}/{self.epochs} step {step + 1}/{self.steps}", refresh=False)
        self._bar.update()

    def end(self, row: dict[str, Any], best: int) -> None:
        """Show the row."""
        self._bar.set_postfix_str(describe(row, best), refresh=False)

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()


class Lines(Progress):
    """A line per epoch, at most one a second; the last epoch always has one. `clock` returns seconds."""

    def __init__(self, epochs: int, steps: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(epochs, steps, done)
        self._clock, self._first, self._began = clock, done, clock()
        self._written = self._began - EPOCH_SECONDS
        self._waiting = ""

    def _show_step(self) -> None:
        epoch, step = divmod(self.done, self.steps)
        if step and self._clock() - self._written >= STEP_SECONDS:
            self._write(f"epoch {epoch + 1}/{self.epochs}: step {step:,} of {self.steps:,}{self._left()}")

    def end(self, row: dict[str, Any], best: int) -> None:
        """Write the row, if the last line is old."""
        self._waiting = f"epoch {row['epoch']}/{self.epochs}: {describe(row, best)}"
        if self._clock() - self._written >= EPOCH_SECONDS:
            self._write(self._waiting + self._left())

    def close(self) -> None:
        """Write the line of the last epoch if it is not yet written."""
        if self._waiting:
            self._write(self._waiting)

    def _write(self, line: str) -> None:
        write_line(line)
        self._written, self._waiting = self._clock(), ""

    def _left(self) -> str:
        """Return the time left, by the steps of this process."""
        left = self.epochs * self.steps - self.done
        seconds = (self._clock() - self._began) / max(self.done - self._first, 1) * left
        return f", {tqdm.format_interval(seconds)} left" if seconds >= 1 else ""


def open_progress(epochs: int, steps: int, done: int, quiet: bool) -> Progress:
    """Return the progress for this stderr; the parameters are those of `Progress`."""
    shown = Progress if quiet else Bar if on_terminal() else Lines
    return shown(epochs, steps, done)


def describe(row: dict[str, Any], best: int) -> str:
    """Return the losses, the monitored metric and the speed of an epoch as text."""
    shown = [
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in row.items()
        if name.endswith("_loss") and value is not None
    ]
    shown += [
        f"{label(name.removeprefix('valid_'))} {figure(value)}"
        for name, value in row.items()
        if name.startswith("valid_") and name != "valid_loss" and value is not None
    ]
    return ", ".join([*shown, f"best epoch {best}", f"{row['graphs_per_second']:,.0f} graphs/s"])
