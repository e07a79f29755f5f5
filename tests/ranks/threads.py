"""Ranks that are threads of this process: the algorithms of distributed training without a launcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")


class ThreadCommunicator:
    """`gcnbatch.ranks.communicator.Communicator` between threads of this process."""

    def __init__(self, rank: int, slots: list[Any], barrier: Barrier) -> None:
        self.rank, self.size = rank, len(slots)
        self._slots, self._barrier = slots, barrier

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.stack(self._all(np.array(array)))

    def all_reduce(self, array: NDArray[Any]) -> None:
        array[...] = sum(self._all(array.copy())[1:], start=self._slots_first)

    def broadcast(self, array: NDArray[Any]) -> None:
        array[...] = self._all(array.copy())[0]

    def exchange(self, parts: Sequence[NDArray[Any]], rows: Sequence[int]) -> list[NDArray[Any]]:
        found = [sent[self.rank] for sent in self._all([part.copy() for part in parts])]
        assert [len(part) for part in found] == list(rows)
        return found

    def _all(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        self._slots[self.rank] = value
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        self._slots_first = found[0]
        return found


def on_ranks(
    size: int, run: Callable[[ThreadCommunicator], Result], communicator: type[ThreadCommunicator] = ThreadCommunicator
) -> list[Result]:
    """Call `run` on so many ranks at once; return what each returns."""
    slots, barrier = [None] * size, Barrier(size)

    def guarded(rank: int) -> Result:
        try:
            return run(communicator(rank, slots, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))
