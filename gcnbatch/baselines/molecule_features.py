"""Features of molecules for a random forest: count-Morgan fingerprints and all 2D descriptors of RDKit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import guard
from gcnbatch.data.featurizer import FeaturizerOptions, load_rdkit
from gcnbatch.data.featurizer_options import MORGAN, RDKIT2D
from gcnbatch.data.molecule_features import graph_feature_names
from gcnbatch.data.molecule_features import molecule_features as features_of
from gcnbatch.data.normal_form import normal_molecule
from gcnbatch.data.refusals import excess, first_line
from gcnbatch.errors import InputError
from gcnbatch.progress import counter
from gcnbatch.text import quoted
from gcnbatch.worker import Workers

RADIUS, BITS = 2, 2048
CHUNK = 64  # molecules that a worker takes at a time; a descriptor row takes about 10 ms
FEATURES = FeaturizerOptions(descriptors=RDKIT2D, fingerprint=MORGAN, radius=RADIUS, size=BITS)


@dataclass(frozen=True)
class MoleculeFeatures:
    """Features of molecules.

    Parameters
    ----------
    x : (R, 2048 + D) float32
        Counts of circular fragments, then D descriptors. A descriptor that RDKit cannot compute is 0.
    lost : tuple of Lost
        Rows of zeros: their molecules crash RDKit, or take too much time or memory (`gcnbatch.data.guard`).
    """

    x: NDArray[np.float32]
    lost: tuple[guard.Lost, ...] = ()


@dataclass(frozen=True)
class _Chunk:
    """Features of consecutive molecules, or why one of them is refused."""

    x: NDArray[np.float32]
    refusal: tuple[str, str, str] | None = None
    lost: tuple[guard.Lost, ...] = ()


def molecule_features(
    smiles: Sequence[str], options: FeaturizerOptions, processes: int = 0, progress: bool = False
) -> MoleculeFeatures:
    """Return the features of molecules.

    Parameters
    ----------
    smiles : sequence of R str
    options : FeaturizerOptions
        Largest fragment and neutralisation, as for the graphs.
    processes : int
        Worker processes; 0: one per processor. A single chunk is converted in a fork of this process.
    progress : bool
        Show progress on stderr.

    Raises
    ------
    InputError
        For a SMILES that RDKit cannot read.
    MachineError
        When RDKit is missing or processes cannot be started.
    """
    prepare()
    chunks = ((list(smiles[first : first + CHUNK]), first, options) for first in range(0, len(smiles), CHUNK))
    count = min(processes or len(os.sched_getaffinity(0)), -(-len(smiles) // CHUNK))
    found: list[_Chunk] = []
    with counter(len(smiles), " molecules", "descriptors", quiet=not progress) as bar:
        for part in _in_processes(chunks, count) if count > 1 else chain.from_iterable(starmap(_guarded, chunks)):
            if part.refusal:
                raise InputError(*part.refusal)
            found.append(part)
            bar.update(len(part.x))
    x = np.concatenate([np.zeros((0, _columns()), np.float32), *(part.x for part in found)])
    return MoleculeFeatures(x, tuple(row for part in found for row in part.lost))


def prepare() -> None:
    """Import what features need, before a process is limited or forked."""
    load_rdkit()
    _columns()


def prepare_worker() -> None:
    """Prepare a worker process."""
    prepare()
    guard.limit_worker()


def timed_features(seconds: float, smiles: list[str], first: int, options: FeaturizerOptions) -> _Chunk:
    """Return the features of a chunk in a worker process, which ends if a molecule takes too long."""
    return _features(guard.timed(smiles, seconds), first, options)


def _in_processes(chunks: Iterator[tuple[Any, ...]], count: int) -> Iterator[_Chunk]:
    with Workers(count, prepare_worker, quiet=True) as workers:
        yield from guard.in_workers(workers, timed_features, _guarded, chunks, 3 * count)


def _guarded(smiles: list[str], first: int, options: FeaturizerOptions) -> Iterator[_Chunk]:
    """Yield the features of a chunk, made in forks; a molecule that crashes RDKit has a row of zeros."""
    for one in guard.run(partial(_features, options=options), smiles, "RDKit", first):
        yield _Chunk(np.zeros((1, _columns()), np.float32), lost=(one,)) if isinstance(one, guard.Lost) else one


def _features(smiles: Iterable[str], first: int, options: FeaturizerOptions) -> _Chunk:
    """Return the features of a chunk of molecules; `first` is the position of its first row."""
    rows: list[NDArray[np.float32]] = []
    lost: list[guard.Lost] = []
    for index, text in enumerate(smiles, first):
        if reason := excess(text, options.max_nodes):
            return _Chunk(_array(rows), (f"row {index + 1}", reason, "a smaller molecule"))
        try:
            row = _row(text, options)
        except MemoryError:
            raise
        except Exception as error:  # of RDKit's C++ code
            row = np.zeros(_columns(), np.float32)
            lost.append(guard.Lost(index, first_line(error)))
        if row is None:
            place = f"row {index + 1}"
            return _Chunk(_array(rows), (place, f"SMILES {quoted(text)}", "a molecule that RDKit can read"))
        rows.append(row)
    return _Chunk(_array(rows), lost=tuple(lost))


def _row(text: str, options: FeaturizerOptions) -> NDArray[np.float32] | None:
    """Return counts of fragments, then descriptors."""
    if (molecule := normal_molecule(text, options)) is None:
        return None
    return np.roll(features_of(molecule, FEATURES), BITS)


def _array(rows: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.nan_to_num(np.stack(rows), nan=0.0) if rows else np.zeros((0, _columns()), np.float32)


@cache
def _columns() -> int:
    return len(graph_feature_names(FEATURES))
