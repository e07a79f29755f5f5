"""Copies of molecules, and molecules that differ in stereochemistry alone: their rows, and how splits part them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import featurizer_worker, guard
from gcnbatch.data.featurizer_options import FeaturizerOptions, is_molecular
from gcnbatch.data.graphs import GraphSet, Int64, Split
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.text import counted, quoted
from gcnbatch.worker import Workers

Names = dict[str, tuple[str, str]]  # of SMILES: canonical ones with and without stereochemistry
_CHUNK = 64  # SMILES that a worker names at a time


@dataclass(frozen=True)
class Copies:
    """Groups of rows.

    Parameters
    ----------
    same : list of list of int
        Rows of each molecule that has several.
    stereo : list of list of int
        Rows of molecules that differ in stereochemistry alone.
    n_stereo : int
        How many molecules these are.
    """

    same: list[list[int]]
    stereo: list[list[int]]
    n_stereo: int

    @classmethod
    def of(cls, rows: Iterable[int], texts: Sequence[str], names: Names) -> Copies:
        """Return those among some rows of `texts`; rows without a name are left out."""
        exact: dict[str, list[int]] = defaultdict(list)
        flat: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if texts[row] in names:
                name, flat_name = names[texts[row]]
                if name not in exact:
                    flat[flat_name].append(name)
                exact[name].append(row)
        alike = [some for some in flat.values() if len(some) > 1]
        return cls(
            [group for group in exact.values() if len(group) > 1],
            [sorted(row for name in some for row in exact[name]) for some in alike],
            sum(map(len, alike)),
        )

    def lines(self, y: NDArray[Any], splits: Mapping[str, Split]) -> list[str]:
        """Return notes for the user.

        Parameters
        ----------
        y : (G, K)
            Targets of the rows.
        splits : dict of Split
            Splits of the rows.
        """
        lines = []
        if self.same:
            what = counted(len(self.same), "molecule appears", "molecules appear")
            line = f"copies: {what} more than once, in {counted(sum(map(len, self.same)), 'row')}"
            if differ := sum(_contradict(y[group]) for group in self.same):
                line += f"; {differ:,} of them with different targets"
            line += _between_parts(self.same, splits, len(y))
            lines.append(line if splits else f"{line}; a random split may put copies into different parts")
        if self.stereo:
            line = f"stereochemistry: {counted(self.n_stereo, 'molecule')} differ from another in it alone"
            lines.append(line + _between_parts(self.stereo, splits, len(y)))
        return lines


def stored_copies(dataset: Dataset) -> Copies | None:
    """Return the copies in a stored set of molecules; None for other sets.

    Without SMILES or RDKit, and in a file of another program, copies are molecules with equal graphs.
    """
    if not _holds_molecules(dataset):
        return None
    options, texts = _options(dataset), dataset.smiles()
    if options is None or texts is None or find_spec("rdkit") is None:
        return Copies(groups_of(graph_keys(dataset)), [], 0)
    rows: Iterable[int] = range(len(texts))
    if not (options.as_written or options.sees_stereo):  # then copies and stereoisomers have equal graphs
        rows = sorted(row for group in groups_of(graph_keys(dataset)) for row in group)
    different = list(dict.fromkeys(texts[row] for row in rows))
    count = min(len(os.sched_getaffinity(0)), len(different) // (4 * _CHUNK))
    with Workers(count, featurizer_worker.prepare, quiet=True) if count > 1 else nullcontext() as workers:
        return Copies.of(rows, texts, names_of(different, options, workers))


def _holds_molecules(dataset: Dataset) -> bool:
    return is_molecular(dataset.header.featurizer) and not dataset.sparse_features


def _options(dataset: Dataset) -> FeaturizerOptions | None:
    try:
        return FeaturizerOptions.from_header(dataset.header.featurizer)
    except InputError:
        return None


def across_splits(dataset: Dataset, splits: Mapping[str, Split]) -> list[str]:
    """Return a note for each split with equal graphs of molecules in different parts.

    Splits go by their names; "" is called "the split". It takes no RDKit, and 3 us a molecule.
    """
    if not splits or not _holds_molecules(dataset):
        return []
    groups, notes = groups_of(graph_keys(dataset)), []
    for name, split in splits.items():
        if found := apart(groups, split, dataset.n_graphs):
            what = counted(len(found), "molecule stands", "molecules stand")
            where = f"split {quoted(name)}" if name else "the split"
            notes.append(
                f"copies: {what} in different parts of {where}, as equal graphs in {sum(map(len, found)):,} rows; "
                "test figures are then too good; merge these rows, or split by scaffold"
            )
    return notes


def names_of(texts: list[str], options: FeaturizerOptions, workers: Workers | None) -> Names:
    """Return the names of SMILES, standardised as `options` say; one that crashes RDKit has none.

    `workers` have called `featurizer_worker.prepare`; None: a fork of this process makes the names.
    """
    names: Names = {}
    if workers is None:
        found = _in_forks(texts, options)
    else:
        chunks = [(texts[first : first + _CHUNK], options) for first in range(0, len(texts), _CHUNK)]
        found = guard.in_workers(workers, featurizer_worker.canonical_timed, _in_forks, iter(chunks), len(chunks))
    for some in found:
        names |= some
    return names


def _in_forks(texts: list[str], options: FeaturizerOptions) -> Iterator[Names]:
    found = guard.run(lambda rows, _: featurizer_worker.canonical(rows, options), texts, "RDKit")
    return (one for one in found if not isinstance(one, guard.Lost))


def graph_keys(dataset: Dataset) -> Int64:
    """Return a number per graph (G,), equal for equal atoms and bonds in the same order; read in blocks."""
    return np.fromiter((key for _, part in dataset.blocks() for key in _keys(part)), np.int64, dataset.n_graphs)


def _keys(graphs: GraphSet) -> Iterator[int]:
    x, edges = np.ascontiguousarray(graphs.x), (graphs.src, graphs.dst, graphs.channel)
    nodes, bonds = graphs.node_ptr.tolist(), graphs.edge_ptr.tolist()
    for graph in range(graphs.n_graphs):
        own = slice(bonds[graph], bonds[graph + 1])
        yield hash((x[nodes[graph] : nodes[graph + 1]].tobytes(), *(array[own].tobytes() for array in edges)))


def groups_of(keys: Int64) -> list[list[int]]:
    """Return the rows of each key (R,) that several have, in order."""
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return sorted(rows.tolist() for rows in np.split(order, cuts) if len(rows) > 1)


def apart(groups: Iterable[Sequence[int]], split: Split, rows: int) -> list[Sequence[int]]:
    """Return the groups with members in different parts of a split of so many rows."""
    part = np.full(rows, -1)
    for number, members in enumerate(split.parts().values()):
        part[members] = number
    return [group for group in groups if len(set(part[group].tolist()) - {-1}) > 1]


def _between_parts(groups: Sequence[Sequence[int]], splits: Mapping[str, Split], rows: int) -> str:
    counts = ((name, len(apart(groups, split, rows))) for name, split in splits.items())
    return "".join(f"; {count:,} of them in different parts of split {quoted(name)}" for name, count in counts if count)


def _contradict(y: NDArray[Any]) -> bool:
    """Whether any column of y (n, K) has two different known values."""
    columns = (column[column >= 0] if y.dtype.kind == "i" else column[~np.isnan(column)] for column in y.T)
    return any(len(np.unique(column)) > 1 for column in columns)
