"""Atoms and bonds of RDKit molecules, without a Python call for each.

A call of RDKit from Python takes about 0.3 us, and each atom and bond needs a new Python object. ``Mol.ToBinary``
returns them all in one call, as ``MolPickler.cpp`` of RDKit describes it:

- 20 bytes of magic number and version, then int32 the number of atoms and of bonds, a flag and the tag of the atoms.
- An atom: atomic number, flags (aromatic, bracket, label or query follows), int32 with a bit for each value that
  follows: charge, chirality, hybridisation, explicit hydrogens, explicit and implicit valence, radicals; a byte each.
- A tag; then a bond: its two atoms, flags, and bytes for a type other than single, a direction, stereochemistry.

Few atoms differ, so the bytes of an atom's record are looked up as they are. An import of Tox21 takes a quarter less
processor time so than by calls.

RDKit must read old binaries, so a version never changes. `MoleculeReader` asks RDKit atom by atom where it finds
another version, isotopes, labels, queries, or more than 255 atoms.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import and_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import HYBRIDISATIONS, Atom, AtomTable

DOUBLE, TRIPLE, AROMATIC = 2, 3, 4  # RDKit's numbers of bond types, but AROMATIC; all others are SINGLE
SINGLE = 1
_VERSION = b"\xef\xbe\xad\xde" + bytes(4) + (16).to_bytes(4, "little")
_COUNTS, _ATOMS = 20, 30
_ATOM_TAG, _BOND_TAG = 0x01, 0x0B
_SMALL = bytes(3)  # of the number of atoms: beyond 255, numbers of atoms take 4 bytes
_CHARGE, _CHIRAL, _HYBRIDISATION, _EXPLICIT_HYDROGENS = 0x02, 0x04, 0x08, 0x10
_EXPLICIT_VALENCE, _IMPLICIT_VALENCE, _RADICALS = 0x20, 0x40, 0x80
_VALUES = (_CHARGE, _CHIRAL, _HYBRIDISATION, _EXPLICIT_HYDROGENS, _EXPLICIT_VALENCE, _IMPLICIT_VALENCE, _RADICALS)
_IS_AROMATIC = 0x40
_ODD_ATOM = bytes.fromhex("009f01ffffff")  # bits of the first 6 bytes that mean labels, queries, isotopes
_BOND_STEREO, _BOND_TYPE, _BOND_DIRECTION, _BOND_AROMATIC, _BOND_OTHER = 0x02, 0x08, 0x04, 0x40, 0x91
# By the byte that decides the length of a record: the length, of a bond without its stereochemistry
_ATOM_LENGTHS = [6 + bits.bit_count() for bits in range(256)]
_BOND_LENGTHS = [3 + (bits & _BOND_TYPE > 0) + (bits & _BOND_DIRECTION > 0) for bits in range(256)]
Ints = NDArray[np.int64]


class Structure(NamedTuple):
    """Atoms and bonds of one molecule: rows in the AtomTable, both ends of each bond after each other, its type."""

    atoms: list[int]
    ends: list[int]
    types: list[int]


class Structures(NamedTuple):
    """Atoms and bonds of G molecules with N atoms and B bonds together.

    Parameters
    ----------
    n_atoms, n_bonds : int64, (G,)
    atoms : int64, (N,)
        Row of each atom in the AtomTable.
    ends : int64, (B, 2)
        First and second atom of each bond, counted in its molecule.
    types : int64, (B,)
    """

    n_atoms: Ints
    n_bonds: Ints
    atoms: Ints
    ends: Ints
    types: Ints

    def of(self, molecules: NDArray[np.bool_]) -> Structures:
        """Return those of the molecules (G,) that are true."""
        atoms, bonds = np.repeat(molecules, self.n_atoms), np.repeat(molecules, self.n_bonds)
        counts = self.n_atoms[molecules], self.n_bonds[molecules]
        return Structures(*counts, self.atoms[atoms], self.ends[bonds], self.types[bonds])

    @classmethod
    def joined(cls, parts: Sequence[Structure]) -> Structures:
        """Return the molecules of all parts."""
        atoms, ends, types = ([one for part in parts for one in part[place]] for place in range(3))
        return cls(
            np.array([len(part.atoms) for part in parts], np.int64),
            np.array([len(part.types) for part in parts], np.int64),
            np.array(atoms, np.int64),
            np.array(ends, np.int64).reshape(-1, 2),
            np.array(types, np.int64),
        )

    def in_order(self, orders: Sequence[str]) -> Structures:
        """Return the molecules with sorted bonds, and all atoms in these orders (`NormalForm.order`) or as they are."""
        starts = np.cumsum(self.n_atoms) - self.n_atoms
        first = np.repeat(starts, self.n_atoms)
        places = atoms = np.arange(len(first))
        if any(orders):
            atoms = first + np.fromstring(",".join([order.strip("[,]") for order in orders]), np.int64, sep=",")
            places = np.empty_like(atoms)
            places[atoms] = np.arange(len(atoms))
        ends = np.sort((places - first)[np.repeat(starts, self.n_bonds)[:, None] + self.ends], axis=1)
        by = np.lexsort((ends[:, 1], ends[:, 0], np.repeat(np.arange(len(starts)), self.n_bonds)))
        return self._replace(atoms=self.atoms[atoms], ends=ends[by], types=self.types[by])


class MoleculeReader:
    """Reads molecules; atoms are numbered by `table`.

    `as_written`: atoms get the implicit valence that RDKit counts; otherwise, their number of hydrogens.
    """

    def __init__(self, chem: Any, as_written: bool) -> None:
        kinds = chem.HybridizationType
        number = chem.GetPeriodicTable().GetAtomicNumber
        self.table = AtomTable(number, [int(getattr(kinds, name)) for name in HYBRIDISATIONS])
        self._chem, self._implicit, self._as_written = chem, chem.ValenceType.IMPLICIT, as_written
        self._tetrahedral = int(kinds.SP3)
        self._types = {chem.BondType.DOUBLE: DOUBLE, chem.BondType.TRIPLE: TRIPLE}
        self._rows: dict[bytes, int] = {}  # of the AtomTable, by an atom's record; -1 for one of labels or the like

    def read(self, molecule: Any) -> Structure:
        """Return atoms and bonds of a sanitised RDKit molecule."""
        return self._decoded(molecule.ToBinary(0)) or self._by_calls(molecule)

    def _decoded(self, data: bytes) -> Structure | None:
        """Return atoms and bonds of a binary form; None if it is not a usual one."""
        if not (data.startswith(_VERSION) and data.startswith(_SMALL, _COUNTS + 1) and data[_ATOMS - 1] == _ATOM_TAG):
            return None
        n_atoms, n_bonds = struct.unpack_from("<ii", data, _COUNTS)
        at, rows, known = _ATOMS, list[int](), self._rows
        for _ in range(n_atoms):
            end = at + _ATOM_LENGTHS[data[at + 2]]
            record = data[at:end]
            if (row := known.get(record)) is None:
                odd = any(map(and_, record, _ODD_ATOM))
                row = known[record] = -1 if odd else self.table.row(self._atom(record))
            rows.append(row)
            at = end
        if -1 in rows or data[at] != _BOND_TAG:
            return None
        at += 1
        ends, types = list[int](), list[int]()
        for _ in range(n_bonds):
            flags = data[at + 2]
            if flags & _BOND_OTHER:
                return None
            ends += data[at : at + 2]
            kind = data[at + 3] if flags & _BOND_TYPE else SINGLE
            types.append(AROMATIC if flags & _BOND_AROMATIC else kind if kind in (DOUBLE, TRIPLE) else SINGLE)
            at += _BOND_LENGTHS[flags]
            if flags & _BOND_STEREO:
                if not flags & _BOND_TYPE:  # only double bonds have stereochemistry
                    return None
                at += 2 + data[at + 1]  # a byte, a number of atoms and these
        return Structure(rows, ends, types)

    def _atom(self, record: bytes) -> Atom:
        number, flags, present, *_ = record
        values = dict(zip((bit for bit in _VALUES if present & bit), record[6:], strict=True))
        charge, implicit = values.get(_CHARGE, 0), values.get(_IMPLICIT_VALENCE, 0)
        hydrogens = values.get(_EXPLICIT_HYDROGENS, 0) + implicit
        return Atom(
            number,
            charge - 256 if charge > 127 else charge,
            values.get(_HYBRIDISATION, self._tetrahedral),
            hydrogens,
            implicit if self._as_written else hydrogens,
            values.get(_RADICALS, 0),
            bool(flags & _IS_AROMATIC),
        )

    def _by_calls(self, molecule: Any) -> Structure:
        rows = []
        for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())):
            hydrogens = atom.GetTotalNumHs()
            values = Atom(
                atom.GetAtomicNum(),
                atom.GetFormalCharge(),
                int(atom.GetHybridization()),
                hydrogens,
                atom.GetValence(self._implicit) if self._as_written else hydrogens,
                atom.GetNumRadicalElectrons(),
                atom.GetIsAromatic(),
            )
            rows.append(self.table.row(values))
        ends: list[int] = []
        types = []
        for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
            ends += (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())
            types.append(AROMATIC if bond.GetIsAromatic() else self._types.get(bond.GetBondType(), SINGLE))
        return Structure(rows, ends, types)
