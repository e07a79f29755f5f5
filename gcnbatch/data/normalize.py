"""Symmetric normalisation of adjacency channels, the same function for stored weights and for training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet


def symmetric_weights(graphs: GraphSet) -> NDArray[np.float32]:
    """Return the edge weights of D^-1/2 A D^-1/2, each channel by itself.

    ``w_ij / sqrt(rowsum_i * colsum_j)`` for the edge j → i (row i = `dst`, column j = `src`); for a symmetric A both
    sums are the degree of the node in that channel. Self-loops count like any other edge and are not added here.

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
    channels = graphs.header.n_channels
    first_node = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))
    row = (first_node + graphs.dst) * channels + graphs.channel
    column = (first_node + graphs.src) * channels + graphs.channel
    weight = np.ones(graphs.n_edges) if graphs.weight is None else graphs.weight.astype(np.float64)
    cells = graphs.n_nodes * channels
    row_sum = np.bincount(row, weights=weight, minlength=cells)
    column_sum = np.bincount(column, weights=weight, minlength=cells)
    scale = row_sum[row] * column_sum[column]
    defined = scale > 0.0
    return np.where(defined, weight / np.sqrt(np.where(defined, scale, 1.0)), 0.0).astype(np.float32)
