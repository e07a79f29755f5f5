"""Arrays of several files as one: their rows one after the other, their pointers continued."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.chunks import RowsOnDisk, StoredArray
from gcnbatch.data.graphs import Int64
from gcnbatch.errors import InputError


class JoinedArray(RowsOnDisk):
    """The rows of several arrays, one after the other: ``array[start:stop]`` reads rows. Texts get one width.

    Parameters
    ----------
    parts : sequence of StoredArray
        At least one; of the same type (but for the width of texts) and number of columns.
    """

    def __init__(self, parts: Sequence[StoredArray]) -> None:
        self._parts = parts
        self._start = [0, *accumulate(map(len, parts))]
        self.dtype = max((part.dtype for part in parts), key=lambda dtype: dtype.itemsize)
        self.shape = (self._start[-1], *parts[0].shape[1:])

    def read_into(self, values: NDArray[Any], start: int) -> None:
        """Read rows as `RowsOnDisk` says, from one part after the other."""
        at, stop = start, start + len(values)
        while at < stop:
            part = bisect_right(self._start, at) - 1
            end = min(stop, self._start[part + 1])
            self._parts[part].read_into(values[at - start : end - start], at - self._start[part])
            at = end


class JoinedPointer:
    """Pointers of several files as one: that of each file goes on where the one before ends.

    ``[0, 3, 4]`` and ``[0, 2]`` become ``[0, 3, 4, 6]``.

    Parameters
    ----------
    parts : sequence of StoredArray
        int64, each with at least one entry.
    totals : sequence of int
        The number of rows that each pointer covers.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, parts: Sequence[StoredArray], totals: Sequence[int]) -> None:
        self._parts, self._totals = parts, totals
        self._start = [0, *accumulate(len(part) - 1 for part in parts)]  # segments before each part
        self._base = [0, *accumulate(totals)]
        self.shape = (self._start[-1] + 1,)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the values in memory."""
        return 8 * len(self)

    def __getitem__(self, rows: slice) -> Int64:
        """Return entries of the joined pointer.

        Raises
        ------
        InputError
            When a part that is read does not begin at 0, end at its total, or stay between.
        """
        start, stop, _ = rows.indices(len(self))
        values = np.empty(max(stop - start, 0), np.int64)
        at = start
        while at < stop:
            # Entry 0 of a later part repeats the last one of the part before.
            part = bisect_right(self._start, max(at - 1, 0), hi=len(self._parts)) - 1
            first = self._start[part]
            end = min(stop, first + len(self._parts[part]))
            values[at - start : end - start] = self._read(part, at - first, end - first) + self._base[part]
            at = end
        return values

    def _read(self, number: int, start: int, stop: int) -> Int64:
        """Return entries of one part; entry 0 is checked with entry 1."""
        part, total = self._parts[number], self._totals[number]
        begin = 0 if start == 1 else start
        found: Int64 = part[begin:stop]
        if begin == 0 and found[0] != 0:
            raise InputError(f"{part.file.path}:/{part.name}[0]", str(found[0]), "0")
        if stop == len(part) and found[-1] != total:
            expected = f"{total}, the number of rows that it covers"
            raise InputError(f"{part.file.path}:/{part.name}[{stop - 1}]", str(found[-1]), expected)
        wrong = (found < 0) | (found > total)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(f"{part.file.path}:/{part.name}[{begin + at}]", str(found[at]), f"0 to {total}")
        return found[start - begin :]


Stored: TypeAlias = StoredArray | JoinedArray | JoinedPointer
