"""Graphs of molecules from SMILES, in several processes: for ``data import smiles`` and for predictions from CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import featurizer_worker, guard
from gcnbatch.data.featurizer import (
    BadMolecule,
    FeaturizerOptions,
    MoleculeArrays,
    featurize_chunk,
)
from gcnbatch.data.graph_features import FeatureTable
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.normalize import symmetric_weights
from gcnbatch.data.schema import TARGET_TYPES, Header
from gcnbatch.machine import cores
from gcnbatch.progress import counter
from gcnbatch.workers.pool import Workers

CHUNK = 256  # molecules a worker takes at a time
_CHUNKS, _LEAST_CHUNK = 32, 64  # of a table of thousands, so that every core has a share; and molecules of a chunk


def featurize(
    smiles: Iterable[str],
    options: FeaturizerOptions,
    *,
    processes: int = 0,
    progress: bool = False,
    scaffolds: bool = False,
    workers: Workers | None = None,
) -> Iterator[MoleculeArrays]:
    """Yield the graphs of `smiles` in the order of the input, about a chunk at a time.

    A molecule that crashes RDKit or takes too much time or memory (`gcnbatch.data.guard`) gives no graph, as one that
    cannot be read.

    Parameters
    ----------
    smiles : iterable of str
        One per molecule; surrounding blanks are ignored. It is read a few chunks before the output.
    options : FeaturizerOptions
        Contents of a graph.
    processes : int
        Worker processes; 0: one per processor. A single chunk is converted in a fork of this process.
    progress : bool
        Show progress on stderr.
    scaffolds : bool
        Also compute Murcko scaffolds.
    workers : Workers or None
        Processes of `featurizer_worker.early_workers`; None: they are started here.

    Raises
    ------
    MachineError
        When RDKit is missing or processes cannot be started.
    """
    total = len(smiles) if isinstance(smiles, Sized) else None
    count = processes or cores()
    size = CHUNK if total is None or total <= CHUNK else min(max(total // _CHUNKS, _LEAST_CHUNK), CHUNK)
    if total is not None:
        count = min(count, -(-total // size))
    chunks = ((texts, first, options, scaffolds) for first, texts in _chunks(smiles, size))
    with counter(total, " molecules", quiet=not progress) as bar:
        results = featurizer_worker.in_chunks(featurizer_worker.featurize_timed, guarded, chunks, count, workers)
        for result in results:
            bar.update(len(result.rows) + len(result.bad))
            yield result


def graph_part(
    arrays: MoleculeArrays,
    header: Header,
    y: NDArray[Any],
    ids: NDArray[np.str_],
    groups: NDArray[np.int32] | None = None,
    columns: NDArray[np.float32] | None = None,
) -> GraphSet:
    """Return featurised molecules with targets `y (G, K)` and `ids (G,)` as a GraphSet.

    Edge weights are D^-1/2 A D^-1/2 if `header.normalized`, else None. The user's own features of molecules, `columns`
    (G, D'), come before those of the featuriser.
    """
    table = arrays.graph_features
    if columns is not None and table is None:
        table = FeatureTable.of(columns, 0)
    elif columns is not None and table is not None:
        table = replace(table, measured=np.concatenate([columns, table.measured], axis=1))
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
        graph_features=table,
    )
    return replace(graphs, weight=symmetric_weights(graphs)) if header.normalized else graphs


def missing_targets(header: Header, rows: int) -> NDArray[Any]:
    """Return missing targets (R, K) for `rows` rows, in the type of the header's kind of target."""
    missing = -1 if header.target == "multiclass" else np.nan
    return np.full((rows, len(header.task_names)), missing, TARGET_TYPES[header.target][0])


# ------------------------------------------------------------------------------------------------ internals


def _chunks(smiles: Iterable[str], size: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the position of each chunk's first molecule and its stripped texts."""
    texts, first = iter(smiles), 0
    while chunk := [text.strip() for text in islice(texts, size)]:
        yield first, chunk
        first += len(chunk)


def guarded(smiles: list[str], first: int, options: FeaturizerOptions, scaffolds: bool) -> list[MoleculeArrays]:
    """Convert a chunk in forks; a molecule that crashes RDKit is a bad row."""
    convert = partial(featurize_chunk, options=options, scaffolds=scaffolds)
    found = guard.run(convert, smiles, "RDKit", first)
    return [_lost(one, options) if isinstance(one, guard.Lost) else one for one in found]


def _lost(row: guard.Lost, options: FeaturizerOptions) -> MoleculeArrays:
    nothing = featurize_chunk((), row.index, options, scaffolds=False)
    return replace(nothing, bad=(BadMolecule(row.index, row.reason),))
