"""Logits of any target rows of a data set, computed batch by batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Runner
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graphs import Int64, ragged_rows


def predict_rows(
    runner: Runner,
    source: BatchSource,
    rows: Int64,
    batch_size: int,
    progress: Callable[[int], object] = lambda graphs: None,
) -> NDArray[np.float32]:
    """Return the logits (len(rows), K) of these rows: graphs, or nodes of a node-level set.

    Parameters
    ----------
    batch_size : int
        Graphs per batch; 0: the runner's own number.
    progress : callable
        Called with the number of graphs of each finished batch.
    """
    node_level = source.header.level == "node"
    graphs = source.graphs_of(rows)
    batch_size = batch_size or runner.eval_batch_size
    parts = []
    for start in range(0, len(graphs), batch_size):
        batch = graphs[start : start + batch_size]
        parts.append(runner.predict(batch))
        progress(len(batch))
    logits = np.concatenate(parts) if parts else np.zeros((0, source.header.n_outputs), dtype=np.float32)
    if not node_level:
        return logits
    computed, _ = ragged_rows(source.node_ptr, graphs)
    return logits[np.searchsorted(computed, rows)]
