"""Functions of many rows, computed in blocks: their float64 copies would take several times the memory of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_VALUES = 1 << 22  # of a block


def in_blocks(of_rows: Callable[..., NDArray[Any]], *arrays: NDArray[Any]) -> NDArray[Any]:
    """Return what `of_rows` returns for arrays of R rows each, if it computes each row from that row alone.

    >>> in_blocks(lambda a, b: a.sum(axis=1) * b, np.ones((3, 2)), np.arange(3))
    array([0., 2., 4.])
    """
    values = arrays[0]
    step = max(BLOCK_VALUES // max(values[:1].size, 1), 1)
    starts = range(0, max(len(values), 1), step)
    return np.concatenate([of_rows(*(array[start : start + step] for array in arrays)) for start in starts])
