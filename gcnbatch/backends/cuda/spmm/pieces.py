"""The rows of a large matrix cut into pieces of equal work: which matrices are cut, and where. No launches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.launch import next_power_of_two
from gcnbatch.backends.cuda.runtime.memory import Move
from gcnbatch.backends.cuda.runtime.sources import declared

LARGE_ENTRIES = 1 << 20  # from which a matrix may be multiplied in pieces
SKEW = 8  # times the mean that the longest row of a skewed matrix has at least
DENSE_ROWS = 32  # mean entries of a row from which it is, even if no row is longer than a piece
PIECE, SMALLEST_PIECE = 512, 32  # entries of a piece, about: at most, at least
MEANS = 4  # rows of average length that a piece holds, if that is more than the least
STEP: int = declared("spmm/large.cu").constant("STEP")  # entries that one load of indices brings


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
        Entries of the longest piece, on the host.
    """

    first: Any
    target: Any
    split_row: Any
    split_first: Any
    longest: int

    def map(self, move: Move) -> Pieces:
        """Return the same pieces with every array moved."""
        first, target, split_row, split_first = map(move, self[:4])
        return Pieces(first, target, split_row, split_first, self.longest)


class Scales(NamedTuple):
    """A matrix whose stored values are all 1, between two scalings: float32, (n_rows,) and (n_cols,)."""

    rows: Any
    columns: Any

    def map(self, move: Move) -> Scales:
        """Return the same scales with every array moved."""
        return Scales(*map(move, self))


class Large(NamedTuple):
    """What a large matrix has besides its entries: its pieces and, if all its values are 1, its scales."""

    pieces: Pieces
    scales: Scales | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, on the host."""
        arrays = [*self.pieces[:4], *(self.scales or ())]
        return sum(array.nbytes for array in arrays)

    def map(self, move: Move) -> Large:
        """Return the same with every array moved."""
        return Large(self.pieces.map(move), self.scales and self.scales.map(move))


def piece_of(n_entries: int, n_rows: int, longest: int) -> int:
    """Return the entries of a piece.

    Rows that a warp sums in a few steps stay whole: adding up pieces is a launch of its own. Where some must be cut,
    none of the pieces shall keep its threads busy long after the others.

    >>> piece_of(13_264, 2_708, 169), piece_of(2_315_598, 169_343, 13_161), piece_of(112_694_115, 232_965, 59_664)
    (512, 64, 512)
    """
    mean = n_entries // max(n_rows, 1)
    return PIECE if longest <= PIECE else min(max(next_power_of_two(MEANS * mean), SMALLEST_PIECE), PIECE)


def cut_rows(indptr: NDArray[Any], piece: int | None = None) -> Pieces:
    """Cut every row into equal pieces of about `piece` entries at most, by default those of `piece_of`.

    Inner cuts fall on multiples of `STEP`.

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
    """Return whether a matrix with rows of these lengths is large, and skewed or of long rows."""
    return n_entries >= LARGE_ENTRIES and bool(n_entries >= DENSE_ROWS * len(lengths) or np.max(lengths) > PIECE)


def is_skewed(n_entries: int, lengths: NDArray[Any]) -> bool:
    """Return whether a group of threads would sum the longest row long after the others are done."""
    return bool(np.max(lengths, initial=0) >= max(2 * SMALLEST_PIECE, SKEW * n_entries // max(len(lengths), 1)))


def cut(indptr: NDArray[Any], scales: Scales | None = None, alone: bool = False) -> Large | None:
    """Return the pieces of a large matrix or, if it is `alone` in its batch, of a skewed one; of another None.

    A matrix that is not large keeps its values: scaling before the product would be one launch more.
    """
    n_entries, lengths = int(indptr[-1]), np.diff(indptr)
    if is_large(n_entries, lengths):
        return Large(cut_rows(indptr), scales)
    return Large(cut_rows(indptr)) if alone and is_skewed(n_entries, lengths) else None


def _int32(array: NDArray[Any]) -> NDArray[np.int32]:
    return array.astype(np.int32)
