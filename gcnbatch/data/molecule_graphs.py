"""Graphs of molecules from SMILES, in several processes: for ``data import smiles`` and for predictions from CSV."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import chain, islice, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import guard
from gcnbatch.data.featurizer import (
    BadMolecule,
    FeaturizerOptions,
    MoleculeArrays,
    featurize_chunk,
    load_rdkit,
)
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.normalize import symmetric_weights
from gcnbatch.data.schema import Header
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
    """Yield the graphs of `smiles` in the order of the input, about a chunk at a time.

    A molecule that crashes RDKit or takes too much time or memory (`gcnbatch.data.guard`) gives no graph, as one that
    cannot be read.

    Parameters
    ----------
    smiles : iterable of str
        One per molecule; surrounding blanks are ignored. It is read a few chunks ahead of the output.
    options : FeaturizerOptions
        Contents of a graph.
    processes : int
        Worker processes; 0: one per processor. A single chunk is converted in a fork of this process.
    progress : bool
        Show progress on stderr.
    scaffolds : bool
        Also compute Murcko scaffolds.
    total : int or None
        Number of molecules, where `smiles` has no length.

    Raises
    ------
    MachineError
        When RDKit is missing or processes cannot be started.
    """
    load_rdkit()
    if isinstance(smiles, Sized):
        total = len(smiles)
    workers = processes or len(os.sched_getaffinity(0))
    if total is not None:
        workers = min(workers, -(-total // CHUNK))
    chunks = ((texts, first, options, scaffolds) for first, texts in _chunks(smiles))
    with counter(total, " molecules", quiet=not progress) as bar:
        results = _in_processes(chunks, workers) if workers > 1 else chain.from_iterable(starmap(guarded, chunks))
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
    with Workers(count, _prepare, quiet=True) as workers:
        waiting: deque[tuple[Future[MoleculeArrays], tuple[Any, ...]]] = deque()

        def begin(most: int) -> None:
            for chunk in islice(chunks, most):
                waiting.append((workers.submit(_timed, guard.SECONDS, *chunk), chunk))

        begin(3 * count)
        while waiting:
            under_way, chunk = waiting.popleft()
            try:
                results = [under_way.result()]
            except (WorkerDied, MemoryError):
                results = guarded(*chunk)
            begin(1)
            yield from results


def _prepare() -> None:
    """Prepare a worker process."""
    load_rdkit()
    guard.limit_worker()


def _timed(
    seconds: float, smiles: list[str], first: int, options: FeaturizerOptions, scaffolds: bool
) -> MoleculeArrays:
    """Convert a chunk in a worker process, which ends if a molecule takes too long."""
    return featurize_chunk(guard.timed(smiles, seconds), first, options, scaffolds)


def guarded(smiles: list[str], first: int, options: FeaturizerOptions, scaffolds: bool) -> list[MoleculeArrays]:
    """Convert a chunk in forks; a molecule that crashes RDKit is a bad row."""
    convert = partial(featurize_chunk, options=options, scaffolds=scaffolds)
    found = guard.run(convert, smiles, "RDKit", first)
    return [_lost(one) if isinstance(one, guard.Lost) else one for one in found]


def _lost(row: guard.Lost) -> MoleculeArrays:
    nothing = featurize_chunk((), row.index, FeaturizerOptions(), scaffolds=False)
    return replace(nothing, bad=(BadMolecule(row.index, row.reason),))
