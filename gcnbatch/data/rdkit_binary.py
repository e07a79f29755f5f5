"""Atoms and bonds of RDKit molecules, without a Python call for each.

A call of RDKit from Python takes about 0.3 us, and each atom and bond needs a new Python object. ``Mol.ToBinary``
returns them all in one call, as ``MolPickler.cpp`` of RDKit describes it:

- 20 bytes of magic number and version, then int32 the number of atoms and of bonds, a flag and the tag of the atoms.
- An atom: atomic number, flags (aromatic, bracket, label or query follows), int32 with a bit for each value that
  follows: charge, chirality, hybridisation, explicit hydrogens, explicit and implicit valence, radicals; a byte each.
- A tag; then a bond: its two atoms, flags, and bytes for a type other than single, a direction, stereochemistry.

RDKit must read old binaries, so a version never changes. `MoleculeReader` asks RDKit atom by atom where it finds
another version, isotopes, labels, queries, or more than 255 atoms.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Any, NamedTuple

from gcnbatch.data.atom_features import HYBRIDISATIONS, Atom, AtomTable

DOUBLE, TRIPLE, AROMATIC = 2, 3, 4  # RDKit's numbers of bond types, but AROMATIC; all others are SINGLE
SINGLE = 1
_VERSION = b"\xef\xbe\xad\xde" + bytes(4) + (16).to_bytes(4, "little")
_COUNTS, _ATOMS = 20, 30
_ATOM_TAG, _BOND_TAG = 0x01, 0x0B
_BYTE_ATOMS = 255  # numbers of more atoms take 4 bytes
_BOND_STEREO = 0x02
_CHARGE, _CHIRAL, _HYBRIDISATION, _EXPLICIT_HYDROGENS = 0x02, 0x04, 0x08, 0x10
_EXPLICIT_VALENCE, _IMPLICIT_VALENCE, _RADICALS = 0x20, 0x40, 0x80
_VALUES = (_CHARGE, _CHIRAL, _HYBRIDISATION, _EXPLICIT_HYDROGENS, _EXPLICIT_VALENCE, _IMPLICIT_VALENCE, _RADICALS)
_ATOM_LENGTH = [6 + bin(flags).count("1") for flags in range(256)]
# Bytes of a bond by its flags, without stereochemistry; 0: a query, or a flag that this version does not know.
_BOND_LENGTH = [0 if flags & 0x91 else 3 + bool(flags & 0x08) + bool(flags & 0x04) for flags in range(256)]
# Type of a bond by its flags; 0: in the next byte.
_BOND_TYPE = [AROMATIC if flags & 0x40 else 0 if flags & 0x08 else SINGLE for flags in range(256)]


class Structure(NamedTuple):
    """Atoms and bonds of a molecule with N atoms and B bonds.

    Parameters
    ----------
    atoms : list of int
        Row of each atom (N) in the AtomTable.
    ends : list of int
        First and second atom of each bond (2 B).
    types : list of int
        Type of each bond (B).
    plain : bool
        No isotopes, labels, queries or unusual sizes.
    """

    atoms: list[int]
    ends: list[int]
    types: list[int]
    plain: bool


class MoleculeReader:
    """Reads molecules; atoms are numbered by `table`."""

    def __init__(self, chem: Any) -> None:
        kinds = chem.HybridizationType
        number = chem.GetPeriodicTable().GetAtomicNumber
        self.table = AtomTable(number, [int(getattr(kinds, name)) for name in HYBRIDISATIONS])
        self._tetrahedral, self._implicit = int(kinds.SP3), chem.ValenceType.IMPLICIT
        self._types = {chem.BondType.DOUBLE: DOUBLE, chem.BondType.TRIPLE: TRIPLE}
        self._rows: dict[bytes, int] = {}  # of the AtomTable, by an atom's bytes

    def read(self, molecule: Any) -> Structure:
        """Return the structure of a sanitised RDKit molecule."""
        return self._from_binary(molecule.ToBinary(0)) or self._by_calls(molecule)

    def _from_binary(self, data: bytes) -> Structure | None:
        """Return the structure in RDKit's binary form, None for what this reader does not know."""
        n_atoms, n_bonds = unpack_from("<ii", data, _COUNTS)
        if not data.startswith(_VERSION) or n_atoms > _BYTE_ATOMS or data[_ATOMS - 1] != _ATOM_TAG:
            return None
        rows, known, at = [], self._rows, _ATOMS
        for _ in range(n_atoms):
            end = at + _ATOM_LENGTH[data[at + 2]]
            record = data[at:end]
            row = known.get(record)
            if row is None:
                atom = self._atom(record)
                if atom is None:
                    return None
                row = known[record] = self.table.row(atom)
            rows.append(row)
            at = end
        if data[at] != _BOND_TAG:
            return None
        at += 1
        ends: list[int] = []
        types = []
        for _ in range(n_bonds):
            flags = data[at + 2]
            length = _BOND_LENGTH[flags]
            if not length:
                return None
            ends += data[at : at + 2]
            types.append(_BOND_TYPE[flags] or _type(data[at + 3]))
            at += length
            if flags & _BOND_STEREO:
                at += 2 + data[at + 1]
        return Structure(rows, ends, types, True)

    def _atom(self, record: bytes) -> Atom | None:
        """Return the atom of a record, None where it has an isotope, a label or a query."""
        flags, present = record[1], record[2]
        if flags & ~0x60 or present & 0x01 or any(record[3:6]):
            return None
        values = dict(zip((bit for bit in _VALUES if present & bit), record[6:], strict=True))
        charge = values.get(_CHARGE, 0)
        return Atom(
            record[0],
            charge - 256 if charge > 127 else charge,
            values.get(_HYBRIDISATION, self._tetrahedral),
            values.get(_EXPLICIT_HYDROGENS, 0),
            values.get(_IMPLICIT_VALENCE, 0),
            values.get(_RADICALS, 0),
            bool(flags & 0x40),
            bool(flags & 0x20),
        )

    def _by_calls(self, molecule: Any) -> Structure:
        rows = []
        for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())):
            values = Atom(
                atom.GetAtomicNum(),
                atom.GetFormalCharge(),
                int(atom.GetHybridization()),
                atom.GetNumExplicitHs(),
                atom.GetValence(self._implicit),
                atom.GetNumRadicalElectrons(),
                atom.GetIsAromatic(),
                atom.GetNoImplicit(),
            )
            rows.append(self.table.row(values))
        ends: list[int] = []
        types = []
        for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
            ends += (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())
            types.append(AROMATIC if bond.GetIsAromatic() else self._types.get(bond.GetBondType(), SINGLE))
        return Structure(rows, ends, types, False)


def _type(number: int) -> int:
    return number if number in (DOUBLE, TRIPLE) else SINGLE
