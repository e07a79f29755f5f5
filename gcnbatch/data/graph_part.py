"""A rank's part of one large graph: its rows of the adjacency and of the features, and whose rows it needs besides.

The nodes are distributed in contiguous ranges, by stored entries. No rank reads or holds the whole graph: each reads a
share of the edges, in blocks, and sends every edge to the rank that holds its row, of the adjacency and of its
transpose. An edge to a column of another rank makes that node one of the halo, whose values its owner sends before a
product. Which rows go where is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.batches import node_features
from gcnbatch.data.graphs import Edges, Int64
from gcnbatch.data.normalize import scaled_weights, scales_of
from gcnbatch.data.partition import partition
from gcnbatch.data.sparse import Adjacency, Array, Csr, check_reach, equal_rows
from gcnbatch.data.store import Dataset
from gcnbatch.ranks.communicator import Communicator

BLOCK_EDGES = 1 << 22  # that a rank reads at a time


class Halo(NamedTuple):
    """The columns of a rank's rows of a matrix: those of its own nodes, then of its halo, in order of the nodes.

    Parameters
    ----------
    nodes : int64, (m,)
        The halo.
    sent : sequence of int64 arrays
        By rank, the own rows of the dense operand that that rank needs.
    received : sequence of int
        By rank, how many nodes of the halo it holds.
    entries : sequence of int
        By rank, the stored entries of its rows.
    scales : (float32 (n,), float32 (n + m,)) or None
        As `gcnbatch.data.batches.PreparedSet.scales`, of this rank's rows and columns; None on all ranks or on none.
    """

    nodes: Int64
    sent: Sequence[Int64]
    received: Sequence[int]
    entries: Sequence[int]
    scales: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None


@dataclass(slots=True, eq=False)
class HaloAdjacency(Adjacency):
    """The rows of an adjacency and of its transpose that a rank holds.

    `forward` has n rows, one per own node, and (n + m)*C columns; `transpose` has n*C rows and n + m' columns. They are
    one matrix if they are equal on all ranks.

    Parameters
    ----------
    of_forward, of_transpose : Halo
    """

    of_forward: Halo
    of_transpose: Halo


class LabelledPart(NamedTuple):
    """A rank's rows with labels.

    Parameters
    ----------
    rows : int64, (R,)
        Numbers of its own nodes with labels, ascending.
    adjacency : HaloAdjacency
        `forward` has these rows; columns of `transpose` are labelled nodes, own ones by their place in `rows`.
    total : int
        Labelled nodes of all ranks.
    """

    rows: Int64
    adjacency: HaloAdjacency
    total: int


@dataclass(frozen=True)
class GraphPart:
    """A rank's part of a graph.

    Parameters
    ----------
    bounds : int64, (ranks+1,)
        Rank r holds the nodes bounds[r] … bounds[r+1] - 1.
    adjacency : HaloAdjacency
    x : float32 (n, F) or Csr
        Features of its own nodes.
    labelled : LabelledPart or None
        Its rows with labels, where few nodes of the graph have some.
    """

    bounds: Int64
    adjacency: HaloAdjacency
    x: Array
    labelled: LabelledPart | None = None


def read_part(dataset: Dataset, normalize: bool, ranks: Communicator, block: int = BLOCK_EDGES) -> GraphPart:
    """Read this rank's part of a set of one graph; all ranks call it together.

    Parameters
    ----------
    dataset : Dataset
    normalize : bool
        Whether channels are normalised to D^-1/2 A D^-1/2.
    ranks : Communicator
        Of host arrays.
    block : int
        Edges that a rank reads at a time.
    """
    reader = _EdgeReader(dataset, ranks, block)
    nodes, channels = int(dataset.node_ptr[-1]), dataset.header.n_channels
    entries, sums = reader.count(nodes, channels, normalize)
    bounds = partition(entries + 1, ranks.size)
    unweighted = channels == 1 and not dataset.weighted
    forward, of_forward = _halo_rows(reader.distribute(bounds, sums), bounds, (1, channels), ranks, unweighted, sums)
    turned = None if sums is None else sums[::-1]
    transpose, of_transpose = _halo_rows(
        reader.distribute(bounds, sums, turned=True), bounds, (channels, 1), ranks, unweighted, turned
    )
    same = channels == 1 and np.array_equal(of_forward.nodes, of_transpose.nodes) and equal_rows(forward, transpose)
    if _on_all(ranks, same):
        transpose, of_transpose = forward, of_forward
    adjacency = HaloAdjacency(forward, transpose, channels, of_forward, of_transpose)
    first, stop = (int(bound) for bound in bounds[ranks.rank : ranks.rank + 2])
    return GraphPart(bounds, adjacency, node_features(dataset.features(first, stop)))


class _Entries(NamedTuple):
    """Entries of this rank's rows: rows and columns of the whole matrix, int64, and weights, float32."""

    rows: Int64
    columns: Int64
    weights: NDArray[np.float32]


class _EdgeReader:
    """Reads this rank's share of the edges of the only graph, in equally many blocks on all ranks."""

    def __init__(self, dataset: Dataset, ranks: Communicator, block: int) -> None:
        self._dataset, self._ranks, self._channels = dataset, ranks, dataset.header.n_channels
        edges = int(dataset.edge_ptr[-1])
        share = -(-edges // ranks.size)
        start, stop = (min(rank * share, edges) for rank in (ranks.rank, ranks.rank + 1))
        self._cuts = [
            (min(start + offset, stop), min(start + offset + block, stop)) for offset in range(0, share, block)
        ]

    def _blocks(self) -> Iterator[Edges]:
        for first, stop in self._cuts:
            yield self._dataset.edges(first, stop)

    def _cells(self, nodes: NDArray[np.int32], edges: Edges) -> Int64:
        return nodes.astype(np.int64) * self._channels + edges.channel

    def count(self, nodes: int, channels: int, normalize: bool) -> tuple[Int64, NDArray[np.float64] | None]:
        """Return the stored entries of each row of the graph, and row and column sums of its cells, (2, N*C)."""
        entries = np.zeros(nodes, np.int64)
        sums = np.zeros((2, nodes * channels)) if normalize else None
        for edges in self._blocks():
            entries += np.bincount(edges.dst, minlength=nodes)
            if sums is not None:
                for total, ends in zip(sums, (edges.dst, edges.src), strict=True):
                    np.add(total, np.bincount(self._cells(ends, edges), edges.weights, nodes * channels), out=total)
        self._ranks.all_reduce(entries)
        if sums is not None:
            self._ranks.all_reduce(sums)
        return entries, sums

    def distribute(self, bounds: Int64, sums: NDArray[np.float64] | None, turned: bool = False) -> _Entries:
        """Send every edge to the rank of its row, in the adjacency or, `turned`, in its transpose; return own ones."""
        found = [self._distribute_block(edges, bounds, sums, turned) for edges in self._blocks()]
        none = _Entries(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        return _Entries(*(np.concatenate(parts) for parts in zip(none, *found, strict=True)))

    def _distribute_block(
        self, edges: Edges, bounds: Int64, sums: NDArray[np.float64] | None, turned: bool
    ) -> _Entries:
        columns, weights = self._cells(edges.src, edges), edges.weights.astype(np.float32)
        if sums is not None:
            weights = scaled_weights(edges.weights, sums[0][self._cells(edges.dst, edges)], sums[1][columns])
        rows = edges.dst.astype(np.int64)
        owner = np.searchsorted(bounds[1:-1], edges.src if turned else rows, side="right")
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=self._ranks.size))
        counts = self._ranks.all_gather(np.diff(ends, prepend=0))[:, self._ranks.rank].tolist()

        def send(values: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate(self._ranks.exchange(np.split(values[order], ends[:-1]), counts))

        places = (columns, rows) if turned else (rows, columns)
        return _Entries(send(places[0]), send(places[1]), send(weights))


def _halo_rows(
    entries: _Entries,
    bounds: Int64,
    channels: tuple[int, int],
    ranks: Communicator,
    unweighted: bool,
    sums: NDArray[np.float64] | None,
) -> tuple[Csr, Halo]:
    """Return this rank's rows of a matrix of cells (node, channel), and their halo.

    `channels` are those of rows and of columns. `sums` of the whole matrix's rows and columns, (2, cells), make the
    scales if it is `unweighted` and no entry is repeated.
    """
    check_reach(len(entries.rows), "edges")
    first, stop = (int(bound) for bound in bounds[ranks.rank : ranks.rank + 2])
    nodes, channel = entries.columns // channels[1], entries.columns % channels[1]
    own = (nodes >= first) & (nodes < stop)
    halo = np.unique(nodes[~own])
    local = np.where(own, nodes - first, stop - first + np.searchsorted(halo, nodes))
    wanted = np.split(halo, np.searchsorted(halo, bounds[1:-1]))
    received = [len(part) for part in wanted]
    asked = ranks.all_gather(np.array(received))[:, ranks.rank].tolist()
    sent = [part - first for part in ranks.exchange(wanted, asked)]
    width = (stop - first + len(halo)) * channels[1]
    check_reach(width, "nodes times channels")
    row_and_column = entries.rows - first * channels[0], local * channels[1] + channel
    matrix = sp.coo_array((entries.weights, row_and_column), shape=((stop - first) * channels[0], width)).tocsr()
    scales = None
    if sums is not None and unweighted and _on_all(ranks, matrix.nnz == len(entries.rows)):
        held = np.concatenate([sums[1][first:stop], sums[1][halo]])
        scales = scales_of(sums[0][first:stop]), scales_of(held)
    of_all = ranks.all_gather(np.array([matrix.nnz]))[:, 0].tolist()
    found = Csr(matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data, width)
    return found, Halo(halo, sent, received, of_all, scales)


def _on_all(ranks: Communicator, holds: bool) -> bool:
    """Return whether something holds on all ranks."""
    return bool(ranks.all_gather(np.array([holds])).all())
