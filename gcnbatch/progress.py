"""Progress of long work on stderr: a bar on a terminal, a line now and then in a pipe or a file."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext, suppress
from typing import Any

from tqdm import tqdm

from gcnbatch.text import printable

LINE_SECONDS = 10.0  # least time between two lines; shorter work shows none


class _Lines(tqdm):  # type: ignore[type-arg]  # generic in its type stubs only
    """Writes a new line where a bar would redraw itself, if the last one is old, and nothing when it closes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._written = time.monotonic()
        super().__init__(*arguments, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None and time.monotonic() - self._written >= LINE_SECONDS:
            self._written = time.monotonic()
            write_line(str(self))


def on_terminal() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def write_line(text: str) -> None:
    """Write a line of safe characters to stderr, above any bar. Work goes on when its reader has gone."""
    with suppress(OSError), tqdm.external_write_mode(file=sys.stderr) if on_terminal() else nullcontext():
        print(f"{printable(text)}\n", end="", file=sys.stderr, flush=True)  # at once: several threads write lines


def counter(
    total: int | None,
    unit: str,
    what: str = "",
    *,
    scale: bool = False,
    quiet: bool = False,
    leave: bool = True,
    delay: float = 0.0,
) -> tqdm[Any]:
    """Return a counter of finished items: a context whose `update` adds to it.

    Parameters
    ----------
    total : int or None
        Number of items, None if it is not known.
    unit : str
        Items that are counted, with a leading blank.
    what : str
        Work, in front of the numbers.
    scale : bool
        Shorten numbers: 1.2k, 3.4M.
    quiet : bool
        Show nothing.
    leave : bool
        Keep a finished bar on the terminal.
    delay : float
        Seconds before a bar appears on the terminal.
    """
    about: dict[str, Any] = {"desc": f"{what}: " if what else None, "total": total, "unit": unit, "unit_scale": scale}
    if quiet or sys.stderr is None:
        return tqdm(**about, disable=True)
    if on_terminal():
        return tqdm(**about, file=sys.stderr, leave=leave, delay=delay)
    line = "{desc}{n_fmt} of {total_fmt}{unit}, {rate_noinv_fmt}, {remaining} left"
    if total is None:
        line = "{desc}{n_fmt}{unit}, {rate_noinv_fmt}"
    return _Lines(**about, file=sys.stderr, leave=False, mininterval=0, miniters=0, bar_format=line)
