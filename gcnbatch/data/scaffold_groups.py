"""Murcko scaffolds as groups of a stored set of molecules, computed when a split asks for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.featurizer_options import FeaturizerOptions
from gcnbatch.data.molecule_graphs import featurize
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset

MURCKO = "murcko scaffold"  # Header.group_kind of imported molecules


def groups_of(dataset: Dataset) -> NDArray[np.int32] | None:
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
