"""The molecules of a chunk as flat arrays over all their atoms, bonds and rings.

Descriptors and counts of fragments are computed from them for all molecules at once. Molecules that are not usual are
left to RDKit, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import Atom
from gcnbatch.data.rdkit_binary import Ints, Structures
from gcnbatch.data.sparse import row_pointer
from gcnbatch.data.substructures import Plan, Search

ORDERS = np.array([0, 1, 2, 3, 1.5])  # of bonds, by type
_SIXTHS = np.array([0, 6, 3, 2, 4], np.uint16)  # their reciprocals, in sixths
FAR = 10_000  # the distance of atoms that are not connected; a path in 128 atoms has at most 127 bonds
_MOST_ATOMS = 128  # of a usual molecule; in larger matrices, bits depend on the number of BLAS threads
_UNUSUAL = re.compile(r"[*~$<>]|\[(?:\d|H|#)")  # labels, isotopes, bonds of other types and hydrogens that are atoms


def is_usual(molecule: Any, name: str) -> bool:
    """Return whether `ChunkMolecules` says all that features depend on.

    The molecule has at most 128 atoms, no hydrogens that are atoms, no isotopes and labels, and no bonds but single,
    double, triple and aromatic ones.

    Parameters
    ----------
    molecule
        An RDKit molecule.
    name : str
        Its canonical SMILES; "" for a molecule that is not in normal form.
    """
    return bool(name) and molecule.GetNumAtoms() <= _MOST_ATOMS and not _UNUSUAL.search(name)


class ChunkMolecules:
    """G molecules with N atoms, B bonds and R rings together.

    Parameters
    ----------
    structures : Structures
        Of usual molecules, by their numbers of atoms, ascending.
    atoms : sequence of Atom
        Rows of the AtomTable.

    Attributes
    ----------
    n_atoms, n_bonds, starts : int64, (G,)
        Numbers of atoms and bonds, and the first atom.
    molecule, number, charge, hybridisation, hydrogens, radicals, degree, rings : int64, (N,)
        Position of the atom's molecule, what `Atom` says, and numbers of neighbours and of rings.
    aromatic : bool, (N,)
    order : float64, (N,)
        Sum of the orders of its bonds.
    of_bond, kind : int64, (B,)
        Molecule and type.
    ends : int64, (B, 2)
        Atoms, counted over all molecules.
    in_ring, conjugated : bool, (B,)
    src, dst, of_edge : int64, (2 B,)
        Atoms of both directions of each bond, sorted by `src`, then `dst`; and the bond.
    of_ring : int64, (R,)
        Molecule.
    ring, ring_atoms, ring_bonds : int64
        Ring, atom and bond to the next one, along all rings.
    circular, features
        What `gcnbatch.data.fragments` found so far: Morgan's fragments by radius; codes (N,) of the features of atoms.
    """

    def __init__(self, structures: Structures, atoms: Sequence[Atom]) -> None:
        self.circular: list[tuple[Ints, NDArray[np.uint32]]] = []
        self.features: NDArray[np.uint32] | None = None
        self.n_atoms, self.n_bonds = structures.n_atoms, structures.n_bonds
        self.size = len(self.n_atoms)
        self.starts = row_pointer(self.n_atoms)[:-1]
        self.molecule = np.repeat(np.arange(self.size), self.n_atoms)
        table = np.array([atom[:-1] for atom in atoms], np.int64).reshape(-1, len(Atom._fields) - 1)
        columns = table.T.copy()[:, structures.atoms]
        self.number, self.charge, self.hybridisation, self.hydrogens, _, self.radicals = columns
        self.aromatic = np.array([atom.aromatic for atom in atoms], bool)[structures.atoms]
        self.of_bond = np.repeat(np.arange(self.size), self.n_bonds)
        self.ends = structures.ends + self.starts[self.of_bond][:, None]
        self.kind, self.conjugated = structures.types, structures.conjugated
        src, dst = np.concatenate([self.ends, self.ends[:, ::-1]]).T
        order = np.argsort(src * len(self.number) + dst)
        self.src, self.dst, self.of_edge = src[order], dst[order], order % max(len(self.ends), 1)
        self.order = np.bincount(self.src, ORDERS[self.kind[self.of_edge]], len(self.number))
        self.degree = np.bincount(self.src, minlength=len(self.number))
        sizes = structures.ring_sizes
        self.of_ring = np.repeat(np.arange(self.size), structures.n_rings)
        self.ring = np.repeat(np.arange(len(sizes)), sizes)
        self.ring_atoms = structures.ring_atoms + self.starts[self.of_ring][self.ring]
        self.ring_bonds = structures.ring_bonds()
        self.in_ring = np.zeros(len(self.ends), bool)
        self.in_ring[self.ring_bonds] = True
        self.rings = np.bincount(self.ring_atoms, minlength=len(self.number))

    def search(self, plan: Plan) -> Search:
        """Return the search for the patterns of a plan."""
        return Search(
            plan,
            self.size,
            *(self.molecule, self.number, self.charge, self.hydrogens, self.aromatic),
            *(self.src, self.dst, self.kind[self.of_edge], self.in_ring[self.of_edge], self.rings),
        )

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sums (G,) of values (N,) of atoms."""
        return np.bincount(self.molecule, values, self.size)

    @cached_property
    def first_edge(self) -> Ints:
        """First edge (N,) of each atom."""
        return row_pointer(self.degree)[:-1]

    @cached_property
    def squares(self) -> Ints:
        """First of the P pairs of atoms of each molecule, row by row of its matrix; and P: (G + 1,)."""
        return row_pointer(self.n_atoms**2)

    @cached_property
    def pairs(self) -> tuple[Ints, Ints]:
        """Atoms of each pair, two (P,)."""
        columns = self.n_atoms[self.molecule]
        offset = np.cumsum(columns) - columns - self.starts[self.molecule]
        return np.repeat(np.arange(len(columns)), columns), np.arange(self.squares[-1]) - np.repeat(offset, columns)

    @cached_property
    def groups(self) -> list[tuple[int, slice]]:
        """Numbers of atoms, and the molecules that have them."""
        sizes, counts = np.unique(self.n_atoms, return_counts=True)
        ends = np.cumsum(counts)
        return [(size, slice(*ends)) for size, *ends in np.stack([sizes, ends - counts, ends], axis=1).tolist()]

    @cached_property
    def distances(self) -> NDArray[np.uint16]:
        """Lengths (2, P) of the shortest paths between the atoms of each pair, `FAR` where there is none.

        They are numbers of bonds, and sums of the reciprocals of their orders, in sixths.
        """
        place = np.arange(len(self.molecule)) - self.starts[self.molecule]
        row = self.squares[self.molecule] + place * self.n_atoms[self.molecule]
        found = np.full((2, int(self.squares[-1])), FAR, np.uint16)
        found[:, row + place] = 0
        lengths = np.stack([np.ones_like(self.kind, np.uint16), _SIXTHS[self.kind]])
        found[:, row[self.src] + place[self.dst]] = lengths[:, self.of_edge]
        for size, own in self.groups:
            _shorten(found[:, self.squares[own.start] : self.squares[own.stop]].reshape(2, -1, size, size))
        return found


def _shorten(distances: NDArray[np.uint16]) -> None:
    """Make lengths (..., n, n) those of the shortest paths, as Floyd and Warshall do."""
    through = np.empty_like(distances)
    for middle in range(distances.shape[-1]):
        np.add(distances[..., middle, None], distances[..., middle, None, :], out=through)
        np.minimum(distances, through, out=distances)
