"""What an import tells about its molecules: copies, salts, and chemistry that the features do not see."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import featurizer_worker, guard
from gcnbatch.data.atom_features import EXTENDED
from gcnbatch.data.featurizer import FeaturizerOptions, MoleculeArrays
from gcnbatch.data.graphs import GraphSet, Int64, Split
from gcnbatch.text import counted, quoted
from gcnbatch.worker import Workers

UInt64 = NDArray[np.uint64]
_ROUNDS = 3  # of neighbours that a key sees where SMILES decide: different molecules with equal keys only cost time
_ALONE = 16  # of neighbours where keys decide alone
_IRRATIONAL = 100 * math.pi  # scale of features that are not whole numbers: no fraction lands on a half
_CHUNK = 64  # molecules that a worker compares at a time
_ISOTOPE = re.compile(r"\[\d")


class MoleculeNotes:
    """Collects the molecules of an import, chunk by chunk; `lines` then describes them.

    `workers` are processes of `early_workers`; None: a fork of this process compares the molecules.
    """

    def __init__(self, smiles: Sequence[str], options: FeaturizerOptions, workers: Workers | None = None) -> None:
        self._smiles, self._options, self._workers = smiles, options, workers
        self._keys: list[UInt64] = []
        self._rows: list[Int64] = []

    def add(self, arrays: MoleculeArrays) -> None:
        """Add a chunk of molecules."""
        self._keys.append(structure_keys(arrays))
        self._rows.append(arrays.rows)

    def lines(self, y: NDArray[Any], splits: Mapping[str, Split]) -> list[str]:
        """Return notes for the user.

        Parameters
        ----------
        y : (G, K)
            Targets of the molecules that became graphs, in the order in which they were added.
        splits : dict of Split
            Splits of these graphs.
        """
        rows = np.concatenate(self._rows)
        texts = [self._smiles[row] for row in rows]
        exact, flat = self._copies(texts)
        return [
            line
            for line in (
                _about_copies(exact, y, splits),
                self._about_salts(texts),
                _about_stereo(texts, self._options, flat),
            )
            if line
        ]

    def _about_salts(self, texts: Iterable[str]) -> str:
        count = sum("." in text for text in texts)
        if not count or self._options.largest_fragment:
            return ""
        rows = counted(count, "row has", "rows have")
        return f"salts: {rows} several molecules in one SMILES; --largest-fragment keeps the largest"

    def _copies(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return groups of graphs of the same molecule, and how many graphs have the same atoms and bonds as another.

        The second number leaves out copies of the same molecule.
        """
        keys = np.concatenate(self._keys)
        _, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
        candidates = np.flatnonzero(count[inverse] > 1)
        exact: dict[str, list[int]] = defaultdict(list)
        flat: dict[str, set[str]] = defaultdict(set)
        known = self._names(texts[graph] for graph in candidates.tolist())
        for graph in candidates.tolist():
            if texts[graph] not in known:
                continue
            name, flat_name = known[texts[graph]]
            exact[name].append(graph)
            flat[flat_name].add(name)
        alike = sum(len(names) for names in flat.values() if len(names) > 1)
        return [graphs for graphs in exact.values() if len(graphs) > 1], alike

    def _names(self, texts: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return `featurizer_worker.canonical` of all texts."""
        known: dict[str, tuple[str, str]] = {}
        for found in self._canonical(list(dict.fromkeys(texts))):
            known |= found
        return known

    def _canonical(self, texts: list[str]) -> Iterator[dict[str, tuple[str, str]]]:
        if self._workers is None:
            return _guarded(texts, self._options)
        chunks = [(texts[first : first + _CHUNK], self._options) for first in range(0, len(texts), _CHUNK)]
        return guard.in_workers(self._workers, featurizer_worker.canonical_timed, _guarded, iter(chunks), len(chunks))


def _guarded(texts: list[str], options: FeaturizerOptions) -> Iterator[dict[str, tuple[str, str]]]:
    """Yield canonical SMILES, made in forks; a molecule that crashes RDKit has none."""
    found = guard.run(lambda rows, _: featurizer_worker.canonical(rows, options), texts, "RDKit")
    return (one for one in found if not isinstance(one, guard.Lost))


class Copies:
    """Collects the graphs of a stored set of molecules, block by block; `lines` then tells of equal ones.

    The set holds no SMILES. Two graphs are copies if their atoms and bonds look the same to `_ALONE` rounds of message
    passing, so also molecules that differ only in stereochemistry or isotopes are.
    """

    def __init__(self) -> None:
        self._keys: list[UInt64] = []

    @staticmethod
    def can_read(graphs: GraphSet) -> bool:
        """Whether these are molecules with the features that the importer makes."""
        made = (graphs.header.featurizer or {}).get("kind") == "smiles"
        return made and isinstance(graphs.x, np.ndarray)

    def add(self, graphs: GraphSet) -> None:
        """Add a block of graphs."""
        self._keys.append(structure_keys(graphs, _ALONE))

    def lines(self, y: NDArray[Any], splits: Mapping[str, Split]) -> list[str]:
        """Return notes for the user; arguments as in `MoleculeNotes.lines`."""
        if not self._keys:
            return []
        _, inverse, count = np.unique(np.concatenate(self._keys), return_inverse=True, return_counts=True)
        groups: dict[int, list[int]] = defaultdict(list)
        for graph in np.flatnonzero(count[inverse] > 1).tolist():
            groups[int(inverse[graph])].append(graph)
        line = _about_copies(list(groups.values()), y, splits)
        return [line] if line else []


def _about_copies(groups: list[list[int]], y: NDArray[Any], splits: Mapping[str, Split]) -> str:
    if not groups:
        return ""
    rows = sum(map(len, groups))
    molecules = counted(len(groups), "molecule appears", "molecules appear")
    line = f"copies: {molecules} more than once, in {counted(rows, 'row')}"
    differ = sum(_contradict(y[group]) for group in groups)
    if differ:
        line += f"; {differ:,} of them with different targets"
    for name, split in splits.items():
        part = np.full(len(y), -1)
        for number, members in enumerate(split.parts().values()):
            part[members] = number
        apart = sum(len(set(part[group].tolist()) - {-1}) > 1 for group in groups)
        if apart:
            line += f"; {apart:,} of them in different parts of split {quoted(name)}"
    if not splits:
        line += "; a random split may put copies into different parts"
    return line


def _contradict(y: NDArray[Any]) -> bool:
    """Whether any column of y (n, K) has two different known values."""
    columns = (column[column >= 0] if y.dtype.kind == "i" else column[~np.isnan(column)] for column in y.T)
    return any(len(np.unique(column)) > 1 for column in columns)


def _about_stereo(texts: Sequence[str], options: FeaturizerOptions, alike: int) -> str:
    signs = "".join(sign for sign, seen in _seen(options).items() if not seen)
    stereo = sum(any(sign in signs for sign in text) for text in texts)
    isotopes = 0 if options.atom_features == EXTENDED else sum(bool(_ISOTOPE.search(text)) for text in texts)
    if not stereo and not isotopes:
        return ""
    parts = [f"{count:,} with {what}" for count, what in ((stereo, "stereochemistry"), (isotopes, "isotopes")) if count]
    line = f"not seen by the features: {' and '.join(parts)}"
    return line + (
        f"; {counted(alike, 'molecule differs', 'molecules differ')} from another only there" if alike else ""
    )


def _seen(options: FeaturizerOptions) -> dict[str, bool]:
    """Return whether the features show what each sign of a SMILES stands for: chirality, turns of double bonds."""
    chirality, turns = options.atom_features == EXTENDED, "stereo" in options.bond_properties
    return {"@": chirality, "/": turns, "\\": turns}


def structure_keys(arrays: MoleculeArrays | GraphSet, rounds: int = _ROUNDS) -> UInt64:
    """Return a number per graph (G,), equal for equal graphs: node features, mixed with those of neighbours, summed.

    A node sees neighbours `rounds` edges away.
    """
    width = arrays.x.shape[1]
    salt = _mix(np.arange(1, width + 1, dtype=np.uint64))
    x: Any = arrays.x
    whole = x if x.dtype.kind in "iu" else np.rint(x * _IRRATIONAL).astype(np.int64)
    node: UInt64 = whole.astype(np.uint64) @ salt
    first = np.repeat(arrays.node_ptr[:-1], np.diff(arrays.edge_ptr))
    src, dst = first + arrays.src, first + arrays.dst
    scale = _mix(arrays.channel.astype(np.uint64) + np.uint64(width + 1))
    for _ in range(rounds):
        sums = np.zeros_like(node)
        np.add.at(sums, dst, _mix(node)[src] * scale)
        node = _mix(node ^ sums)
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(node, dtype=np.uint64)])
    return totals[arrays.node_ptr[1:]] - totals[arrays.node_ptr[:-1]]


def _mix(values: UInt64) -> UInt64:
    """Scramble 64-bit numbers (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
