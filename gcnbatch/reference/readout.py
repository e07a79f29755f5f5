"""Readout: one row per graph from the rows of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.reference.arrays import Float

if TYPE_CHECKING:
    from gcnbatch.backends.ops import Readout


def readout(h: Float, node_ptr: NDArray[np.integer[Any]], kind: Readout) -> tuple[Float, NDArray[np.int64] | None]:
    """Sum, mean or maximum, column by column, of each graph's rows of H.

    Parameters
    ----------
    h : (N, P)
    node_ptr : integer, (B+1,)
        Graph b owns the rows ``node_ptr[b]`` … ``node_ptr[b+1]-1``.
    kind : "sum", "mean" or "max"

    Returns
    -------
    r : (B, P)
        A graph with 0 nodes gives a zero row.
    saved : int64, (B, P), or None
        For "max" the row of H that holds each maximum, the first of equal ones; -1 for a graph with 0 nodes.
    """
    n_graphs = len(node_ptr) - 1
    r = np.zeros((n_graphs, h.shape[1]), dtype=h.dtype)
    winner = np.full(r.shape, -1, dtype=np.int64)
    for b in range(n_graphs):
        first, end = node_ptr[b], node_ptr[b + 1]
        if first == end:
            continue
        if kind == "max":
            winner[b] = first + h[first:end].argmax(axis=0)
            r[b] = h[first:end].max(axis=0)
        else:
            r[b] = h[first:end].sum(axis=0)
            if kind == "mean":
                r[b] /= end - first
    return r, winner if kind == "max" else None


def readout_backward(
    dr: Float, node_ptr: NDArray[np.integer[Any]], kind: Readout, saved: NDArray[np.int64] | None
) -> Float:
    """Gradient of `readout` by H, (N, P), for dR (B, P).

    Every node of graph b receives dR_b ("sum") or dR_b / n_b ("mean"). For "max", only the node that holds the maximum
    of column p receives column p.
    """
    n_graphs, width = dr.shape
    dh = np.zeros((node_ptr[-1], width), dtype=dr.dtype)
    for b in range(n_graphs):
        first, end = node_ptr[b], node_ptr[b + 1]
        if saved is None:
            dh[first:end] = dr[b] / max(end - first, 1) if kind == "mean" else dr[b]
        elif first < end:
            dh[saved[b], np.arange(width)] = dr[b]
    return dh
