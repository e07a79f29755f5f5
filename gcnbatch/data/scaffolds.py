"""Murcko scaffolds: rings and the chains between them, as SMILES without stereochemistry.

RDKit needs about 150 us for a scaffold. Many molecules share one, and most have it in the same order, so the scaffold
of a core is computed once: `Scaffolds` finds the cores of a whole chunk with array operations. Featurising Tox21 with
scaffolds takes 18 % less processor time so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import Atom
from gcnbatch.data.rdkit_binary import DOUBLE, TRIPLE, Ints, Structures
from gcnbatch.data.refusals import first_line

MAX_MURCKO_ATOMS = 300  # RDKit decomposes larger molecules too slowly
MAX_KNOWN = 100_000  # cores in memory, about 200 bytes each
_CARBON, _NITROGEN, _OXYGEN = 6, 7, 8
Key = tuple[bytes, ...]  # of a core: its atoms and its bonds


class Scaffolds:
    """Scaffolds of molecules, with those of known cores.

    A core is what decides the scaffold: the atoms of rings, of the chains between them and those with a double or
    triple bond to them, the bonds between these atoms, and where a substituent changes how RDKit counts hydrogens.

    Parameters
    ----------
    chem
        ``rdkit.Chem``.
    atoms : list of Atom
        The atoms that structures number; it may grow.
    """

    def __init__(self, chem: Any, atoms: Sequence[Atom]) -> None:
        self._chem, self._atoms = chem, atoms
        self._kinds: list[int] = []  # by row of the atom table
        self._number: dict[tuple[object, ...], int] = {}
        self._known: dict[Key, str] = {}

    def of(self, molecules: Sequence[Any], structures: Structures) -> tuple[list[str], dict[int, str]]:
        """Return the scaffold of each molecule, "" for one without rings, and why RDKit fails, by its place.

        The atoms of `structures` are in the order of the normal form, those of `molecules` in any order.
        """
        found: list[str] = []
        failures: dict[int, str] = {}
        for molecule, key in zip(molecules, self._keys(structures) if molecules else (), strict=True):
            try:
                found.append("" if key is None else self._look_up(key, molecule))
            except MemoryError:
                raise
            except Exception as error:  # of RDKit's C++ code
                failures[len(found)] = first_line(error)
                found.append("")
        return found, failures

    def _keys(self, structures: Structures) -> Iterator[Key | None]:
        """Yield what identifies the core of each molecule; () for one that must be computed, None without rings."""
        n_atoms, n_bonds, rows, ends, types, plain = structures
        node_ptr, bond_ptr = (np.concatenate([[0], np.cumsum(counts)]) for counts in (n_atoms, n_bonds))
        ends = ends + np.repeat(node_ptr[:-1], n_bonds)[:, None]
        core = _cores(ends, int(node_ptr[-1]))
        multiple = (types == DOUBLE) | (types == TRIPLE)
        kept = core.copy()
        kept[ends[multiple & core[ends].any(axis=1)]] = True
        kind = self._kinds_of(rows)
        lost = np.bincount(ends[kept[ends].sum(axis=1) == 1].ravel(), minlength=len(core))
        kind = kind * 16 + np.where(kind % 2, np.minimum(lost, 15), 0)
        bonds = kept[ends].all(axis=1)
        before, bonds_before = (np.concatenate([[0], np.cumsum(mask)]) for mask in (kept, bonds))
        first, first_bond = before[node_ptr], bonds_before[bond_ptr]
        own_ends = before[ends[bonds]] - np.repeat(first[:-1], np.diff(first_bond))[:, None]
        atom_bytes = kind[kept].astype(np.int32).tobytes()
        bond_bytes = np.column_stack([own_ends, types[bonds]]).astype(np.int16).tobytes()
        rings = np.add.reduceat(core, node_ptr[:-1]) > 0
        for number in range(len(plain)):
            atoms, pairs = slice(*4 * first[number : number + 2]), slice(*6 * first_bond[number : number + 2])
            key = (atom_bytes[atoms], bond_bytes[pairs]) if plain[number] else ()
            yield key if rings[number] else None

    def _look_up(self, key: Key, molecule: Any) -> str:
        scaffold = self._known.get(key)
        if scaffold is None:
            scaffold = self._compute(molecule)
            if key and len(self._known) < MAX_KNOWN:
                self._known[key] = scaffold
        return scaffold

    def _compute(self, molecule: Any) -> str:
        # Brackets decide which hydrogens RDKit counts, so the molecule is read from its canonical SMILES.
        molecule = self._chem.MolFromSmiles(self._chem.MolToSmiles(molecule, isomericSmiles=False))
        if molecule.GetNumAtoms() > MAX_MURCKO_ATOMS:
            return _large_scaffold(self._chem, molecule)
        return str(self._chem.MolToSmiles(self._chem.MurckoDecompose(molecule), isomericSmiles=False))

    def _kinds_of(self, rows: Ints) -> Ints:
        """Return a number per atom, equal for atoms that look the same in a scaffold; odd if substituents matter."""
        for atom in self._atoms[len(self._kinds) :]:
            plain = atom.number == _CARBON or (atom.number in (_NITROGEN, _OXYGEN) and not atom.aromatic)
            plain = plain and atom.charge == 0 and atom.radicals == 0  # bonds alone decide its hydrogens
            seen = (atom.number, atom.charge, -1 if plain else atom.hydrogens, atom.radicals, atom.aromatic)
            self._kinds.append(2 * self._number.setdefault(seen, len(self._number)) + (not plain))
        return np.array(self._kinds, np.int64)[rows]


def _cores(ends: Ints, n_nodes: int) -> NDArray[np.bool_]:
    """Return which nodes are in cycles or between them, (N,): what is left when leaves are taken away again and again.

    `ends` (B, 2) are the nodes of each bond.
    """
    while True:
        core = np.bincount(ends.ravel(), minlength=n_nodes) > 1
        stay = core[ends].all(axis=1)
        if stay.all():
            return core
        ends = ends[stay]


def _large_scaffold(chem: Any, molecule: Any) -> str:
    """Return rings, the chains between them and atoms multiply bonded to them, in linear time.

    RDKit's decomposition takes cubic time: a minute for 3,000 atoms.
    """
    pairs = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    double = [bond.GetBondTypeAsDouble() >= 2.0 for bond in molecule.GetBonds()]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    core = _cores(ends, molecule.GetNumAtoms())
    kept = core.copy()
    kept[ends[np.array(double, bool) & core[ends].any(axis=1)]] = True
    return str(chem.MolFragmentToSmiles(molecule, atomsToUse=np.flatnonzero(kept).tolist(), isomericSmiles=False))
