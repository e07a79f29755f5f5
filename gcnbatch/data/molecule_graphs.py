"""Graphs of molecules from SMILES, in several processes: for ``data import smiles`` and for predictions from CSV."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer import (
    FeaturizerOptions,
    MoleculeArrays,
    featurize_chunk,
    load_rdkit,
)
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.normalize import symmetric_weights
from gcnbatch.data.schema import Header
from gcnbatch.errors import MachineError
from gcnbatch.progress import counter
from gcnbatch.worker import WorkerDied, Workers

CHUNK = 256  # molecules a worker takes at a time


def featurize(
    smiles: Iterable[str],
    options: FeaturizerOptions,
    *,
    processes: int = 0,
    progress: bool = False,
    scaffolds: bool = False,
    total: int | None = None,
) -> Iterator[MoleculeArrays]:
    """Yield the graphs of `smiles` chunk by chunk, in the order of the input.

    Parameters
    ----------
    smiles : iterable of str
        One per molecule; surrounding blanks are ignored. It is read a few chunks ahead of the output.
    options : FeaturizerOptions
        Contents of a graph.
    processes : int
        Worker processes; 0: one per processor. A single chunk is converted in this process.
    progress : bool
        Show progress on stderr.
    scaffolds : bool
        Also compute Murcko scaffolds.
    total : int or None
        Number of molecules, where `smiles` has no length.

    Raises
    ------
    MachineError
        When RDKit is missing or a worker process dies.
    """
    load_rdkit()
    if isinstance(smiles, Sized):
        total = len(smiles)
    workers = processes or len(os.sched_getaffinity(0))
    if total is not None:
        workers = min(workers, -(-total // CHUNK))
    chunks = ((texts, first, options, scaffolds) for first, texts in _chunks(smiles))
    with counter(total, " molecules", quiet=not progress) as bar:
        results = _in_processes(chunks, workers) if workers > 1 else (featurize_chunk(*chunk) for chunk in chunks)
        for result in results:
            bar.update(len(result.rows) + len(result.bad))
            yield result


def graph_part(
    arrays: MoleculeArrays,
    header: Header,
    y: NDArray[Any],
    ids: NDArray[np.str_],
    groups: NDArray[np.int32] | None = None,
) -> GraphSet:
    """Return featurised molecules with targets `y (G, K)` and `ids (G,)` as a GraphSet.

    Edge weights are D^-1/2 A D^-1/2 if `header.normalized`, else None.
    """
    graphs = GraphSet(
        header=header,
        node_ptr=arrays.node_ptr,
        edge_ptr=arrays.edge_ptr,
        src=arrays.src,
        dst=arrays.dst,
        channel=arrays.channel,
        weight=None,
        x=arrays.x,
        y=y,
        ids=ids,
        groups=groups,
    )
    return replace(graphs, weight=symmetric_weights(graphs)) if header.normalized else graphs


def missing_targets(header: Header, rows: int) -> NDArray[Any]:
    """Return missing targets for `rows` rows, in the type of the header's target kind."""
    if header.target == "multiclass":
        return np.full((rows, 1), -1, dtype=np.int32)
    return np.full((rows, len(header.task_names)), np.nan, dtype=np.float32)


# ------------------------------------------------------------------------------------------------ internals


def _chunks(smiles: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the position of each chunk's first molecule and its stripped texts."""
    texts, first = iter(smiles), 0
    while chunk := [text.strip() for text in islice(texts, CHUNK)]:
        yield first, chunk
        first += len(chunk)


def _in_processes(chunks: Iterator[tuple[Any, ...]], count: int) -> Iterator[MoleculeArrays]:
    """Run the chunks in `count` processes and yield the results in order; few chunks are in flight at a time."""
    with Workers(count) as workers:
        waiting: deque[tuple[Future[MoleculeArrays], str]] = deque()

        def begin(most: int) -> None:
            for chunk in islice(chunks, most):
                rows = f"SMILES of rows {chunk[1] + 1} to {chunk[1] + len(chunk[0])}"
                waiting.append((workers.submit(featurize_chunk, *chunk), rows))

        begin(3 * count)
        while waiting:
            under_way, rows = waiting.popleft()
            try:
                result = under_way.result()
            except WorkerDied as error:
                raise MachineError(
                    rows,
                    "the process that read them died",
                    hint="Free some memory; if it dies again, leave these rows out.",
                ) from error
            begin(1)
            yield result
