"""Sparse matrices as plain arrays, on the host or on a device.

No function changes a matrix. The classes are not frozen: every step creates some, and a frozen instance takes three
times as long to create.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.errors import InputError

if TYPE_CHECKING:
    import scipy.sparse as sp
    from typing_extensions import TypeIs

Array = Any
ScipyCsr = Any  # scipy.sparse.csr_array of float32
MAX_ENTRIES = 2**31 - 4096  # indices are int32, and a loop may step up to 4096 beyond the end


def row_pointer(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return the first entry of each row, and the end of the last, from the lengths (n,) of rows: (n + 1,).

    >>> row_pointer(np.array([3, 0, 1]))
    array([0, 3, 3, 4])
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def ragged_rows(ptr: NDArray[np.int64], picked: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row numbers that the segments `picked` of `ptr` own, and the segments' new pointer.

    ``ragged_rows([0, 3, 4], [1, 0])`` is ``([3, 0, 1, 2], [0, 1, 4])``. No Python loop: one `repeat` and one `arange`.
    """
    starts = ptr[picked]
    lengths = ptr[picked + 1] - starts
    new_ptr = np.zeros(len(picked) + 1, dtype=np.int64)
    np.cumsum(lengths, out=new_ptr[1:])
    rows = np.repeat(starts - new_ptr[:-1], lengths)
    rows += np.arange(new_ptr[-1], dtype=np.int64)
    return rows, new_ptr


def joined_pointer(pointers: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the pointer of all segments, those of one pointer after those of the other.

    ``joined_pointer([[0, 3], [0, 1, 5]])`` is ``[0, 3, 4, 8]``.
    """
    starts = np.cumsum([0, *(int(pointer[-1]) for pointer in pointers)])
    shifted = [pointer[1:] + start for pointer, start in zip(pointers, starts.tolist(), strict=False)]
    return np.concatenate([np.zeros(1, np.int64), *shifted])


def is_sparse(x: Any) -> TypeIs[sp.csr_array]:
    """Return whether `x` is a sparse matrix of SciPy, without the import of SciPy where no other module needs it."""
    scipy_sparse = sys.modules.get("scipy.sparse")
    return scipy_sparse is not None and bool(scipy_sparse.issparse(x))


def check_reach(count: int, what: str) -> None:
    """Refuse a batch with a count that 32-bit indices cannot address.

    Raises
    ------
    InputError
        When `count` is above `MAX_ENTRIES`.
    """
    if count > MAX_ENTRIES:
        raise InputError(
            "batch size",
            f"a batch of {count} {what}",
            f"at most {MAX_ENTRIES}",
            "Lower train.batch_size or train.eval_batch_size.",
        )


def equal_rows(a: Any, b: Any) -> bool:
    """Return whether two matrices with sorted rows and no repeated entry are equal."""
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("indptr", "indices", "data"))


@dataclass(slots=True, eq=False)
class Csr:
    """A sparse matrix in compressed sparse rows.

    Parameters
    ----------
    indptr : int32 or int64, (n_rows + 1,)
    indices : int32, (nnz,)
        Columns; repeated entries of a row add up.
    data : float32 or, of counts, uint32, (nnz,)
    n_cols : int
    """

    indptr: Array
    indices: Array
    data: Array
    n_cols: int

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.indptr) - 1

    @classmethod
    def of(cls, dense: NDArray[Any]) -> Csr:
        """Return the entries of a matrix (n, F) that are not 0; SciPy's conversion takes five times as long."""
        rows, columns = dense.shape
        flat = dense.ravel()
        places = np.flatnonzero(flat != 0)
        ends = np.searchsorted(places, np.arange(rows + 1) * columns)
        return cls(ends, (places % max(columns, 1)).astype(np.int32), flat[places], columns)

    @classmethod
    def joined(cls, parts: Sequence[Csr]) -> Csr:
        """Return the rows of all matrices in host memory, one matrix after the other."""
        indices, data = (np.concatenate([getattr(part, name) for part in parts]) for name in ("indices", "data"))
        return cls(joined_pointer([part.indptr for part in parts]), indices, data, parts[0].n_cols)

    def take(self, rows: NDArray[np.int64]) -> Csr:
        """Return these rows of a matrix in host memory."""
        entries, indptr = ragged_rows(self.indptr, rows)
        return Csr(indptr, self.indices.take(entries), self.data.take(entries), self.n_cols)

    def columns(self, start: int, stop: int) -> Csr:
        """Return the columns start … stop-1 of a matrix in host memory."""
        if (start, stop) == (0, self.n_cols):
            return self
        kept = (self.indices >= start) & (self.indices < stop)
        return Csr(row_pointer(kept)[self.indptr], self.indices[kept] - start, self.data[kept], stop - start)

    def write_to(self, dense: NDArray[Any]) -> None:
        """Write the entries, at most one for each place, to zeros (n_rows, n_cols)."""
        dense[np.repeat(np.arange(self.n_rows), np.diff(self.indptr)), self.indices] = self.data


@dataclass(slots=True, eq=False)
class Adjacency:
    """The adjacency of a batch, with its channels interleaved, and its transpose for the backward pass.

    `forward` has N rows and N*C columns: the entry of channel c from node j to node i is in row i, column j*C + c.
    With H of shape (N, C*P) viewed as (N*C, P), a free reshape in row-major order, sum_c A_c H_c is one product
    ``forward @ H``. `transpose` has N*C rows and N columns.

    Worked example with two nodes and two channels; channel 0 has the edge 0→1, channel 1 the self-loops::

        forward = [[0, 1, 0, 0],        columns: (node 0, ch 0) (node 0, ch 1) (node 1, ch 0) (node 1, ch 1)
                   [1, 0, 0, 1]]
    """

    forward: Csr
    transpose: Csr
    n_channels: int
