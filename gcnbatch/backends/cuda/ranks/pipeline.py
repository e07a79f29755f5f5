"""Operations on rows that wait until it is known what follows them: so that rows leave for other ranks chunk by chunk.

A product with the adjacency, a dense product, ReLU and dropout compute each row of their result from a row of their
input. `RowWork` collects such operations, which then run for one chunk of rows after the other. Ranks push the rows of
a chunk while the next chunk is computed. The first chunk does not wait: the device computes it meanwhile.
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

Call = Callable[[int, int], object]  # of the first row and the row after the last


@lru_cache(maxsize=64)
def row_bounds(n: int) -> tuple[int, ...]:
    """Return where the chunks of `n` rows begin, and `n`: chunks of one size, as rows take longer to send than to find.

    >>> row_bounds(1000), row_bounds(58_000), row_bounds(612_257)
    ((0, 1000), (0, 29056, 58000), (0, 153088, 306176, 459200, 612257))
    """
    return _bounds(n, [1] * _chunks(n))


@lru_cache(maxsize=64)
def product_bounds(n: int) -> tuple[int, ...]:
    """As `row_bounds`, after a product with the adjacency, which takes longer than to send its rows.

    Each chunk has half as many rows as the one before, so that the last ones, for which ranks must wait, are few.

    >>> product_bounds(1000), product_bounds(58_000), product_bounds(612_257)
    ((0, 1000), (0, 38720, 58000), (0, 326592, 489856, 571456, 612257))
    """
    return _bounds(n, [1 << number for number in reversed(range(_chunks(n)))])


def _chunks(n: int) -> int:
    return min(max(n // CHUNK_ROWS, 1), MOST_CHUNKS)


def _bounds(n: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Return the bounds of chunks in these proportions."""
    ends = (ALIGNED_ROWS * ceil_div(n * sum(shares[:i]), ALIGNED_ROWS * sum(shares)) for i in range(1, len(shares)))
    return 0, *(end for end in dict.fromkeys(ends) if end < n), n


class RowWork:
    """Operations that are not launched yet.

    Parameters
    ----------
    bounds : sequence of int
        Where the chunks begin, and the number of rows.
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.out: Any = None  # result of the last operation
        self._calls: list[Call] = []

    def add(self, call: Call, out: Any) -> None:
        """Add an operation after the others, and launch its first chunk."""
        self._calls.append(call)
        self.out = out
        call(*self.bounds[:2])

    def launch(self, then: Callable[[int, int, bool], object] = lambda first, stop, is_last: None) -> None:
        """Launch all operations, chunk by chunk; call `then` after each chunk."""
        for number, (first, stop) in enumerate(pairwise(self.bounds)):
            for call in self._calls if number else ():
                call(first, stop)
            then(first, stop, number == len(self.bounds) - 2)
        self._calls.clear()


def rows_of(array: DeviceArray, first: int, stop: int) -> DeviceArray:
    """Return rows first … stop - 1 of an array (n, …)."""
    width = array.size // max(len(array), 1)
    return array.view(first * width, (stop - first, *array.shape[1:]))
