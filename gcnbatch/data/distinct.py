"""The different rows of an array: few atoms of a set of molecules differ in their features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 0.125  # of all rows, at most
_SAMPLE = 4096  # rows whose digests are computed first
_BLOCK = 1 << 16  # rows at a time


def distinct_rows(x: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
    """Return the first index of each different row of `x` (N, F), (U,), and the number of each row among these, (N,).

    None where the different rows are not few. Rows are equal if their bytes are.

    >>> places, numbers = distinct_rows(np.tile(np.float32([[1, 2], [0, 1]]), (10, 1)))
    >>> len(places), numbers.tolist() == 10 * [numbers[0], 1 - numbers[0]]
    (2, True)
    >>> distinct_rows(np.arange(20.0).reshape(10, 2)) is None
    True
    """
    if not x.size or len(np.unique(_digests(x[:_SAMPLE]))) > max(FEW * len(x), 1):
        return None
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(x), _BLOCK)]
    digests = np.concatenate([_digests(x[block]) for block in blocks])
    _, places, numbers = np.unique(digests, return_index=True, return_inverse=True)
    if len(places) > FEW * len(x):
        return None
    rows = _bytes_of(x[places])
    if not all(np.array_equal(rows[numbers[block]], _bytes_of(x[block])) for block in blocks):
        return None  # two different rows have one digest
    return places, numbers.astype(np.int32)


def _bytes_of(x: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(x).view(np.uint8)


def _digests(x: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a number for each row, equal for equal rows."""
    of_bytes = _bytes_of(x)
    words = np.zeros((len(x), -(-of_bytes.shape[1] // 8) * 8), np.uint8)
    words[:, : of_bytes.shape[1]] = of_bytes
    wide = words.view(np.uint64)
    factors = np.random.default_rng(0).integers(1 << 63, size=wide.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed = wide * factors
    mixed ^= mixed >> np.uint64(29)
    return mixed.sum(axis=1, dtype=np.uint64)
