"""Logits of any target rows of a data set, computed batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Runner
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graphs import Int64


def predict_rows(
    runner: Runner,
    source: BatchSource,
    rows: Sequence[Int64 | None],
    batch_size: int,
    progress: Callable[[int], object] = lambda graphs: None,
) -> list[NDArray[np.float32] | None]:
    """Return every member's logits (len(rows), K) of its rows: graphs, or nodes of a node-level set.

    Parameters
    ----------
    rows : sequence of (int64, or None)
        None for a member whose logits are not needed.
    batch_size : int
        Graphs per batch and member; 0: the runner's own number.
    progress : callable
        Called with the number of graphs of each finished batch.
    """
    graphs = [None if own is None else source.graphs_of(own) for own in rows]
    size = batch_size or runner.eval_batch_size
    cut = {id(own): _batches(own, size) for own in graphs if own is not None}
    batches = [cut.get(id(own), []) for own in graphs]  # members with the same graphs have the same arrays
    places = [
        None if own is None or held is None else _places(source, own, held)
        for own, held in zip(rows, graphs, strict=True)
    ]
    alone = [place if len(own) == 1 else None for own, place in zip(batches, places, strict=True)]
    parts: list[list[NDArray[np.float32]]] = [[] for _ in rows]
    for index in range(max(map(len, batches), default=0)):
        asked = [own[index] if index < len(own) else None for own in batches]
        for own, logits in zip(parts, runner.predict(asked, alone), strict=True):
            if logits is not None:
                own.append(logits)
        progress(sum(len(batch) for batch in asked if batch is not None))
    return [
        None if own is None else _logits(source, part, place)
        for own, part, place in zip(rows, parts, places, strict=True)
    ]


def _batches(graphs: Int64, size: int) -> list[Int64]:
    return [graphs[start : start + size] for start in range(0, len(graphs), size)]


def _places(source: BatchSource, rows: Int64, graphs: Int64) -> Int64 | None:
    """Return where these nodes lie among those of `graphs`; None for rows that are graphs."""
    if source.header.level != "node":
        return None
    graph = np.searchsorted(source.node_ptr, rows, side="right") - 1
    sizes = source.node_ptr[graphs + 1] - source.node_ptr[graphs]
    first = np.cumsum(sizes) - sizes  # of each graph's nodes
    return np.asarray(first[np.searchsorted(graphs, graph)] + rows - source.node_ptr[graph], dtype=np.int64)


def _logits(source: BatchSource, parts: Sequence[NDArray[np.float32]], places: Int64 | None) -> NDArray[np.float32]:
    """Return the logits of the rows at these places. Those of one batch are them alone."""
    if not parts:
        return np.zeros((0, source.header.n_outputs), dtype=np.float32)
    if len(parts) == 1:
        return parts[0]
    logits = np.concatenate(parts)
    return logits if places is None else logits[places]
