"""Atoms and bonds of a molecule beyond `gcnbatch.data.rdkit_binary`: rings, chirality, mass, bond properties, walks.

Each value is a call of RDKit from Python, about 0.3 us. This module imports NumPy only, because worker
processes import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import EXTENDED_NAMES, RING_SIZES
from gcnbatch.data.featurizer_options import BOND_PROPERTIES

_WALKERS = 4096  # atoms whose walks are computed together, unless a molecule has more
_MASS = 100.0  # unit of the mass, so that it is about 1, as other features are
_CHIRAL = ("R", "S")
_TURNED = {"STEREOZ": "Z", "STEREOCIS": "Z", "STEREOE": "E", "STEREOTRANS": "E"}


def extended_atoms(molecule: Any) -> NDArray[np.float32]:
    """Return the features (N, 11) of EXTENDED_NAMES of a sanitised RDKit molecule."""
    rings, x = molecule.GetRingInfo(), np.zeros((molecule.GetNumAtoms(), len(EXTENDED_NAMES)), np.float32)
    for number, atom in enumerate(molecule.GetAtoms()):
        count = rings.NumAtomRings(number)
        turn = atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else ""
        of_size = [bool(count) and rings.IsAtomInRingOfSize(number, size) for size in RING_SIZES]
        x[number] = [count > 0, count, *of_size, *(turn == one for one in _CHIRAL), atom.GetMass() / _MASS]
    return x


def property_bonds(molecule: Any, properties: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the ends (2 b) of the bonds with each property, and their channel (b), counted from that of the first.

    A bond appears once for each of its properties.
    """
    channels = [name for one in properties for name in BOND_PROPERTIES[one]]
    ends: list[int] = []
    found: list[int] = []
    for bond in molecule.GetBonds():
        has = {"ring": bond.IsInRing(), "conjugated": bond.GetIsConjugated()}
        turn = _TURNED.get(str(bond.GetStereo()), "")
        for channel, name in enumerate(channels):
            if has.get(name, turn == name):
                ends += (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())
                found.append(channel)
    return ends, found


def random_walks(node_ptr: NDArray[np.int64], ends: NDArray[np.int64], columns: int) -> NDArray[np.float32]:
    """Return the probabilities (N, columns) that a walk of 2, 3, … steps returns to its node.

    A step goes to a neighbour, each with the same probability: entry (i, i) of (D^-1 A)^k, in float64. A node without
    neighbours has 0. The result for a graph does not depend on the others.

    Parameters
    ----------
    node_ptr : int64, (G+1,)
        First node of each graph.
    ends : int64, (B, 2)
        Nodes of every undirected edge, counted over all graphs, graph by graph.
    columns : int
    """
    import scipy.sparse as sp

    from gcnbatch.data.graphs import bounded_ranges  # imports much, as SciPy

    n = int(node_ptr[-1])
    found = np.zeros((n, columns), np.float32)
    degree = np.bincount(ends.ravel(), minlength=n)
    both = np.concatenate([ends, ends[:, ::-1]])
    share = 1.0 / degree[both[:, 0]]
    step = sp.csr_array((share, (both[:, 0], both[:, 1])), shape=(n, n))
    step.sum_duplicates()
    for first, stop in bounded_ranges(node_ptr, _WALKERS):
        nodes = slice(int(node_ptr[first]), int(node_ptr[stop]))
        one = step[nodes, nodes]
        walked = one
        for column in range(columns):
            walked = walked @ one
            found[nodes, column] = walked.diagonal()
    return found
