"""Copies of molecules, and different molecules that look alike to a model: their rows, and how splits part them.

Molecules look alike where they differ in stereochemistry alone, or in something else that no feature shows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import featurizer_worker, guard
from gcnbatch.data.atom_features import EXTENDED
from gcnbatch.data.featurizer_options import FeaturizerOptions, is_molecular
from gcnbatch.data.graphs import GraphSet, Int64, Split
from gcnbatch.data.label_ranges import known_labels
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.machine import cores
from gcnbatch.text import counted, quoted
from gcnbatch.workers.pool import Workers

Names = dict[str, tuple[str, str]]  # of SMILES: canonical ones with and without stereochemistry
_ATOM = re.compile(r"\[\d+|[A-Z*]")
_CHUNK = 64  # SMILES that a worker names at a time
_TOO_GOOD = "test figures are then too good; merge these rows, or split by scaffold"
_EITHER = "copies of a molecule, or different ones with equal features"


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
    alike : list of list of int
        Rows of molecules that differ in more, but have equal features.
    about_alike : str
        How many molecules these are, and what helps.
    named : bool
        Whether molecules were compared; else their graphs were.
    """

    same: list[list[int]]
    stereo: list[list[int]]
    n_stereo: int
    alike: list[list[int]] = field(default_factory=list)
    about_alike: str = ""
    named: bool = True

    @classmethod
    def of(
        cls, rows: Sequence[int], texts: Sequence[str], names: Names, looks: Int64, options: FeaturizerOptions
    ) -> Copies:
        """Return those among some rows of `texts`; rows without a name are left out.

        `looks (R,)` are equal for rows with equal features.
        """
        exact: dict[str, list[int]] = defaultdict(list)
        flat: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if texts[row] in names:
                name, flat_name = names[texts[row]]
                if name not in exact:
                    flat[flat_name].append(name)
                exact[name].append(row)
        stereo = [some for some in flat.values() if len(some) > 1]
        alike = look_alikes(rows, looks, lambda row: names[texts[row]][1] if texts[row] in names else "")
        return cls(
            [group for group in exact.values() if len(group) > 1],
            [sorted(row for name in some for row in exact[name]) for some in stereo],
            sum(map(len, stereo)),
            [group for group, _ in alike],
            about_look_alikes(alike, texts, names, options),
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
        if self.same and not self.named:
            what = counted(len(self.same), "graph appears", "graphs appear")
            line = f"equal graphs: {what} more than once, in {counted(sum(map(len, self.same)), 'row')}: {_EITHER}"
            lines.append(line + _between_parts(self.same, splits, len(y)))
        elif self.same:
            what = counted(len(self.same), "molecule appears", "molecules appear")
            line = f"copies: {what} more than once, in {counted(sum(map(len, self.same)), 'row')}"
            if differ := sum(_contradict(y[group]) for group in self.same):
                line += f"; {differ:,} of them with different targets"
            line += _between_parts(self.same, splits, len(y))
            lines.append(
                line if splits else f"{line}; a random split without cross-fitting may put copies into different parts"
            )
        if self.stereo:
            line = f"stereochemistry: {counted(self.n_stereo, 'molecule')} differ from another only in it"
            lines.append(line + _between_parts(self.stereo, splits, len(y)))
        if self.alike:
            lines.append(f"equal features: {self.about_alike}" + _between_parts(self.alike, splits, len(y)))
        return lines


def look_alikes(
    rows: Iterable[int], looks: Int64, name_of: Callable[[int], str]
) -> list[tuple[list[int], dict[str, int]]]:
    """Return groups of rows that look alike, but have several names: their rows, and the first row of each name."""
    groups: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        groups[int(looks[row])].append(row)
    found = []
    for group in groups.values():
        first: dict[str, int] = {}
        for row in group:
            if name := name_of(row):
                first.setdefault(name, row)
        if len(first) > 1:
            found.append((group, first))
    return found


def about_look_alikes(
    found: Sequence[tuple[list[int], dict[str, int]]], texts: Sequence[str], names: Names, options: FeaturizerOptions
) -> str:
    """Return how many molecules look like another, with two of them, and the option that tells these apart."""
    if not found:
        return ""
    pair = [texts[row] for row in list(found[0][1].values())[:2]]
    what = f"{sum(len(first) for _, first in found):,} molecules differ from another in what no feature shows"
    line = f"{what}, such as {' and '.join(map(quoted, pair))}"
    option = _telling(names[pair[0]], names[pair[1]], options)
    return f"{line}; an import with {option} tells these apart" if option else line


def _telling(one: tuple[str, str], other: tuple[str, str], options: FeaturizerOptions) -> str:
    """Return the option that tells two molecules apart, by their names; "" if it is given already."""
    if one[1] == other[1] and "@" not in one[0] + other[0]:
        return "" if "stereo" in options.bond_properties else "--bond-properties stereo"
    atoms = [sorted(_ATOM.findall(name.upper())) for _, name in (one, other)]
    if one[1] != other[1] and atoms[0] == atoms[1]:
        return "" if options.bond_channels else "--bond-channels"
    return "" if options.atom_features == EXTENDED else f"--atom-features {EXTENDED}"


def stored_copies(dataset: Dataset) -> Copies | None:
    """Return the copies in a stored set of molecules; None for other sets.

    Without SMILES or RDKit, and in a file of another program, graphs are compared.
    """
    if not _holds_molecules(dataset):
        return None
    options, texts, looks = _options(dataset), dataset.smiles(), graph_keys(dataset)
    groups = groups_of(looks)
    if options is None or texts is None or find_spec("rdkit") is None:
        return Copies(groups, [], 0, named=False)
    rows: Sequence[int] = range(len(texts))
    if not (options.as_written or options.sees_stereo):  # then copies and stereoisomers have equal graphs
        rows = sorted(row for group in groups for row in group)
    return Copies.of(rows, texts, _named(rows, texts, options), _whole(dataset, looks), options)


def _whole(dataset: Dataset, looks: Int64) -> Int64:
    """Return `graph_keys` with features of whole graphs; `looks` are those without."""
    return graph_keys(dataset, whole=True) if dataset.header.graph_feature_names else looks


def _named(rows: Iterable[int], texts: Sequence[str], options: FeaturizerOptions) -> Names:
    """Return the names of these rows of `texts`, made in processes where they are many."""
    different = list(dict.fromkeys(texts[row] for row in rows))
    return names_of(different, options, processes=min(cores(), len(different) // (4 * _CHUNK)))


def _holds_molecules(dataset: Dataset) -> bool:
    return is_molecular(dataset.header.featurizer) and not dataset.sparse_features


def _options(dataset: Dataset) -> FeaturizerOptions | None:
    try:
        return FeaturizerOptions.from_header(dataset.header.featurizer)
    except InputError:
        return None


def across_splits(dataset: Dataset, splits: Mapping[str, Split]) -> list[str]:
    """Return notes for each split with equal graphs of molecules in different parts: copies, and others.

    Splits go by their names; "" is called "the split". It takes 3 us a molecule, and RDKit only for equal graphs of
    different SMILES.
    """
    if not splits or not _holds_molecules(dataset):
        return []
    looks, rows = graph_keys(dataset), dataset.n_graphs
    groups = groups_of(looks)
    found = {name: apart(groups, split, rows) for name, split in splits.items()}
    if not any(found.values()):
        return []
    texts, options, names = dataset.smiles(), _options(dataset), Names()
    if options is not None and texts is not None and find_spec("rdkit") is not None:
        differing = [group for part in found.values() for group in part if len({texts[row] for row in group}) > 1]
        known = _named((row for group in differing for row in group), texts, options)
        names = {text: known.get(text, (text, text)) for text in texts}
        looks = _whole(dataset, looks)
    notes = []
    for name, split in splits.items():
        where = f"different parts of {f'split {quoted(name)}' if name else 'the split'}"
        apart_rows = [row for group in found[name] for row in group]
        if apart_rows and not names:
            what = counted(len(found[name]), "graph stands", "graphs stand")
            notes.append(f"equal graphs: {what} in {where}, in {len(apart_rows):,} rows: {_EITHER}; {_TOO_GOOD}")
        elif apart_rows and texts is not None and options is not None:
            of_molecule: dict[str, list[int]] = defaultdict(list)
            for row in apart_rows:
                of_molecule[names[texts[row]][0]].append(row)
            if same := apart(of_molecule.values(), split, rows):
                what = counted(len(same), "molecule stands", "molecules stand")
                notes.append(f"copies: {what} in {where}, in {sum(map(len, same)):,} rows; {_TOO_GOOD}")
            alike = look_alikes(apart_rows, looks, lambda row: names[texts[row]][0])
            if alike := [one for one in alike if apart([one[0]], split, rows)]:
                notes.append(f"equal features in {where}: {about_look_alikes(alike, texts, names, options)}")
    return notes


def names_of(texts: list[str], options: FeaturizerOptions, workers: Workers | None = None, processes: int = 1) -> Names:
    """Return the names of SMILES, standardised as `options` say; one that crashes RDKit has none.

    `workers` have called `featurizer_worker.prepare`; None: so many `processes` make the names, a fork if that is 1.
    """
    if not texts:
        return {}
    size = _CHUNK if workers or processes > 1 else len(texts)
    chunks = ((texts[first : first + size], options) for first in range(0, len(texts), size))
    found = featurizer_worker.in_chunks(featurizer_worker.canonical_timed, _in_forks, chunks, processes, workers)
    return {text: names for some in found for text, names in some.items()}


def _in_forks(texts: list[str], options: FeaturizerOptions) -> Iterator[Names]:
    found = guard.run(lambda rows, _: featurizer_worker.canonical(rows, options), texts, "RDKit")
    return (one for one in found if not isinstance(one, guard.Lost))


def graph_keys(dataset: Dataset, whole: bool = False) -> Int64:
    """Return a number per graph (G,), equal for equal atoms and bonds in the same order; read in blocks.

    `whole`: features of whole graphs must be equal, too.
    """
    return np.fromiter((key for _, part in dataset.blocks() for key in keys(part, whole)), np.int64, dataset.n_graphs)


def first_copies(dataset: Dataset) -> Int64:
    """Return, for each row (G,), the first row with the same molecule or an equal graph.

    Stereoisomers with equal graphs count as the same molecule. Rows of sparse features have no copies.
    """
    if dataset.sparse_features:
        return np.arange(dataset.n_graphs)
    found: NDArray[Any] = graph_keys(dataset)  # in normal form, copies have equal graphs
    options, texts = _options(dataset) if _holds_molecules(dataset) else None, dataset.smiles()
    if options is not None and options.as_written and texts is not None and find_spec("rdkit") is not None:
        names = _named(range(len(texts)), texts, options)
        found = np.array([names.get(text, (text, text))[0] for text in texts])
    _, first, group = np.unique(found, return_index=True, return_inverse=True)
    return first[group.ravel()]


def keys(graphs: GraphSet, whole: bool = False) -> Iterator[int]:
    """Yield the number of each graph of a part; see `graph_keys`."""
    bonds = np.stack([graphs.src, graphs.dst, graphs.channel], axis=1, dtype=np.int32)
    parts = [_bytes_of(np.asarray(graphs.x), graphs.node_ptr), _bytes_of(bonds, graphs.edge_ptr)]
    if whole and graphs.graph_features is not None:
        measured, counts = graphs.graph_features.measured, graphs.graph_features.counts
        parts.append(_bytes_of(measured, np.arange(graphs.n_graphs + 1)))
        parts += (_bytes_of(array, counts.indptr) for array in (counts.indices, counts.data))
    return map(hash, zip(*parts, strict=True))


def _bytes_of(rows: NDArray[Any], pointers: Int64) -> Iterator[bytes]:
    """Yield the rows of each graph, as bytes."""
    whole, bounds = rows.tobytes(), (pointers * rows[:1].nbytes).tolist()
    return (whole[first:end] for first, end in pairwise(bounds))


def groups_of(keys: Int64) -> list[list[int]]:
    """Return the rows of each key (R,) that several have, in order."""
    order, counts = np.argsort(keys, kind="stable"), np.unique(keys, return_counts=True)[1]
    several, ends = counts > 1, np.cumsum(counts)
    return sorted(order[end - count : end].tolist() for end, count in zip(ends[several], counts[several], strict=True))


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
    known = np.where(known_labels(y), y, np.nan)
    return bool((np.fmin.reduce(known) < np.fmax.reduce(known)).any())
