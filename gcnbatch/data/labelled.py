"""The rows with labels of one graph, for the last product with the adjacency: the loss reads no others.

Each row of a product depends on its own row of the adjacency alone. So where few nodes have labels, training computes
these rows, and passes their gradient back through the transpose of the same rows. Predictions compute all rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.graph_part import GraphPart, Halo, HaloAdjacency, LabelledPart
from gcnbatch.data.graphs import Int64
from gcnbatch.data.label_ranges import known_labels
from gcnbatch.data.sparse import Adjacency, Array, Csr, row_pointer
from gcnbatch.ranks.communicator import Communicator

FEW = 0.5  # of all rows, at most: their matrix lies in memory beside the whole


def labelled_rows(targets: NDArray[Any]) -> Int64 | None:
    """Return the rows of the targets (N, K) that have a label, ascending; None if they are not few, or none.

    >>> labelled_rows(np.array([[-1], [2], [-1], [0]], np.int32)), labelled_rows(np.array([[1.0], [np.nan]]))
    (array([1, 3]), array([0]))
    >>> labelled_rows(np.array([[1.0], [0.0], [np.nan]])) is None
    True
    """
    rows = np.flatnonzero(known_labels(targets).any(axis=1))
    return rows if 0 < len(rows) <= FEW * len(targets) else None


def rows_of(forward: Csr, n_channels: int, rows: Int64) -> Adjacency:
    """Return these rows of `forward` of the adjacency of one graph, (R, N*C), and their transpose, (N*C, R)."""
    part = _rows(forward, rows)
    return Adjacency(_csr(part), _csr(part.T.tocsr()), n_channels)


def _rows(matrix: Csr, rows: Int64) -> sp.csr_array:
    shape = (len(matrix.indptr) - 1, matrix.n_cols)
    return sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=shape)[rows]


def _csr(matrix: sp.csr_array) -> Csr:
    return Csr(_int32(matrix.indptr), _int32(matrix.indices), matrix.data, matrix.shape[1])


def labelled_part(part: GraphPart, targets: NDArray[Any], ranks: Communicator) -> LabelledPart | None:
    """Return this rank's rows with labels; None if they are not few. All ranks call it together.

    Parameters
    ----------
    part : GraphPart
    targets : (N, K)
        Of the whole graph.
    ranks : Communicator
        Of host arrays.
    """
    everywhere = labelled_rows(targets)
    if everywhere is None:
        return None
    first, stop = (int(bound) for bound in part.bounds[ranks.rank : ranks.rank + 2])
    rows = everywhere[(everywhere >= first) & (everywhere < stop)] - first
    has_label = np.zeros(len(targets), bool)
    has_label[everywhere] = True
    whole = part.adjacency
    forward, of_forward = _rows_of_forward(whole, rows, stop - first, ranks)
    transpose, of_transpose = _columns_of_transpose(whole, has_label[first:stop], has_label, ranks)
    found = HaloAdjacency(forward, transpose, whole.n_channels, of_forward, of_transpose)
    return LabelledPart(rows, found, len(everywhere))


def _rows_of_forward(adjacency: HaloAdjacency, rows: Int64, n: int, ranks: Communicator) -> tuple[Csr, Halo]:
    """Return these of a rank's `n` rows, with the nodes of the halo that they read."""
    halo, channels = adjacency.of_forward, adjacency.n_channels
    part = _csr(_rows(adjacency.forward, rows))
    node, channel = part.indices // channels, part.indices % channels
    is_read = np.zeros(n + len(halo.nodes), bool)
    is_read[:n] = True
    is_read[node] = True
    wanted = np.split(is_read[n:].astype(np.uint8), np.cumsum(halo.received)[:-1])
    asked = ranks.exchange(wanted, [len(sent) for sent in halo.sent])
    number = np.cumsum(is_read) - 1
    found = Csr(part.indptr, _int32(number[node] * channels + channel), part.data, int(is_read.sum()) * channels)
    return found, Halo(
        halo.nodes[is_read[n:]],
        [sent[some.astype(bool)] for sent, some in zip(halo.sent, asked, strict=True)],
        [int(some.sum()) for some in wanted],
        _entries_of_all(found, ranks),
        halo.scales and (halo.scales[0][rows], halo.scales[1][is_read]),
    )


def _columns_of_transpose(
    adjacency: HaloAdjacency, own: NDArray[np.bool_], has_label: NDArray[np.bool_], ranks: Communicator
) -> tuple[Csr, Halo]:
    """Return the columns of labelled nodes; `own` says which of this rank's nodes are labelled."""
    whole, halo = adjacency.transpose, adjacency.of_transpose
    of_halo = has_label[halo.nodes]
    is_kept = np.concatenate([own, of_halo])
    number, kept = np.cumsum(is_kept) - 1, is_kept[whole.indices]
    indptr = row_pointer(kept)[whole.indptr]
    found = Csr(_int32(indptr), _int32(number[whole.indices[kept]]), whole.data[kept], int(is_kept.sum()))
    return found, Halo(
        halo.nodes[of_halo],
        [number[sent[own[sent]]] for sent in halo.sent],
        [int(some.sum()) for some in np.split(of_halo, np.cumsum(halo.received)[:-1])],
        _entries_of_all(found, ranks),
        halo.scales and (halo.scales[0], halo.scales[1][is_kept]),
    )


def _entries_of_all(matrix: Csr, ranks: Communicator) -> list[int]:
    found: list[int] = ranks.all_gather(np.array([len(matrix.indices)]))[:, 0].tolist()
    return found


def _int32(array: Array) -> NDArray[np.int32]:
    found: NDArray[np.int32] = array.astype(np.int32, copy=False)
    return found
