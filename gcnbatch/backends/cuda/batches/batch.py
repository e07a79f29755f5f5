"""A batch on the device: features, adjacency and targets, with their layout on the host.

The same types hold NumPy arrays while the host assembles a batch; `map` moves the arrays. The adjacency has two forms:

- `DeviceAdjacency`, block-diagonal over the batch: one launch multiplies all graphs and channels (backend ``batched``);
- `ChannelAdjacency`, one matrix per graph and channel: the papers' loop (backend ``nonbatched``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.memory import Move
from gcnbatch.backends.cuda.spmm import pieces as spmm_pieces
from gcnbatch.backends.cuda.spmm.pieces import Large
from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.sparse import Adjacency, Csr

Array = Any
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(eq=False)
class GraphLayout:
    """Node counts of a batch's graphs, on the host.

    Parameters
    ----------
    node_ptr : (B+1,) integers
        First node of each graph, on the host.
    n_channels : int
        C.
    """

    node_ptr: NDArray[Any]
    n_channels: int = 1

    @property
    def n_graphs(self) -> int:
        """B."""
        return len(self.node_ptr) - 1

    @property
    def n_nodes(self) -> int:
        """N."""
        return int(self.node_ptr[-1])

    @cached_property
    def max_nodes(self) -> int:
        """Number of nodes of the largest graph; 0 without graphs."""
        return int(np.max(np.diff(self.node_ptr), initial=0))

    @cached_property
    def graphs(self) -> list[tuple[int, int]]:
        """(first node, number of nodes) of every graph, as plain numbers."""
        return list(zip(self.node_ptr[:-1].tolist(), np.diff(self.node_ptr).tolist(), strict=True))


@dataclass(slots=True, eq=False)
class DeviceCsr(Csr):
    """A `Csr` with the extra arrays of some kernels.

    Parameters
    ----------
    rows : int32, (nnz,), or None
        Row of every entry, for COO kernels.
    large : Large or None
        The rows of a large matrix in pieces. If it has scales, `data` is empty.
    """

    rows: Array | None = None
    large: Large | None = None

    def map(self, move: Move) -> DeviceCsr:
        """Return this matrix with every array moved."""
        rows = None if self.rows is None else move(self.rows)
        large = self.large and self.large.map(move)
        return DeviceCsr(move(self.indptr), move(self.indices), move(self.data), self.n_cols, rows, large)


@dataclass(slots=True, eq=False)
class DeviceAdjacency(Adjacency):
    """An `Adjacency` with the bounds of its graphs: `node_ptr` int32 (B+1,) and, on the host, `layout`.

    If `forward` has few rows of the graph, the bounds are those of the rows of `transpose`; kernels that read bounds do
    not multiply it.
    """

    node_ptr: Array
    layout: GraphLayout

    def map(self, move: Move) -> DeviceAdjacency:
        """Return this adjacency with every array moved, a shared one once."""
        assert isinstance(self.forward, DeviceCsr)
        assert isinstance(self.transpose, DeviceCsr)
        forward = self.forward.map(move)
        transpose = forward if self.transpose is self.forward else self.transpose.map(move)
        return DeviceAdjacency(forward, transpose, self.n_channels, move(self.node_ptr), self.layout)


class MatrixPlace(NamedTuple):
    """Position of the matrix of one graph and channel in `ChannelMatrices`."""

    first_row: int
    first_entry: int
    n_entries: int


@dataclass(frozen=True)
class ChannelMatrices:
    """One (n_b, n_b) matrix per graph and channel, as CSR and as COO, with rows and columns local to the graph.

    Parameters
    ----------
    indptr : int32, (N*C + 1,)
        Rows of graph 0 channel 0, then of graph 0 channel 1, …; the matrices of a graph are contiguous.
    indices, rows : int32, (nnz,)
        `rows` is None unless a COO kernel needs it.
    data : float32, (nnz,)
    places : int64, (3, B*C), on the host
        First row in `indptr`, first entry and number of entries; column b*C + c is the matrix of graph b, channel c.
    """

    indptr: Array
    indices: Array
    data: Array
    rows: Array | None
    places: Int64

    def map(self, move: Move) -> ChannelMatrices:
        """Return these matrices with every array but `places` moved."""
        rows = None if self.rows is None else move(self.rows)
        return ChannelMatrices(move(self.indptr), move(self.indices), move(self.data), rows, self.places)

    def take(self, graphs: Int64, n_channels: int) -> ChannelMatrices:
        """Return the matrices of these graphs, in this order; they share the arrays."""
        picked = (graphs[:, None] * n_channels + np.arange(n_channels)).ravel()
        return replace(self, places=self.places[:, picked])

    @cached_property
    def place_list(self) -> list[MatrixPlace]:
        """`places` as plain numbers."""
        return [MatrixPlace(*place) for place in self.places.T.tolist()]


@dataclass(frozen=True)
class ChannelAdjacency:
    """The adjacency of a batch as one matrix per graph and channel, with their transposes."""

    forward: ChannelMatrices
    transpose: ChannelMatrices
    layout: GraphLayout

    @property
    def n_channels(self) -> int:
        """C."""
        return self.layout.n_channels

    def map(self, move: Move) -> ChannelAdjacency:
        """Return this adjacency with every array moved, a shared one once."""
        forward = self.forward.map(move)
        transpose = forward if self.transpose is self.forward else self.transpose.map(move)
        return ChannelAdjacency(forward, transpose, self.layout)


@dataclass(slots=True, eq=False)
class DeviceFeatures(Csr):
    """Sparse features X (N, F) with the structure of their transpose, for the gradient by the weights.

    Parameters
    ----------
    column_ptr : int32, (F+1,)
    column_rows : int32, (nnz,)
        Row of each entry, column by column, rows in order.
    column_order : int32, (nnz,)
        Index of its value in `data`. So ``replace(x, data=dropped)`` is enough to replace the values.
    layout : GraphLayout
    """

    column_ptr: Array
    column_rows: Array
    column_order: Array
    layout: GraphLayout

    def map(self, move: Move) -> DeviceFeatures:
        """Return these features with every array moved."""
        return replace(
            self,
            indptr=move(self.indptr),
            indices=move(self.indices),
            data=move(self.data),
            column_ptr=move(self.column_ptr),
            column_rows=move(self.column_rows),
            column_order=move(self.column_order),
        )


@dataclass(slots=True, eq=False)
class DeviceBatch:
    """B graphs with N nodes, ready for the operations.

    Parameters
    ----------
    node_ptr : int32, (B+1,)
    x : float32 (N, F) or DeviceFeatures
    adjacency : DeviceAdjacency or ChannelAdjacency
    targets : (R, K)
        float32, or int32 classes: a row per graph, or per node in a node-level set.
    layout : GraphLayout
        Node counts of the graphs, on the host.
    graph_features : GraphFeatures or None
        Those of the resident set, with int32 rows, or of a streamed batch.
    labelled : DeviceBatch or None
        This batch with the rows that have labels alone; see `gcnbatch.backends.base.Batch`.
    """

    node_ptr: Array
    x: Any
    adjacency: DeviceAdjacency | ChannelAdjacency
    targets: Array
    layout: GraphLayout
    graph_features: GraphFeatures | None = None
    labelled: DeviceBatch | None = None

    def map(self, move: Move) -> DeviceBatch:
        """Return this batch with every array moved."""
        x = self.x.map(move) if isinstance(self.x, DeviceFeatures) else move(self.x)
        joined = self.graph_features and self.graph_features.map(move)
        return DeviceBatch(move(self.node_ptr), x, self.adjacency.map(move), move(self.targets), self.layout, joined)


# ----------------------------------------------------------------------------------------------- host side


def features(x: Csr, layout: GraphLayout) -> DeviceFeatures:
    """Return host features (Csr, NumPy arrays) with the structure of their transpose."""
    columns = transposed(x.indptr, x.indices, x.n_cols)
    return DeviceFeatures(x.indptr.astype(np.int32, copy=False), x.indices, x.data, x.n_cols, *columns, layout)


def transposed(indptr: NDArray[Any], indices: Int32, n_cols: int) -> tuple[Int32, Int32, Int32]:
    """Return (column_ptr, column_rows, column_order) of a CSR structure, with rows in order. Linear time."""
    numbered = sp.csr_array((len(indptr) - 1, n_cols), dtype=np.int32)
    numbered.indptr, numbered.indices = indptr, indices
    numbered.data = np.arange(len(indices), dtype=np.int32)
    columns = numbered.tocsc()
    return columns.indptr.astype(np.int32), columns.indices.astype(np.int32), columns.data


def csr(
    matrix: Csr, coo: bool, pieces: bool, alone: bool = False, scales: tuple[Array, Array] | None = None
) -> DeviceCsr:
    """Return a host matrix with int32 pointers; `coo` adds the row of every entry, `pieces` the pieces if large.

    `alone`: it is the only one of its set, perhaps with `scales` whose products are its values.
    """
    indptr = matrix.indptr.astype(np.int32, copy=False)
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr)) if coo else None
    large = spmm_pieces.cut(indptr, scales and spmm_pieces.Scales(*scales), alone) if pieces else None
    data = matrix.data[:0] if large and large.scales else matrix.data
    return DeviceCsr(indptr, matrix.indices, data, matrix.n_cols, rows, large)


def adjacency(found: Adjacency, layout: GraphLayout, coo: bool, pieces: bool = False) -> DeviceAdjacency:
    """Return a host adjacency with the bounds of its graphs."""
    forward = csr(found.forward, coo, pieces)
    transpose = forward if found.transpose is found.forward else csr(found.transpose, coo, pieces)
    return DeviceAdjacency(forward, transpose, found.n_channels, layout.node_ptr.astype(np.int32), layout)


def channel_adjacency(found: Adjacency, layout: GraphLayout, coo: bool) -> ChannelAdjacency:
    """Split a host adjacency, whose columns count over the batch, by graph and channel."""
    channels = found.n_channels
    row, column = _coordinates(found.forward)
    forward = channel_matrices(row, column // channels, column % channels, found.forward.data, layout, coo)
    if found.transpose is found.forward:
        return ChannelAdjacency(forward, forward, layout)
    row, column = _coordinates(found.transpose)
    transpose = channel_matrices(row // channels, column, row % channels, found.transpose.data, layout, coo)
    return ChannelAdjacency(forward, transpose, layout)


def _coordinates(matrix: Csr) -> tuple[Int64, Int32]:
    return np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr)), matrix.indices


def channel_matrices(
    row: Int64, column: Int32, channel: NDArray[Any], data: NDArray[np.float32], layout: GraphLayout, coo: bool
) -> ChannelMatrices:
    """Split entries, sorted by row, into one matrix per graph and channel; `row` and `column` count over the batch."""
    channels, node_ptr = layout.n_channels, layout.node_ptr.astype(np.int64)
    sizes = np.diff(node_ptr)
    graph = np.repeat(np.arange(layout.n_graphs), sizes)[row]
    first = node_ptr[graph]
    place = first * channels + channel * sizes[graph] + (row - first)  # the row's number in `indptr`
    row, column = row - first, column - first
    if channels > 1:
        order = np.argsort(place, kind="stable")
        place, row, column, data = place[order], row[order], column[order], data[order]
    counts = np.bincount(place, minlength=layout.n_nodes * channels)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    first_row = (node_ptr[:-1, None] * channels + np.arange(channels) * sizes[:, None]).ravel()
    first_entry = indptr[first_row]
    n_entries = indptr[first_row + np.repeat(sizes, channels)] - first_entry
    return ChannelMatrices(
        indptr.astype(np.int32),
        column.astype(np.int32),
        data,
        row.astype(np.int32) if coo else None,
        np.stack([first_row, first_entry, n_entries]),
    )
