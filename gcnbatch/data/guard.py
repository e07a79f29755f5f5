"""Work on rows of a file by a library that a hostile row can crash or keep busy: such a row is lost, not the file.

Each row has SECONDS of processor time and MEMORY_BYTES. `Workers` processes run under these limits (`limit_worker`) and
die of such a row; `run` then finds it, in forked processes.
"""

from __future__ import annotations

import mmap
import pickle
import resource
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gcnbatch import confined
from gcnbatch.workers.pool import WorkerDied, Workers, ahead

SECONDS = 10.0  # of processor time for a row; a molecule of 2,000 atoms takes at most 1 s
MEMORY_BYTES = 1 << 30  # beyond what the process has at its start; a ring of 2,000 atoms takes 250 MB
_ANSWER_BYTES = 1 << 30
_PLACE_BYTES = 8

Row = TypeVar("Row")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Lost:
    """A row without a result: its position and the reason."""

    index: int
    reason: str


def run(
    function: Callable[[Iterable[Row], int], Result], rows: Sequence[Row], library: str, first: int = 0
) -> Iterator[Result | Lost]:
    """Yield what `function` returns for the rows, in their order: one result, or several around the lost rows.

    Parameters
    ----------
    function : callable
        ``function(rows, position)``, called in a forked process with some of the rows and the position of their first.
        It must take a row only when the one before is done. Its result must be picklable.
    rows : sequence
    library : str
        The library that it calls, for reasons.
    first : int
        Position of the first row.

    Raises
    ------
    MachineError
        As `gcnbatch.confined.call`.
    """
    done, seconds = 0, SECONDS
    while done < len(rows):
        place = mmap.mmap(-1, _PLACE_BYTES)  # shared with the fork

        def answer(part: Sequence[Row] = rows[done:], start: int = first + done, place: mmap.mmap = place) -> bytes:
            return pickle.dumps(function(timed(part, seconds, place), start), pickle.HIGHEST_PROTOCOL)

        try:
            # The limit for all rows is a second line: `timed` sets the one for each row.
            total = int(seconds * (len(rows) - done)) + 1
            message = confined.call(answer, library, total, MEMORY_BYTES, _ANSWER_BYTES)
            yield pickle.loads(message)
            return
        except confined.Failed as error:
            failure = error
        lost = done + int.from_bytes(place, "little")
        if lost > done:
            yield from run(function, rows[done:lost], library, first + done)
        slow = failure.signal == signal.SIGPROF
        if slow or len(rows) - done == 1:
            reason = f"{library} takes more than {seconds:g} s of processor time" if slow else str(failure)
            yield Lost(first + lost, reason)
        else:  # earlier rows may be at fault: once more, alone
            yield from run(function, rows[lost : lost + 1], library, first + lost)
        done = lost + 1


def each(function: Callable[[Row], Result], rows: Sequence[Row], library: str, lost: Result) -> list[Result]:
    """Return the result of each row, `lost` for a lost one; see `run`."""
    parts = run(lambda some, _: [function(row) for row in some], rows, library)
    return [one for part in parts for one in ([lost] if isinstance(part, Lost) else part)]


def timed(rows: Iterable[Row], seconds: float, place: mmap.mmap | None = None) -> Iterator[Row]:
    """Yield the rows; a process that does not ask for the next one within `seconds` of processor time is ended.

    The number of the row under way is kept in `place`.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        for number, row in enumerate(rows):
            if place is not None:
                place[:] = number.to_bytes(_PLACE_BYTES, "little")
            signal.setitimer(signal.ITIMER_PROF, seconds)
            yield row
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def in_workers(
    workers: Workers,
    function: Callable[..., Result],
    again: Callable[..., Iterable[Result]],
    chunks: Iterator[tuple[Any, ...]],
    most: int,
) -> Iterator[Result]:
    """Yield the results of chunks in their order, made by processes under limits.

    Parameters
    ----------
    workers : Workers
        Their processes have called `limit_worker`.
    function : callable
        ``function(SECONDS, *chunk)`` takes its rows through `timed`.
    again : callable
        ``again(*chunk)`` returns results where the process has died; it calls `run`.
    chunks : iterator of tuple
    most : int
        Chunks that are begun and not yielded.
    """
    under_way = ((workers.submit(function, SECONDS, *chunk), chunk) for chunk in chunks)
    for call, chunk in ahead(under_way, most):
        results: Iterable[Result]
        try:
            results = [call.result()]
        except (WorkerDied, MemoryError):
            results = again(*chunk)
        yield from results


def limit_worker() -> None:
    """Limit the memory of this process, and leave no core file when it crashes."""
    confined.limit_memory(MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
