"""Operations on rows that wait until it is known what follows them: so that rows leave for other ranks chunk by chunk.

A product with the adjacency, a dense product, ReLU and dropout compute each row of their result from a row of their
input. `RowWork` collects such operations, which then run for one chunk of rows after the other. Ranks push the rows of
a chunk while the next chunk is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

CHUNK_ROWS = 3 << 13  # of a chunk, at least: dense products of fewer rows leave multiprocessors idle
MOST_CHUNKS = 4
ALIGNED_ROWS = 64  # chunks begin at multiples: rows of any width are then aligned to 16 bytes, their bits to bytes

Call = Callable[[int, int], object]  # of the first row and the row behind the last


@lru_cache(maxsize=64)
def row_bounds(n: int) -> tuple[int, ...]:
    """Return where the chunks of `n` rows begin, and `n`.

    >>> row_bounds(1000), row_bounds(58_000), row_bounds(612_257)
    ((0, 1000), (0, 29056, 58000), (0, 153088, 306176, 459264, 612257))
    """
    chunks = min(max(n // CHUNK_ROWS, 1), MOST_CHUNKS)
    rows = ALIGNED_ROWS * ceil_div(n, chunks * ALIGNED_ROWS)
    return (*range(0, n, max(rows, 1)), n) if n else (0, 0)


class RowWork:
    """Operations that are not launched yet.

    Parameters
    ----------
    n : int
        Rows of each operation.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.out: Any = None  # result of the last operation
        self._calls: list[Call] = []

    @property
    def bounds(self) -> Sequence[int]:
        """Where the chunks begin, and the number of rows."""
        return row_bounds(self.n)

    def add(self, call: Call, out: Any) -> None:
        """Add an operation behind the others."""
        self._calls.append(call)
        self.out = out

    def launch(self, then: Callable[[int, int, bool], object] = lambda first, stop, is_last: None) -> None:
        """Launch all operations chunk by chunk; call `then` behind each chunk."""
        for first, stop in pairwise(self.bounds):
            for call in self._calls:
                call(first, stop)
            then(first, stop, stop == self.n)
        self._calls.clear()


def rows_of(array: DeviceArray, first: int, stop: int) -> DeviceArray:
    """Return rows first … stop - 1 of an array (n, …)."""
    width = array.size // max(len(array), 1)
    return array.view(first * width, (stop - first, *array.shape[1:]))
