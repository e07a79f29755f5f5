"""Rows of one large graph: what a rank that holds some of the rows reads, without the other rows' features and edges.

Features lie in the order of the nodes and are read as a slice. Edges may lie in any order, so the rows of all edges
(4 bytes each) are read in blocks; of a block without an edge into the slice, nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64
from gcnbatch.data.normalize import EDGES, scaled_weights
from gcnbatch.data.store import Dataset

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class RowSlice:
    """The rows first … first + n - 1 of a graph of N nodes and C channels.

    Parameters
    ----------
    first : int
        Number of the first row in the graph.
    x : (n, F)
        Features, as stored; dense or CSR.
    matrix : float32 CSR, (n, N * C)
        Rows of the adjacency: column ``src * C + channel``, sorted, repeated edges summed.
    y : (n, K) or None
        Targets of the nodes; None for targets of graphs.
    """

    first: int
    x: NDArray[Any] | sp.csr_array
    matrix: sp.csr_array
    y: NDArray[Any] | None


@dataclass(frozen=True)
class WeightSums:
    """Sums of the weights of each row and each column of a graph's adjacency, by channel: float64, (N * C,)."""

    rows: Float64
    columns: Float64


def weight_sums(dataset: Dataset, graph: int = 0) -> WeightSums:
    """Return the sums that normalise a graph's adjacency, in one pass over its edges.

    They take 16 bytes per node and channel; besides, a block of edges is in memory.
    """
    channels = dataset.header.n_channels
    cells = _nodes(dataset, graph)[1] * channels
    sums = WeightSums(np.zeros(cells), np.zeros(cells))
    for start, stop in _blocks(dataset, graph):
        channel, weight = dataset.rows("edges/channel", start, stop), _weights(dataset, start, stop)
        for end, totals in (("dst", sums.rows), ("src", sums.columns)):
            cell = dataset.rows(f"edges/{end}", start, stop) * np.int64(channels) + channel
            np.add(totals, np.bincount(cell, weights=weight, minlength=cells), out=totals)
    return sums


def entries_before(dataset: Dataset, graph: int = 0) -> Int64:
    """Return the number of stored edges before each row, and of all, (N + 1,): where to cut rows of equal work."""
    count = _nodes(dataset, graph)[1]
    lengths = np.zeros(count, np.int64)
    for start, stop in _blocks(dataset, graph):
        lengths += np.bincount(dataset.rows("edges/dst", start, stop), minlength=count)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def read_rows(dataset: Dataset, first: int, stop: int, graph: int = 0, sums: WeightSums | None = None) -> RowSlice:
    """Return rows of a graph, whose edges must have been checked.

    Parameters
    ----------
    dataset : Dataset
        With `memory_mb` below the size of the set, a file of which only slices are read.
    first, stop : int
        Range of nodes of the graph.
    graph : int
    sums : WeightSums, optional
        Normalise to D^-1/2 A D^-1/2: the values are those of the whole graph, equal to the bit. None: weights as
        stored, 1 without weights.

    Raises
    ------
    IndexError
        When the range is not within the graph.
    """
    node0, nodes = _nodes(dataset, graph)
    if not 0 <= first <= stop <= nodes:
        raise IndexError(f"rows {first} … {stop} of a graph of {nodes} nodes")
    parts = list(_edges_into(dataset, first, stop, graph, sums))
    empty = np.zeros(0, np.int64)
    row, column, value = (np.concatenate([empty, *(part[i] for part in parts)]) for i in range(3))
    shape = (stop - first, nodes * dataset.header.n_channels)
    matrix = sp.coo_array((value.astype(np.float32), (row, column)), shape=shape).tocsr()
    part = slice(node0 + first, node0 + stop)
    y = dataset.y[part] if dataset.header.level == "node" else None
    return RowSlice(first, dataset.features(part.start, part.stop), matrix, y)


def _edges_into(
    dataset: Dataset, first: int, stop: int, graph: int, sums: WeightSums | None
) -> Iterator[tuple[Int64, Int64, NDArray[np.float32]]]:
    """Yield (row in the slice, column, value) of the edges into the rows, in blocks."""
    channels = np.int64(dataset.header.n_channels)
    for start, end in _blocks(dataset, graph):
        dst = dataset.rows("edges/dst", start, end)
        kept = np.flatnonzero((dst >= first) & (dst < stop))
        if not len(kept):
            continue
        begin, last = int(kept[0]), int(kept[-1]) + 1  # of sorted edges, only these are read
        kept -= begin
        inside = start + begin, start + last
        dst = dst[begin:last][kept]
        src, channel = (dataset.rows(f"edges/{name}", *inside)[kept] for name in ("src", "channel"))
        weight = _weights(dataset, *inside)[kept]
        column = src * channels + channel
        if sums is None:
            value = weight.astype(np.float32)
        else:
            value = scaled_weights(weight, sums.rows[dst * channels + channel], sums.columns[column])
        yield dst.astype(np.int64) - first, column, value


def _nodes(dataset: Dataset, graph: int) -> tuple[int, int]:
    """Return the first node of a graph and their number."""
    first, stop = dataset.node_ptr[graph : graph + 2].tolist()
    return first, stop - first


def _blocks(dataset: Dataset, graph: int) -> Iterator[tuple[int, int]]:
    first, last = dataset.edge_ptr[graph : graph + 2].tolist()
    for start in range(first, last, EDGES):
        yield start, min(start + EDGES, last)


def _weights(dataset: Dataset, start: int, stop: int) -> Float64:
    if not dataset.weighted:
        return np.ones(stop - start)
    return dataset.rows("edges/weight", start, stop).astype(np.float64)
