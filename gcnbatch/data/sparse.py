"""The sparse matrices that operations multiply with: plain arrays, whoever holds them (host or device).

Nothing changes a matrix once it is made. The classes are not frozen, because every step makes some, and a frozen one
takes three times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gcnbatch.errors import InputError

Array = Any
ScipyCsr = Any  # scipy.sparse.csr_array of float32
MAX_ENTRIES = 2**31 - 4096  # indices are int32, and loops may step this far beyond the end


def check_reach(count: int, what: str) -> None:
    """Refuse a batch that has more of something than 32-bit indices reach.

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


@dataclass(slots=True, eq=False)
class Csr:
    """A sparse matrix in compressed sparse rows.

    Parameters
    ----------
    indptr : int32 or int64, (n_rows + 1,)
    indices : int32, (nnz,)
        Columns; repeated entries of a row add up.
    data : float32, (nnz,)
    n_cols : int
    """

    indptr: Array
    indices: Array
    data: Array
    n_cols: int


@dataclass(slots=True, eq=False)
class Adjacency:
    """The adjacency of a batch, its channels side by side, and the transpose that the backward pass multiplies with.

    `forward` has N rows and N*C columns: the entry of channel c from node j to node i stands in row i, column j*C + c.
    With H of shape (N, C*P) seen as (N*C, P), which costs nothing in row-major order, sum_c A_c H_c is one product
    ``forward @ H``. `transpose` has N*C rows and N columns.

    Worked example, two nodes, two channels, channel 0 an edge 0→1, channel 1 the self-loops::

        forward = [[0, 1, 0, 0],        columns: (node 0, ch 0) (node 0, ch 1) (node 1, ch 0) (node 1, ch 1)
                   [1, 0, 0, 1]]
    """

    forward: Csr
    transpose: Csr
    n_channels: int
