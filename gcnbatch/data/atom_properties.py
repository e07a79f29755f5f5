"""Features of atoms and bonds beyond elements and types: rings, stereochemistry, conjugation and mass.

They are computed for all molecules of a chunk. RDKit is asked for what its binary form does not say, one molecule after
the other: of few molecules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import BOND_PROPERTIES, EXTENDED_NAMES, RING_SIZES
from gcnbatch.data.normal_form import NormalForm, load_rdkit
from gcnbatch.data.rdkit_binary import Structures
from gcnbatch.data.sparse import row_pointer

_ELEMENTS = 119  # of RDKit's periodic table, with "*"
_MASS = 100.0  # unit of the mass, so that it is about 1, as other features are
_CHIRAL, _FIRST_CHIRAL = ("R", "S"), EXTENDED_NAMES.index("chirality=R")
_TURNS = {"Z": (2, 4), "E": (3, 5)}  # RDKit's numbers: STEREOZ and STEREOCIS, STEREOE and STEREOTRANS
_ISOTOPE = re.compile(r"\[\d")


class Properties(NamedTuple):
    """What RDKit must be asked for of the atoms and bonds of a molecule, as `Structures` do not have it.

    Parameters
    ----------
    chirality : list of (int, int)
        Atom, and 0 for R or 1 for S.
    isotopes : list of (int, float)
        Atom, and its mass.
    """

    chirality: Sequence[tuple[int, int]] = ()
    isotopes: Sequence[tuple[int, float]] = ()


def ask_properties(form: NormalForm) -> Properties:
    """Return what no array of a sanitised RDKit molecule has; its name tells what there is to ask for."""
    molecule, name, _ = form
    isotopes: Sequence[tuple[int, float]] = ()
    chirality = chirality_of(molecule) if not name or "@" in name else []
    if not name or _ISOTOPE.search(name):
        isotopes = [(atom.GetIdx(), atom.GetMass()) for atom in molecule.GetAtoms() if atom.GetIsotope()]
    places = form.places([atom for atom, _ in chirality])
    return Properties([(place, code) for place, (_, code) in zip(places, chirality, strict=True)], isotopes)


def chirality_of(molecule: Any) -> list[tuple[int, int]]:
    """Return the atoms that RDKit has assigned a chirality to, and 0 for R or 1 for S."""
    load_rdkit().CreateAtomStringPropertyList(molecule, "_CIPCode")  # of all atoms in one call
    codes = molecule.GetProp("atom.prop._CIPCode").split()
    molecule.ClearProp("atom.prop._CIPCode")
    return [(number, _CHIRAL.index(code)) for number, code in enumerate(codes) if code in _CHIRAL]


@cache
def atomic_weights() -> NDArray[np.float64]:
    """Return the weights of RDKit's periodic table in u, by atomic number; 0 of ``*``."""
    from rdkit import Chem

    weight = Chem.GetPeriodicTable().GetAtomicWeight
    return np.array([weight(number) for number in range(_ELEMENTS)])


def extended_atoms(
    structures: Structures, numbers: NDArray[np.int64], asked: Sequence[Properties]
) -> NDArray[np.float32]:
    """Return the features (N, 11) of EXTENDED_NAMES of the atoms of all molecules.

    Parameters
    ----------
    structures : Structures
    numbers : int64, (N,)
        Atomic numbers.
    asked : sequence of Properties
        Of the same molecules.
    """
    starts = row_pointer(structures.n_atoms)[:-1]
    ring_atoms = structures.ring_atoms + np.repeat(np.repeat(starts, structures.n_rings), structures.ring_sizes)
    sizes = np.repeat(structures.ring_sizes, structures.ring_sizes)
    count = np.bincount(ring_atoms, minlength=len(numbers))
    x = np.zeros((len(numbers), len(EXTENDED_NAMES)), np.float32)
    x[:, 0], x[:, 1] = count > 0, count
    for column, size in enumerate(RING_SIZES, 2):
        x[ring_atoms[sizes == size], column] = 1
    mass = atomic_weights()[numbers]
    for start, one in zip(starts.tolist(), asked, strict=True):
        for atom, code in one.chirality:
            x[start + atom, _FIRST_CHIRAL + code] = 1
        for atom, own in one.isotopes:
            mass[start + atom] = own
    x[:, -1] = mass / _MASS
    return x


def property_bonds(
    structures: Structures, properties: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the number (G,), the ends (b, 2) and the channel (b,), from 0 on, of the bonds with each property.

    A bond appears once for each of its properties; bonds are in the order of `structures`.
    """
    n_bonds = structures.n_bonds
    in_ring = np.zeros(len(structures.ends), bool)
    in_ring[structures.ring_bonds()] = True
    has = {"ring": in_ring, "conjugated": structures.conjugated}
    has |= {turn: np.isin(structures.stereo, numbers) for turn, numbers in _TURNS.items()}
    columns = [has[name] for one in properties for name in BOND_PROPERTIES[one]]
    bonds, channels = np.nonzero(np.stack(columns, axis=1))
    molecule = np.repeat(np.arange(len(n_bonds)), n_bonds)
    return np.bincount(molecule[bonds], minlength=len(n_bonds)), structures.ends[bonds], channels
