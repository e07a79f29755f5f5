"""Symmetric normalisation of adjacency channels, for stored weights and for training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64

EDGES = 1 << 22  # edges per block


def symmetric_weights(graphs: GraphSet) -> NDArray[np.float32]:
    """Return the edge weights of D^-1/2 A D^-1/2, per channel.

    ``w_ij / sqrt(rowsum_i * colsum_j)`` for the edge j → i (row i = `dst`, column j = `src`); for a symmetric A both
    sums are the degree of the node in that channel. Self-loops count like other edges; this function adds none.

    Parameters
    ----------
    graphs : GraphSet
        N nodes, E edges; a `weight` of None counts as 1 per edge.

    Returns
    -------
    float32, (E,)
        Computed in float64. An edge whose row sum times column sum is not positive gets weight 0.

    Notes
    -----
    Kipf & Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017, equation 2.
    """
    cells = graphs.n_nodes * graphs.header.n_channels
    row_sum, column_sum = np.zeros(cells), np.zeros(cells)
    only = list(_blocks(graphs)) if graphs.n_edges <= EDGES else None
    for part in only or _blocks(graphs):
        row_sum += np.bincount(part.row, weights=part.weight, minlength=cells)
        column_sum += np.bincount(part.column, weights=part.weight, minlength=cells)
    found = np.empty(graphs.n_edges, dtype=np.float32)
    for part in only or _blocks(graphs):
        found[part.edges] = scaled_weights(part.weight, row_sum[part.row], column_sum[part.column])
    return found


def scaled_weights(
    weight: NDArray[np.float64], row_sum: NDArray[np.float64], column_sum: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return `symmetric_weights` of edges from their weights and the sums of their rows and columns, each (E,)."""
    scale = row_sum * column_sum  # every new array of this length costs page faults
    defined = scale > 0.0
    scale[~defined] = 1.0
    np.sqrt(scale, out=scale)
    np.divide(weight, scale, out=scale)
    scale[~defined] = 0.0
    return scale.astype(np.float32)


def symmetric_scales(row_ptr: NDArray[Any], column_ptr: NDArray[Any]) -> tuple[NDArray[np.float32], ...]:
    """Return `symmetric_weights` of an unweighted matrix as a scale per row and one per column, float32.

    The weight of an entry is their product. `row_ptr` and `column_ptr` count the entries of rows and of columns.
    """
    return tuple(scales_of(np.diff(ptr)) for ptr in (row_ptr, column_ptr))


def scales_of(entries: NDArray[Any]) -> NDArray[np.float32]:
    """Return the scale of each row or column of an unweighted matrix, given its number of entries."""
    return (1.0 / np.sqrt(np.maximum(entries, 1))).astype(np.float32)


class _EdgeBlock(NamedTuple):
    """A block of edges: their range, the cells (node, channel) of their rows and columns, their weights."""

    edges: slice
    row: Int64
    column: Int64
    weight: NDArray[np.float64]


def _blocks(graphs: GraphSet) -> Iterator[_EdgeBlock]:
    """Yield all edges in blocks, which bounds the memory of intermediate arrays."""
    channels = graphs.header.n_channels
    for first in range(0, graphs.n_edges, EDGES):
        edges = slice(first, min(first + EDGES, graphs.n_edges))
        counts = np.diff(graphs.edge_ptr.clip(edges.start, edges.stop))
        node, channel = np.repeat(graphs.node_ptr[:-1], counts), graphs.channel[edges]
        row, column = (_cells(node + ends[edges], channels, channel) for ends in (graphs.dst, graphs.src))
        weight = np.ones(len(row)) if graphs.weight is None else graphs.weight[edges].astype(np.float64)
        yield _EdgeBlock(edges, row, column, weight)


def _cells(nodes: Int64, channels: int, channel: NDArray[np.uint8]) -> Int64:
    """Number the cells (node, channel) in the array of the nodes."""
    nodes *= channels
    nodes += channel
    return nodes
