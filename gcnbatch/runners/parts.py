"""A rank's part of a global batch of graphs, and predictions that ranks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Offset
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graphs import Int64
from gcnbatch.data.partition import partition_batches
from gcnbatch.ranks.communicator import Communicator

Predict = Callable[[Int64, Int64 | None], NDArray[np.float32]]  # graphs, rows -> logits


class Part(NamedTuple):
    """A rank's part of a global batch: its graphs, where it begins, and each rank's nodes and rows of targets."""

    graphs: Int64
    offset: Offset
    nodes: Int64
    rows: Int64


def part_of(source: BatchSource, graphs: Int64, ranks: Communicator) -> Part:
    """Return this rank's part of a batch of graphs, which is divided by nodes, in its order."""
    rank, of_graphs = ranks.rank, (source.node_ptr[1:] - source.node_ptr[:-1])[graphs]
    (bounds,), (nodes,) = partition_batches(of_graphs, np.array([0, len(graphs)]), ranks.size)
    rows = np.diff(bounds if source.header.level == "graph" else nodes)
    offset = Offset(nodes=int(nodes[rank]), graphs=int(bounds[rank]))
    return Part(graphs[bounds[rank] : bounds[rank + 1]], offset, np.diff(nodes), rows)


def predict_together(predict: Predict, part: Part, rows: Int64 | None, ranks: Communicator) -> NDArray[np.float32]:
    """Return the logits of a batch, or those rows of them, on every rank; each predicts its part."""
    ends, rank = np.cumsum(part.rows), ranks.rank
    asked = np.arange(ends[-1]) if rows is None else rows
    rank_of = np.searchsorted(ends, asked, "right")  # of each row
    counts = np.bincount(rank_of, minlength=ranks.size)
    own = predict(part.graphs, None if rows is None else rows[rank_of == rank] - (ends[rank] - part.rows[rank]))
    padded = np.zeros((int(counts.max()), *own.shape[1:]), own.dtype)
    padded[: len(own)] = own
    logits = np.empty((len(asked), *own.shape[1:]), own.dtype)
    for number, found in enumerate(ranks.all_gather(padded)):
        logits[rank_of == number] = found[: counts[number]]
    return logits
