"""Pieces of equal work of the rows of a large matrix: which matrices are cut, and where. No launches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.launch import next_power_of_two
from gcnbatch.backends.cuda.runtime.memory import Move
from gcnbatch.backends.cuda.runtime.sources import declared

LARGE_ENTRIES = 1 << 20  # a large matrix has at least this many entries
DENSE_ROWS = 32  # and at least this many per row on average, or a row longer than a piece
SKEW = 8  # a skewed matrix has a row of at least this many times the mean length
PIECE, SMALLEST_PIECE = 512, 32  # largest and smallest number of entries per piece, about
MEANS = 4  # a piece holds this many times the mean row length, within those limits
LONG_ENTRIES = 1 << 27  # of so many, a largest piece is a small part of what a warp sums
STEP: int = declared("spmm/large.cu").constant("STEP")  # entries per load of indices


class Pieces(NamedTuple):
    """The rows of a matrix cut into pieces; see spmm/large.cu.

    Parameters
    ----------
    first : int32, (pieces + 1,)
        First entry of each piece.
    target : int32, (pieces,)
        The piece's row, or -1 - slot where its row has several pieces.
    split_row : int32, (rows of several pieces,)
    split_first : int32, (rows of several pieces + 1,)
        First slot of each.
    longest : int
        Number of entries of the longest piece, on the host.
    """

    first: Any
    target: Any
    split_row: Any
    split_first: Any
    longest: int

    def map(self, move: Move) -> Pieces:
        """Return these pieces with every array moved."""
        first, target, split_row, split_first = map(move, self[:4])
        return Pieces(first, target, split_row, split_first, self.longest)


class Scales(NamedTuple):
    """Row and column scales of a matrix whose stored values are all 1: float32, (n_rows,) and (n_cols,).

    `columns` is None if the rows of the dense operand are scaled already.
    """

    rows: Any
    columns: Any

    def map(self, move: Move) -> Scales:
        """Return these scales with every array moved."""
        return Scales(move(self.rows), None if self.columns is None else move(self.columns))


class Large(NamedTuple):
    """The pieces of a large matrix and, if all its stored values are 1, its scales.

    `marked`: the highest bit of some indices on the device is set, see `gcnbatch.backends.cuda.spmm.large.mark`.
    """

    pieces: Pieces
    scales: Scales | None = None
    marked: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, which must be on the host."""
        arrays = [*self.pieces[:4], *(self.scales or ())]
        return sum(array.nbytes for array in arrays)

    def map(self, move: Move) -> Large:
        """Return these pieces and scales with every array moved."""
        return Large(self.pieces.map(move), self.scales and self.scales.map(move), self.marked)


def piece_of(n_entries: int, n_rows: int, longest: int) -> int:
    """Return the largest number of entries of a piece.

    Rows that a warp sums in a few steps are not cut, because partial sums need a second launch. If some rows must be
    cut, the pieces are short enough that none runs long after the others.

    >>> piece_of(13_264, 2_708, 169), piece_of(2_315_598, 169_343, 13_161), piece_of(112_694_115, 232_965, 59_664)
    (512, 64, 512)
    >>> piece_of(836_000_000, 27_764_989, 196_000)
    512
    """
    mean = n_entries // max(n_rows, 1)
    if longest <= PIECE or n_entries >= LONG_ENTRIES:
        return PIECE
    return min(max(next_power_of_two(MEANS * mean), SMALLEST_PIECE), PIECE)


def cut_rows(indptr: NDArray[Any], piece: int | None = None) -> Pieces:
    """Cut every row into equal pieces of at most about `piece` entries (default: `piece_of`).

    Cuts inside a row fall on multiples of `STEP`.

    >>> [array.tolist() for array in cut_rows(np.array([0, 0, 3, 15]), piece=6)[:4]]
    [[0, 0, 3, 8, 15], [0, 1, -1, -2], [2], [0, 2]]
    """
    indptr = np.asarray(indptr, dtype=np.int64)
    lengths = np.diff(indptr)
    piece = piece or piece_of(int(indptr[-1]), len(lengths), int(np.max(lengths, initial=0)))
    counts = np.maximum(-(-lengths // piece), 1)
    row = np.repeat(np.arange(len(lengths)), counts)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = indptr[row] + lengths[row] * rank // counts[row]
    first = np.where(rank > 0, first // STEP * STEP, first)
    target, split = row.copy(), counts > 1
    in_several = split[row]
    target[in_several] = -1 - np.arange(np.count_nonzero(in_several))
    slots = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[split])])
    ends = np.append(first, indptr[-1])
    longest = int(np.max(np.diff(ends), initial=0))
    return Pieces(_int32(ends), _int32(target), _int32(np.flatnonzero(split)), _int32(slots), longest)


def is_large(n_entries: int, lengths: NDArray[Any]) -> bool:
    """Return whether a matrix with rows of these lengths has many entries, and long rows or at least one."""
    return n_entries >= LARGE_ENTRIES and bool(n_entries >= DENSE_ROWS * len(lengths) or np.max(lengths) > PIECE)


def is_skewed(n_entries: int, lengths: NDArray[Any]) -> bool:
    """Return whether the longest row would keep its threads busy long after all others are done."""
    return bool(np.max(lengths, initial=0) >= max(2 * SMALLEST_PIECE, SKEW * n_entries // max(len(lengths), 1)))


def cut(indptr: NDArray[Any], scales: Scales | None = None, alone: bool = False) -> Large | None:
    """Return the pieces of a matrix that is large, or `alone` in its batch and skewed; else None.

    A matrix that is not large keeps its values, because scaling the dense operand needs another launch.
    """
    n_entries, lengths = int(indptr[-1]), np.diff(indptr)
    if is_large(n_entries, lengths):
        return Large(cut_rows(indptr), scales)
    return Large(cut_rows(indptr)) if alone and is_skewed(n_entries, lengths) else None


def _int32(array: NDArray[Any]) -> NDArray[np.int32]:
    return array.astype(np.int32)
