"""Groups of a stored set of molecules, computed when a split asks for them: scaffolds, clusters of similar molecules.

Similarity is the Tanimoto similarity of Morgan fingerprints (radius 2, 2,048 bits):

    T(a, b) = |a and b| / (|a| + |b| - |a and b|)

Intersections are products of a sparse and a dense matrix of zeros and ones: 45 of 2,048 bits are set in a molecule.
Molecules with equal fingerprints, such as copies, are in one cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gcnbatch import philox
from gcnbatch.data.featurizer_options import MORGAN, FeaturizerOptions, is_molecular
from gcnbatch.data.molecule_graphs import featurize
from gcnbatch.data.schema import MURCKO, Header
from gcnbatch.data.similarity import BITS, RADIUS
from gcnbatch.data.store import Dataset
from gcnbatch.machine import cores
from gcnbatch.progress import counter

BUTINA_MOST = 20_000  # different fingerprints, beyond which the time of all pairs is too long
_BLOCK = 1024  # rows whose similarities are computed together
Bits = NDArray[np.uint8]
Columns = NDArray[np.uint16]  # (F, n): bits, wide enough for sums of them
Step = Callable[[int], object]


def scaffolds_of(dataset: Dataset) -> NDArray[np.int32] | None:
    """Return the group (G,) of each graph: the stored one, or the scaffold of its SMILES; None without both.

    Groups are numbered in the order of their first molecule. A molecule whose scaffold RDKit cannot compute is a group
    of its own.

    Raises
    ------
    InputError
        When the stored SMILES or options of the featuriser are damaged.
    MachineError
        When RDKit is missing.
    """
    if dataset.groups is not None or dataset.header.group_kind != MURCKO:
        return dataset.groups
    texts = dataset.smiles()
    if texts is None:
        return None
    names = [f"molecule {graph}" for graph in range(len(texts))]  # no scaffold reads so
    for arrays in featurize(texts, standardised(dataset.header), scaffolds=True):
        for graph, scaffold in zip(arrays.rows.tolist(), arrays.scaffolds, strict=True):
            names[graph] = scaffold
    return numbered(names)


def numbered(names: Iterable[Hashable]) -> NDArray[np.int32]:
    """Return the group (G,) of each graph, given a name of it: numbers in the order of their first graph.

    >>> numbered("baab").tolist()
    [0, 1, 1, 0]
    """
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)


def standardised(header: Header) -> FeaturizerOptions:
    """Return options that standardise molecules as those of a set were, and compute as little as can be."""
    stored = FeaturizerOptions.from_header(header.featurizer)
    return FeaturizerOptions(
        max_nodes=stored.max_nodes, largest_fragment=stored.largest_fragment, neutralize=stored.neutralize
    )


def clusters_of(dataset: Dataset, similarity: float, quiet: bool = True) -> NDArray[np.int32] | None:
    """Return the cluster (G,) of each molecule; None for a set without molecules.

    Up to `BUTINA_MOST` different fingerprints, the clusters are those of Taylor and Butina: the molecule with most
    neighbours and those of its neighbours that are in no cluster yet form one, and so on. Beyond, they are those of
    sphere exclusion, in a random order that is always the same: a molecule becomes a centre unless it is a neighbour of
    an earlier one. Each other molecule joins the most similar centre among those of its block and of earlier blocks.

    Clusters are numbered in the order of their first molecule. A molecule without a fingerprint is a cluster of its
    own.

    Parameters
    ----------
    similarity : float
        Least similarity of neighbours.
    quiet : bool
        Show no progress.

    Raises
    ------
    InputError
        When the stored SMILES or options of the featuriser are damaged.
    MachineError
        When RDKit is missing.
    """
    bits = _stored(dataset)
    if bits is None:
        bits = _computed(dataset, quiet)
    if bits is None:
        return None
    packed, row = np.unique(np.packbits(bits, axis=1), axis=0, return_inverse=True)
    unique = np.unpackbits(packed, axis=1)
    cluster = butina if len(unique) <= BUTINA_MOST else sphere_exclusion
    with counter(len(unique), " molecules", "clusters", quiet=quiet, delay=1.0) as bar:
        found = cluster(unique, similarity, bar.update)[row.ravel()]
    empty = np.flatnonzero(~bits.any(axis=1))
    found[empty] = found.max(initial=-1) + 1 + np.arange(len(empty))
    return numbered(found.tolist())


def butina(bits: Bits, similarity: float, step: Step = lambda count: None) -> NDArray[np.int64]:
    """Return the cluster (n,) of each row of `bits` (n, F); of rows with as many neighbours, the first is the centre.

    `step` is called with numbers of rows whose neighbours are known.
    """
    columns = _columns(bits)
    near = np.empty((len(bits), -(-len(bits) // 8)), np.uint8)
    count = np.empty(len(bits), np.int64)
    for rows in _blocks(len(bits)):
        own = _similarities(bits[rows], columns) >= similarity
        near[rows], count[rows] = np.packbits(own, axis=1), own.sum(axis=1)
        step(len(own))
    found = np.full(len(bits), -1)
    for centre in np.argsort(-count, kind="stable"):
        if found[centre] < 0:
            neighbours = np.unpackbits(near[centre], count=len(bits)).astype(np.bool_)
            neighbours[centre] = True  # also without a bit
            found[neighbours & (found < 0)] = centre
    return found


def sphere_exclusion(bits: Bits, similarity: float, step: Step = lambda count: None) -> NDArray[np.int64]:
    """Return the cluster (n,) of each row of `bits` (n, F); see `clusters_of`, and `butina` for `step`."""
    found, order = np.empty(len(bits), np.int64), philox.generator(0, "clusters").permutation(len(bits))
    centres, pieces = np.empty(0, np.int64), list[Columns]()  # and their columns, those of a block in one piece
    for block in _blocks(len(bits)):
        rows = order[block]
        alike = np.hstack(
            [np.zeros((len(rows), 0), np.float32), *(_similarities(bits[rows], piece) for piece in pieces)]
        )
        far = rows[~(alike >= similarity).any(axis=1)]
        near = _similarities(bits[far], _columns(bits[far])) >= similarity
        new: list[int] = []
        for row in range(len(far)):
            if not near[row, new].any():
                new.append(row)
        centres = np.concatenate([centres, far[new]])
        pieces.append(_columns(bits[far[new]]))
        found[rows] = centres[np.hstack([alike, _similarities(bits[rows], pieces[-1])]).argmax(axis=1)]
        step(len(rows))
    return found


def _columns(bits: Bits) -> Columns:
    return np.ascontiguousarray(bits.T, np.uint16)


def _similarities(block: Bits, columns: Columns) -> NDArray[np.float32]:
    """Return the Tanimoto similarity (n, m) of rows (n, F) to columns (F, m); 0 where both have no bit."""
    size = columns.sum(axis=0, dtype=np.float32)
    found = np.zeros((len(block), columns.shape[1]), np.float32)

    def fill(rows: slice) -> None:
        common: Any = sparse.csr_array(block[rows].astype(np.uint16)) @ columns
        either = block[rows].sum(axis=1, dtype=np.float32)[:, None] + size - common
        np.divide(common, either, out=found[rows], where=either > 0)

    with ThreadPoolExecutor(cores()) as threads:
        list(threads.map(fill, _blocks(len(block), 64)))
    return found


def _blocks(rows: int, size: int = _BLOCK) -> list[slice]:
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


def _stored(dataset: Dataset) -> Bits | None:
    """Return the fingerprints (G, F) of a set that stores these among its features; None of another."""
    header = dataset.header
    if not is_molecular(header.featurizer):
        return None
    options = FeaturizerOptions.from_header(header.featurizer)
    known = (options.radius, options.size, options.as_written) == (RADIUS, BITS, False)
    if not known or MORGAN not in options.fingerprints:
        return None
    columns = header.fingerprints[options.fingerprints.index(MORGAN)]
    found = np.zeros((dataset.n_graphs, BITS), np.uint8)
    for rows in _blocks(dataset.n_graphs):
        counts = dataset.graph_features(rows.start, rows.stop).counts_of(columns)
        replace(counts, data=counts.data > 0).write_to(found[rows])
    return found


def _computed(dataset: Dataset, quiet: bool) -> Bits | None:
    """Return the fingerprints (G, F) of the stored SMILES, zeros where RDKit cannot read one; None without SMILES."""
    texts = dataset.smiles() if is_molecular(dataset.header.featurizer) else None
    if texts is None:
        return None
    options = replace(standardised(dataset.header), fingerprints=(MORGAN,), radius=RADIUS, size=BITS)
    found = np.zeros((len(texts), BITS), np.uint8)
    for arrays in featurize(texts, options, progress=not quiet):
        if len(arrays.rows):
            assert arrays.graph_features is not None
            found[arrays.rows] = arrays.graph_features.dense() > 0
    return found
