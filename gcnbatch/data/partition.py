"""Parts of a batch or of a large graph for several ranks: contiguous, and of about equal cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64


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
    ends = np.cumsum(costs, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    twice_middles = 2 * ends - costs
    shares = 2 * total * np.arange(1, parts, dtype=object) // parts  # no overflow
    inner = np.searchsorted(twice_middles, shares.astype(np.int64))
    return np.concatenate([[0], inner, [len(costs)]]).astype(np.int64)


class Deal(NamedTuple):
    """The parts of a batch that is dealt out by nodes, in its order: bounds (parts+1,) of their graphs and nodes."""

    graphs: Int64
    nodes: Int64


def deal(nodes: Int64, parts: int) -> Deal:
    """Return the parts of a batch whose graphs have so many nodes.

    >>> deal(np.array([3, 1, 4]), 2)
    Deal(graphs=array([0, 2, 3]), nodes=array([0, 4, 8]))
    """
    bounds = partition(nodes, parts)
    return Deal(bounds, np.concatenate([[0], np.cumsum(nodes)])[bounds])
