"""Gasteiger's and Marsili's partial charges of all molecules of a chunk at once, as RDKit computes them.

An atom draws charge over each of its bonds in proportion to the difference of two electronegativities, each a quadratic
polynomial of the charge. Twelve iterations, each with half the weight of the one before, equalise them. Source: J.
Gasteiger, M. Marsili, Tetrahedron 36 (1980) 3219.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.chunk_molecules import ChunkMolecules

Floats = NDArray[np.float64]
_ITERATIONS = 12
_HYDROGEN, _HYDROGEN_CATION = (7.17, 6.24, -0.56), 20.02  # the second: electronegativity of the ion
# Coefficients of the polynomial by atomic number and RDKit's number of the hybridisation: sp, sp2, sp3
_SP, _SP2, _SP3 = 2, 3, 4
_COEFFICIENTS = {
    (4, _SP2): (4.005, 6.725, 3.035),
    (4, _SP3): (3.845, 6.755, 3.165),
    (5, _SP2): (6.42, 6.807, 1.322),
    (5, _SP3): (5.98, 6.82, 1.605),
    (6, _SP): (10.39, 9.45, 0.73),
    (6, _SP2): (8.79, 9.32, 1.51),
    (6, _SP3): (7.98, 9.18, 1.88),
    (7, _SP): (15.68, 11.7, -0.27),
    (7, _SP2): (12.87, 11.15, 0.85),
    (7, _SP3): (11.54, 10.82, 1.36),
    (8, _SP2): (17.07, 13.79, 0.47),
    (8, _SP3): (14.18, 12.92, 1.39),
    (9, _SP3): (14.66, 13.85, 2.31),
    (12, _SP): (4.04, 5.472, 1.823),
    (12, _SP2): (3.565, 5.572, 2.197),
    (12, _SP3): (3.3, 5.587, 2.447),
    (13, _SP2): (5.795, 5.02, 0.695),
    (13, _SP3): (5.375, 4.953, 0.867),
    (14, _SP): (9.065, 7.027, -0.002),
    (14, _SP2): (7.905, 6.748, 0.443),
    (14, _SP3): (7.3, 6.567, 0.657),
    (15, _SP2): (9.665, 8.53, 0.735),
    (15, _SP3): (8.9, 8.24, 0.96),
    (16, _SP2): (10.88, 9.49, 1.33),
    (16, _SP3): (10.14, 9.13, 1.38),
    (17, _SP3): (11.0, 9.69, 1.35),
    (35, _SP3): (10.08, 8.47, 1.16),
    (53, _SP3): (9.9, 7.96, 0.96),
}
_SULFUR, _OXYGEN = 16, 8
_SULFONE = (12.0, 10.81, 1.2)  # sulfur of any other hybridisation with two oxygen atoms
_TABLE = np.full((119, 32, 3), np.nan)
_TABLE[_SULFUR, :] = _COEFFICIENTS[_SULFUR, _SP3]
_TABLE[_SULFUR, _SP] = np.nan
for _key, _values in _COEFFICIENTS.items():
    _TABLE[_key] = _values


def polynomials(molecules: ChunkMolecules) -> Floats:
    """Return the coefficients (N, 3) of each atom's electronegativity; NaN where there are none."""
    oxygens = np.bincount(molecules.src, molecules.number[molecules.dst] == _OXYGEN, len(molecules.number))
    others = ~np.isin(molecules.hybridisation, (_SP, _SP2, _SP3))
    coefficients = _TABLE[molecules.number, molecules.hybridisation]
    coefficients[(molecules.number == _SULFUR) & others & (oxygens == 2)] = _SULFONE
    return coefficients


def charges(molecules: ChunkMolecules, coefficients: Floats) -> Floats:
    """Return the charges (N,) of the atoms, without their hydrogens; NaN near an atom without coefficients.

    An atom without bonds and hydrogens keeps its formal charge. `coefficients` are those of `polynomials`.
    """
    src, dst, hydrogens = molecules.src, molecules.dst, molecules.hydrogens
    cation = coefficients.sum(axis=1)
    of_src, of_dst = cation[src], cation[dst]
    found, of_hydrogens = _formal(molecules), np.zeros(len(hydrogens))
    weight = 0.5
    for _ in range(_ITERATIONS):
        own = _electronegativity(coefficients.T, found)
        difference = own[dst] - own[src]
        drawn = np.bincount(src, difference / np.where(difference < 0, of_dst, of_src), len(own))
        difference = _electronegativity(_HYDROGEN, of_hydrogens / np.maximum(hydrogens, 1)) - own
        given = difference / np.where(difference < 0, _HYDROGEN_CATION, cation)
        given = np.where(hydrogens > 0, hydrogens * given, 0)
        found = found + weight * (drawn + given)
        of_hydrogens = of_hydrogens - weight * given
        weight /= 2
    return found


def _electronegativity(coefficients: tuple[float, float, float] | Floats, charge: Floats) -> Floats:
    a, b, c = coefficients
    found: Floats = a + charge * (b + c * charge)
    return found


def _formal(molecules: ChunkMolecules) -> Floats:
    """Return the charges (N,) to begin with: formal ones, shared by atoms of an element two conjugated bonds apart."""
    found = np.zeros(len(molecules.number))
    first, degree = molecules.first_edge, molecules.degree
    conjugated = molecules.conjugated[molecules.of_edge]

    def neighbours(atom: int) -> list[int]:
        edges = slice(first[atom], first[atom] + degree[atom])
        own: list[int] = molecules.dst[edges][conjugated[edges]].tolist()
        return own

    for atom in np.flatnonzero(molecules.charge).tolist():
        if found[atom]:
            continue
        sharing = [atom]
        for middle in neighbours(atom):
            sharing += [
                other
                for other in neighbours(middle)
                if other != atom and molecules.number[other] == molecules.number[atom]
            ]
        found[sharing] = molecules.charge[sharing].sum() / len(sharing)
    return found
