"""A rank's part of one large graph: its rows of the adjacency and of the features, and whose rows it needs besides.

The nodes are dealt out in contiguous ranges, by stored entries. No rank reads or holds the whole graph: each reads a
share of the edges, in blocks, and sends every edge to the rank that holds its row. An edge to a column of another rank
makes that node one of the halo, whose values its owner sends before a product. Which rows go where is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.batches import node_features
from gcnbatch.data.graphs import Edges, Int64
from gcnbatch.data.normalize import scaled_weights, scales_of
from gcnbatch.data.partition import partition
from gcnbatch.data.sparse import Adjacency, Array, Csr, check_reach
from gcnbatch.data.store import Dataset
from gcnbatch.ranks.communicator import Communicator

BLOCK_EDGES = 1 << 22  # that a rank reads at a time


@dataclass(slots=True, eq=False)
class HaloAdjacency(Adjacency):
    """The rows of an adjacency that a rank holds.

    `forward` has n rows, one per own node, and (n + m)*C columns: those of its own nodes, then of its halo, ascending.
    `transpose` is its transpose.

    Parameters
    ----------
    sent : sequence of int64 arrays
        By rank, the own nodes whose values that rank needs.
    received : sequence of int
        By rank, the nodes of the halo that it holds; they are in the halo in this order.
    scales : (float32 (n,), float32 (n + m,)) or None
        As `gcnbatch.data.batches.PreparedSet.scales`, of this rank's rows and columns.
    """

    sent: Sequence[Int64]
    received: Sequence[int]
    scales: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None


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
    """

    bounds: Int64
    adjacency: HaloAdjacency
    x: Array


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
    first, stop = (int(bound) for bound in bounds[ranks.rank : ranks.rank + 2])
    rows, columns, weights = reader.deal(bounds, sums)
    check_reach(len(rows), "edges")
    unweighted = sums if channels == 1 and not dataset.weighted else None
    adjacency = _with_halo(rows - first, columns, weights, bounds, channels, ranks, unweighted)
    return GraphPart(bounds, adjacency, node_features(dataset.features(first, stop)))


class _EdgeReader:
    """Reads this rank's share of the edges of the only graph, in equally many blocks on all ranks."""

    def __init__(self, dataset: Dataset, ranks: Communicator, block: int) -> None:
        self._dataset, self._ranks, self._channels = dataset, ranks, dataset.header.n_channels
        edges = int(dataset.edge_ptr[-1])
        share = -(-edges // ranks.size)
        start, stop = (min(rank * share, edges) for rank in (ranks.rank, ranks.rank + 1))
        self._cuts = [(min(start + at, stop), min(start + at + block, stop)) for at in range(0, share, block)]

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
                for total, at in zip(sums, (edges.dst, edges.src), strict=True):
                    np.add(total, np.bincount(self._cells(at, edges), edges.weights, nodes * channels), out=total)
        self._ranks.all_reduce(entries)
        if sums is not None:
            self._ranks.all_reduce(sums)
        return entries, sums

    def deal(self, bounds: Int64, sums: NDArray[np.float64] | None) -> tuple[Int64, Int64, NDArray[np.float32]]:
        """Send every edge to the rank of its row; return rows, columns (cells) and weights of those of this rank."""
        found = [self._deal_block(edges, bounds, sums) for edges in self._blocks()]
        none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        rows, columns, weights = (np.concatenate(parts) for parts in zip(none, *found, strict=True))
        return rows, columns, weights

    def _deal_block(self, edges: Edges, bounds: Int64, sums: NDArray[np.float64] | None) -> tuple[Any, ...]:
        columns, weights = self._cells(edges.src, edges), edges.weights.astype(np.float32)
        if sums is not None:
            weights = scaled_weights(edges.weights, sums[0][self._cells(edges.dst, edges)], sums[1][columns])
        owner = np.searchsorted(bounds[1:-1], edges.dst, side="right")
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=self._ranks.size))
        counts = self._ranks.all_gather(np.diff(ends, prepend=0))[:, self._ranks.rank].tolist()

        def send(values: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate(self._ranks.exchange(np.split(values[order], ends[:-1]), counts))

        return send(edges.dst.astype(np.int64)), send(columns), send(weights)


def _with_halo(
    rows: Int64,
    columns: Int64,
    weights: NDArray[np.float32],
    bounds: Int64,
    channels: int,
    ranks: Communicator,
    sums: NDArray[np.float64] | None,
) -> HaloAdjacency:
    """Return the adjacency of these entries: own rows from 0, columns as cells of the whole graph.

    `sums` are the entries of the graph's rows and columns, (2, N), if its values follow from them.
    """
    import scipy.sparse as sp

    first, stop = (int(bound) for bound in bounds[ranks.rank : ranks.rank + 2])
    nodes, channel = columns // channels, columns % channels
    own = (nodes >= first) & (nodes < stop)
    halo = np.unique(nodes[~own])
    local = np.where(own, nodes - first, stop - first + np.searchsorted(halo, nodes))
    wanted = np.split(halo, np.searchsorted(halo, bounds[1:-1]))
    received = [len(part) for part in wanted]
    asked = ranks.all_gather(np.array(received))[:, ranks.rank].tolist()
    sent = [part - first for part in ranks.exchange(wanted, asked)]
    width = (stop - first + len(halo)) * channels
    check_reach(width, "nodes times channels")
    matrix = sp.coo_array((weights, (rows, local * channels + channel)), shape=(stop - first, width)).tocsr()
    scales = None
    if sums is not None and matrix.nnz == len(rows):
        held = np.concatenate([sums[1][first:stop], sums[1][halo]])
        scales = scales_of(sums[0][first:stop]), scales_of(held)
    return HaloAdjacency(_csr(matrix), _csr(matrix.T.tocsr()), channels, sent, received, scales)


def _csr(matrix: Any) -> Csr:
    return Csr(matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data, matrix.shape[1])
