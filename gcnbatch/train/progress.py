"""The progress bar of training: one line on stderr, silent in a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tqdm import tqdm


class Bar:
    """Shows epoch, loss, validation metric, graphs per second and remaining time; silent if `quiet` or in a pipe."""

    def __init__(self, epochs: int, steps: int, done: int, quiet: bool) -> None:
        self._epochs, self._steps, self._done = epochs, steps, done
        self._bar = tqdm(
            total=epochs * steps,
            initial=done,
            disable=True if quiet else None,
            unit="step",
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining} {postfix}",
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def step(self) -> None:
        """Count a step."""
        self._done += 1
        if self._bar.disable:
            return
        epoch, step = divmod(self._done - 1, self._steps)
        self._bar.set_description_str(f"epoch {epoch + 1}/{self._epochs} step {step + 1}/{self._steps}", refresh=False)
        self._bar.update()

    def end(self, row: dict[str, Any], best: int) -> None:
        """Show the history row of a finished epoch and the number of the best epoch so far."""
        if self._bar.disable:
            return
        shown = [
            f"{name.replace('_', ' ')} {row[name]:.4g}"
            for name in row
            if name.endswith("_loss") and row[name] is not None
        ]
        shown += [
            f"{name.removeprefix('valid_')} {value:.4f}"
            for name, value in row.items()
            if name.startswith("valid_") and name != "valid_loss" and value is not None
        ]
        shown += [f"best epoch {best}", f"{row['graphs_per_second']:,.0f} graphs/s"]
        self._bar.set_postfix_str(", ".join(shown))


def open_progress(epochs: int, steps: int, done: int, quiet: bool) -> Bar:
    """Return the progress of a fit of `epochs` epochs of `steps` steps, `done` of which ran before."""
    return Bar(epochs, steps, done, quiet)
