"""Number of BLAS threads for a product."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

from gcnbatch.machine import cores

# A product of at most this many multiply-adds, about 0.3 ms, runs on one thread. In a Tox21 layer, a second thread on
# an idle core saves 30 of 80 us. When another program uses that core, the first thread waits milliseconds for it.
SMALL = 25_000_000


# Programs that share the processors, by each block of `shared_processors`, with the block's mark; the last one counts.
_shares: list[tuple[int, object]] = []


@contextmanager
def shared_processors(shares: int = 2) -> Iterator[None]:
    """Leave all but one of `shares` of the processors to other processes of ours: threads of BLAS wait in loops."""
    own = shares, object()
    _shares.append(own)
    try:
        yield
    finally:  # blocks of several threads, as of two servers, end in any order
        _shares.remove(own)


def one_of(models: int) -> AbstractContextManager[None]:
    """Leave the threads of one of so many models, whether they train one after the other or in processes side by side.

    A large product has other roundings with another number of threads. So the number depends on the models alone.
    """
    return shared_processors(min(models, cores()))


class BlasThreads:
    """Sets the thread count of BLAS before a product, if it must change.

    The count is global to the process and keeps the value of the last product.
    """

    def __init__(self) -> None:
        self._shares: int | None = None

    def fit(self, multiply_adds: int) -> None:
        """Set one thread for a small product, else this program's share of the initial number of threads."""
        shares = 0 if multiply_adds <= SMALL else (_shares[-1][0] if _shares else 1)
        if shares != self._shares:
            self._shares = shares
            for library, threads in self._libraries:
                library.set_num_threads(max(threads // shares, 1) if shares else 1)

    @cached_property
    def _libraries(self) -> list[tuple[Any, int]]:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

        found = ThreadpoolController().select(user_api="blas").lib_controllers
        return [(library, library.num_threads) for library in found]
