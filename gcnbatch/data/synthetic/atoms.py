"""The 75 atom features of `gcnbatch.data.featurizer`, computed from a skeleton and elements.

The skeleton determines all features but the element: two colourings of one skeleton differ only in the 44 columns of
elements.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import FEATURE_NAMES, SYMBOLS
from gcnbatch.data.graphs import Int64
from gcnbatch.data.synthetic.skeletons import AROMATIC, Skeletons

_COLUMN = {name: column for column, name in enumerate(FEATURE_NAMES)}
ELEMENT = {symbol: column for column, symbol in enumerate(SYMBOLS)}
_TWICE_ORDER = np.array([2, 4, 6, 3])  # of a single, double, triple, aromatic bond


def atom_columns(skeletons: Skeletons) -> NDArray[np.int64]:
    """Return the five feature columns that the skeleton sets for each node, (N, 5).

    They are degree, implicit valence, hybridisation, hydrogens and aromatic (-1 if it is not). Two nodes with equal
    rows differ only in their element and their neighbours. Missing bonds up to four count as hydrogens, as in carbon,
    for every element.
    """
    ends = np.concatenate([skeletons.u, skeletons.v])
    kinds = np.concatenate([skeletons.kind, skeletons.kind])
    count = skeletons.n_nodes
    valence = np.bincount(ends, weights=_TWICE_ORDER[kinds], minlength=count).astype(np.int64)
    highest = np.zeros(count, dtype=np.int64)
    np.maximum.at(highest, ends, np.array([0, 1, 2, 1])[kinds])
    aromatic = np.zeros(count, dtype=bool)
    aromatic[ends[kinds == AROMATIC]] = True
    hydrogens = np.maximum(4 - (valence + 1) // 2, 0)
    return np.stack(
        [
            _COLUMN["degree=0"] + skeletons.degree(),
            _COLUMN["implicit_valence=0"] + hydrogens,
            _COLUMN["hybridisation=sp3"] - highest,
            _COLUMN["hydrogens=0"] + hydrogens,
            np.where(aromatic, _COLUMN["aromatic"], -1),
        ],
        axis=1,
    )


def one_hot(columns: Int64, elements: Int64) -> NDArray[np.int8]:
    """Return the features (N, 75) of nodes with these `atom_columns` (N, 5) and elements (N,), places in SYMBOLS."""
    x = np.zeros((len(elements), len(FEATURE_NAMES)), dtype=np.int8)
    rows = np.arange(len(elements))
    x[rows, elements] = 1
    for column in columns.T:
        x[rows[column >= 0], column[column >= 0]] = 1
    return x
