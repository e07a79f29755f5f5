"""How many threads BLAS shares a product among."""

from __future__ import annotations

from functools import cached_property
from typing import Any

# Multiply-adds up to which a product is left to one thread: a third of a millisecond. A second thread gains 30 us of 80
# in a Tox21 layer where it has a core of its own; where other programs use that, the first waits for it, milliseconds.
SMALL = 25_000_000


class BlasThreads:
    """Sets the number of BLAS's threads for the next product, when it has to change.

    The number is the process's: it stays as the last product left it.
    """

    def __init__(self) -> None:
        self._one: bool | None = None

    def fit(self, multiply_adds: int) -> None:
        """Give a product of this size one thread if it is small, else as many as there were at first."""
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
