"""Estimate of the number of entries of a product of sparse matrices, without computing it.

Source: Cohen, "Size-estimation framework with applications to transitive closure and reachability", 1997. Every column
draws an exponential key. The smallest key among the columns that a row reaches is exponential, with their number as
rate. A further factor takes minima of these keys over its entries. From k keys, (k - 1) / sum of the k minima is an
unbiased estimate of the number, with a relative standard deviation of 1 / sqrt(k - 2) for a row. For many rows it is
smaller if they reach different columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox

MOST_KEYS, FEWEST_KEYS = 128, 6
KEY_WORK = 100_000_000  # entries read, times keys


class Reach:
    """Columns that the rows of a product B, A B, A A B, … reach.

    Parameters
    ----------
    matrix : sparse (N, M)
        B.
    work : int
        Entries of all further factors: the more, the fewer keys are drawn.
    """

    def __init__(self, matrix: Any, work: int) -> None:
        count = int(np.clip(KEY_WORK // max(work, 1), FEWEST_KEYS, MOST_KEYS))
        rng = philox.generator(0, "forecast.keys")
        keys = rng.standard_exponential((count, matrix.shape[1]), dtype=np.float32)
        self._smallest = np.stack([_row_minimum(matrix, key) for key in keys])

    def extend(self, matrix: Any) -> None:
        """Multiply by A from the left."""
        self._smallest = np.stack([_row_minimum(matrix, key) for key in self._smallest])

    def entries(self, most: int = 0) -> float:
        """Return the expected number of entries of the product; with `most`, at most that many count per row."""
        of_row = (len(self._smallest) - 1) / self._smallest.sum(axis=0, dtype=np.float64)  # nothing reached: 1 / inf
        return float(np.minimum(of_row, most).sum() if most else of_row.sum())


def _row_minimum(matrix: Any, key: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the smallest key among each row's columns, infinity for an empty row."""
    found = np.full(matrix.shape[0], np.inf, np.float32)
    filled = np.flatnonzero(np.diff(matrix.indptr))
    if len(filled):
        found[filled] = np.minimum.reduceat(key[matrix.indices], matrix.indptr[filled])
    return found
