"""The different rows of an array: few atoms of a set of molecules differ in their features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 0.125  # of all rows, at most
_SAMPLE = 4096  # rows whose digests are computed first
_BLOCK = 1 << 16  # rows at a time


@dataclass(frozen=True, eq=False)
class RepeatedRows:
    """An array (N, F) of few different rows: row n is ``values[numbers[n]]``.

    Parameters
    ----------
    values : (U, F)
    numbers : int32, (N,)
    """

    values: NDArray[Any]
    numbers: NDArray[np.int32]

    @classmethod
    def of(cls, x: NDArray[Any]) -> RepeatedRows | None:
        """Return the rows of an array; None where the different ones are not few.

        >>> RepeatedRows.of(np.tile(np.float32([[1, 2], [0, 1]]), (10, 1))).values.shape
        (2, 2)
        >>> RepeatedRows.of(np.arange(20.0).reshape(10, 2)) is None
        True
        """
        found = distinct_rows(x, FEW)
        return None if found is None else cls(x[found[0]], found[1])

    @classmethod
    def joined(cls, parts: Sequence[RepeatedRows]) -> RepeatedRows:
        """Return the rows of all parts, those of one after those of the other; they equal `of` the whole array."""
        values = np.concatenate([part.values for part in parts])
        starts = np.cumsum([0, *(len(part.values) for part in parts)]).tolist()
        numbers = np.concatenate([part.numbers + start for part, start in zip(parts, starts, strict=False)])
        found = distinct_rows(values)
        return cls(values, numbers) if found is None else cls(values[found[0]], found[1][numbers])

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Return these rows as an array."""
        return self.values.take(self.numbers[rows], axis=0)


def distinct_rows(x: NDArray[Any], few: float = 1.0) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
    """Return the first index of each different row of `x` (N, F), (U,), and the number of each row among these, (N,).

    None where more than the share `few` of the rows are different, or, by chance, two of them have one digest. Rows are
    equal if their bytes are. The order of the different rows depends on their bytes alone.

    >>> places, numbers = distinct_rows(np.tile(np.float32([[1, 2], [0, 1]]), (10, 1)))
    >>> len(places), numbers.tolist() == 10 * [numbers[0], 1 - numbers[0]]
    (2, True)
    """
    if not x.size or len(np.unique(_digests(x[:_SAMPLE]))) > max(few * len(x), 1):
        return None
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(x), _BLOCK)]
    digests = np.concatenate([_digests(x[block]) for block in blocks])
    _, places, numbers = np.unique(digests, return_index=True, return_inverse=True)
    if len(places) > few * len(x):
        return None
    rows = _bytes_of(x[places])
    if not all(np.array_equal(rows[numbers[block]], _bytes_of(x[block])) for block in blocks):
        return None
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
