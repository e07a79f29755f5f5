"""Parts of batches or of a large graph for several ranks: contiguous, and of about equal cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64
from gcnbatch.data.sparse import row_pointer


def partition(costs: NDArray[np.integer], parts: int) -> Int64:
    """Return bounds (parts+1,) of contiguous parts of about equal cost; part r is bounds[r] … bounds[r+1].

    A part ends at the item whose middle crosses its share of the total. A part is off its share by at most the cost of
    its two end items; parts may be empty. Equal inputs give equal bounds on every machine.

    Parameters
    ----------
    costs : integers, (items,)
        Not negative, such as the nodes of each graph.
    parts : int
    """
    return partition_batches(costs, np.array([0, len(costs)]), parts).graphs[0]


class Parts(NamedTuple):
    """The parts of batches, each in its order: bounds (n, parts+1) of their graphs and nodes in the batch."""

    graphs: Int64
    nodes: Int64


def partition_batches(nodes: NDArray[np.integer], batch_ptr: Int64, parts: int) -> Parts:
    """Return the parts of batches whose graphs have so many nodes; each batch is divided as by `partition`.

    Parameters
    ----------
    nodes : integers, (graphs of all batches,)
    batch_ptr : int64, (n+1,)
        First graph of each batch.

    Examples
    --------
    >>> partition_batches(np.array([3, 1, 4, 5]), np.array([0, 3, 4]), 2).nodes
    array([[0, 4, 8],
           [0, 0, 5]])
    """
    ends = row_pointer(nodes)
    first, last = ends[batch_ptr[:-1], np.newaxis], ends[batch_ptr[1:], np.newaxis]
    # 2 total r // parts without overflow
    quotient, rest = np.divmod(last - first, parts)
    r = np.arange(1, parts)
    shares = 2 * quotient * r + 2 * rest * r // parts
    twice_middles = ends[1:] + ends[:-1]
    inner = np.searchsorted(twice_middles, 2 * first + shares)
    bounds = np.concatenate([batch_ptr[:-1, np.newaxis], inner, batch_ptr[1:, np.newaxis]], axis=1)
    bounds = np.clip(bounds, batch_ptr[:-1, np.newaxis], batch_ptr[1:, np.newaxis])
    return Parts(bounds - batch_ptr[:-1, np.newaxis], ends[bounds] - first)
