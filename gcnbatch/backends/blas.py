"""Number of BLAS threads for a product."""

from __future__ import annotations

from functools import cached_property
from typing import Any

# A product of at most this many multiply-adds, about 0.3 ms, runs on one thread. In a Tox21 layer, a second thread on
# an idle core saves 30 of 80 us. When another program uses that core, the first thread waits milliseconds for it.
SMALL = 25_000_000


class BlasThreads:
    """Sets the thread count of BLAS before a product, if it must change.

    The count is global to the process and keeps the value of the last product.
    """

    def __init__(self) -> None:
        self._one: bool | None = None

    def fit(self, multiply_adds: int) -> None:
        """Set one thread for a small product, else the initial number of threads."""
        one = multiply_adds <= SMALL
        if one is not self._one:
            self._one = one
            for library, threads in self._libraries:
                library.set_num_threads(1 if one else threads)

    @cached_property
    def _libraries(self) -> list[tuple[Any, int]]:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

        found = ThreadpoolController().select(user_api="blas").lib_controllers
        return [(library, library.num_threads) for library in found]
