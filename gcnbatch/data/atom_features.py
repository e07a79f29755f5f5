"""Features of atoms and bonds.

The 75 atom features are those of DeepChem's graph convolution: element symbol (44, the last for all other elements),
degree 0-10, implicit valence 0-6, formal charge, radical electrons, hybridisation (sp, sp2, sp3, sp3d, sp3d2; else all
zero), aromaticity, hydrogens 0-4. A value beyond a one-hot range counts as the last of the range. The implicit valence
is that of an atom without brackets: the number of its hydrogens, however the SMILES is written.

Eleven more may follow: whether the atom is in a ring, its number of rings, whether one has 3, …, 8 atoms (of the
smallest set of smallest rings), its chirality (R, S; else both zero) and its mass, that of an isotope too, in 100 u.
This module imports NumPy only, because worker processes import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SYMBOLS = (
    *("C", "N", "O", "S", "F", "Si", "P", "Cl", "Br", "Mg", "Na", "Ca", "Fe", "As", "Al", "I", "B", "V", "K", "Tl"),
    *("Yb", "Sb", "Sn", "Ag", "Pd", "Co", "Se", "Ti", "Zn", "H", "Li", "Ge", "Cu", "Au", "Ni", "Cd", "In", "Mn", "Zr"),
    *("Cr", "Pt", "Hg", "Pb", "other"),
)
HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
FEATURE_NAMES = (
    *(f"symbol={symbol}" for symbol in SYMBOLS),
    *(f"degree={n}" for n in range(11)),
    *(f"implicit_valence={n}" for n in range(7)),
    "formal_charge",
    "radical_electrons",
    *(f"hybridisation={name.lower()}" for name in HYBRIDISATIONS),
    "aromatic",
    *(f"hydrogens={n}" for n in range(5)),
)
ATOM_FEATURES, EXTENDED = "deepchem75", "extended86"
RING_SIZES = range(3, 9)
EXTENDED_NAMES = ("ring", "rings", *(f"ring_size={size}" for size in RING_SIZES), "chirality=R", "chirality=S", "mass")
BOND_PROPERTIES = {"ring": ("ring",), "conjugated": ("conjugated",), "stereo": ("Z", "E")}  # their channels
_DEGREE, _MAX_DEGREE = FEATURE_NAMES.index("degree=0"), 10
_WALKERS = 4096  # atoms whose walks are computed together, unless a molecule has more


class Atom(NamedTuple):
    """An atom of a sanitised RDKit molecule, without its neighbours.

    `hybridisation` is the number of RDKit's ``HybridizationType``. `implicit_valence` equals `hydrogens`, but for
    `FeaturizerOptions.as_written`.
    """

    number: int
    charge: int
    hybridisation: int
    hydrogens: int
    implicit_valence: int
    radicals: int
    aromatic: bool


class AtomTable:
    """Distinct atoms, so that features are computed once for each.

    Parameters
    ----------
    atomic_number : callable
        Atomic number of an element symbol.
    hybridisations : sequence of int
        Numbers of HYBRIDISATIONS in RDKit.
    """

    def __init__(self, atomic_number: Callable[[str], int], hybridisations: list[int]) -> None:
        self.atoms: list[Atom] = []
        self._rows: dict[Atom, int] = {}
        self._features: list[NDArray[np.int8]] = []
        self._symbols = {atomic_number(symbol): place for place, symbol in enumerate(SYMBOLS[:-1])}
        self._hybridisations = hybridisations

    def row(self, atom: Atom) -> int:
        """Return the number of this atom in the table; a new atom is added."""
        found = self._rows.get(atom)
        if found is None:
            found = self._rows[atom] = len(self.atoms)
            self.atoms.append(atom)
            self._features.append(self._of(atom))
        return found

    def features(self, rows: NDArray[np.int64], degrees: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the features (N, 75) of atoms with these rows (N,) and numbers of neighbours (N,)."""
        table = np.stack(self._features) if self._features else np.zeros((0, len(FEATURE_NAMES)), np.int8)
        x = table[rows]
        x[np.arange(len(x)), _DEGREE + np.minimum(degrees, _MAX_DEGREE)] = 1
        return x

    def others(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the atomic numbers (N,) of atoms with these rows, 0 for ``*``; -1 for elements with a symbol."""
        numbers = [-1 if atom.number in self._symbols else atom.number for atom in self.atoms]
        return np.array(numbers, np.int64)[rows]

    def _of(self, atom: Atom) -> NDArray[np.int8]:
        """Return the features (75,) but the degree."""
        x = np.zeros(len(FEATURE_NAMES), dtype=np.int8)
        x[self._symbols.get(atom.number, len(SYMBOLS) - 1)] = 1
        x[55 + min(atom.implicit_valence, 6)] = 1
        x[62] = atom.charge
        x[63] = atom.radicals
        x[64:69] = [atom.hybridisation == known for known in self._hybridisations]
        x[69] = atom.aromatic
        x[70 + min(atom.hydrogens, 4)] = 1
        return x


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
