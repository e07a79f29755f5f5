"""Descriptors that take a matrix of each molecule: BCUT2D, Ipc, EState, Balaban's J and Bertz' complexity.

`gcnbatch.data.descriptors` computes all others. Molecules of one size are stacked.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.chunk_molecules import FAR, ORDERS, ChunkMolecules
from gcnbatch.data.sparse import row_pointer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NO_PATH = 1e8  # RDKit's distance of atoms that are not connected
_MOST_BONDS = 127  # of a shortest path in a usual molecule
_LONGEST_ROW = 100  # distances that decide whether BertzCT takes two atoms for alike
_CLOSENESS = np.append(1 / np.arange(1, _MOST_BONDS + 2) ** 2, 0)  # of two atoms, by the bonds between; 0 without path
_APART = 0.001  # in Burden's matrix, of atoms without a bond
_NUMBERS = 119  # atomic numbers
_BCUT = ("BCUT2D_MW{}", "BCUT2D_CHG{}", "BCUT2D_LOGP{}", "BCUT2D_MR{}")
_BCUT_ENDS = (("HI", "LOW"), ("HI", "LO"), ("HI", "LOW"), ("HI", "LOW"))


def of_matrices(
    molecules: ChunkMolecules, of_atoms: Floats, outer: Ints, shell: Ints, lacks_burden: NDArray[np.bool_]
) -> tuple[dict[str, NDArray[Any]], Floats]:
    """Return the values (G,) of these descriptors by name, and the EState index (N,) of each atom.

    Parameters
    ----------
    molecules : ChunkMolecules
        G molecules with N atoms.
    of_atoms : float64, (4, N)
        Diagonals of Burden's matrices: mass, charge, and contributions to logP and molar refractivity.
    outer, shell : int64, (N,)
        Outer electrons, and principal quantum number.
    lacks_burden : bool, (G,)
        Molecules whose BCUT2D are missing.
    """
    count = len(molecules.number)
    estate, likeness = np.zeros(count), np.zeros(count, np.uint64)
    to_all = np.zeros(count)  # Balaban's sums of distances, in which a bond has the reciprocal of its order
    bonds, by_order = molecules.distances
    closeness = _CLOSENESS[np.minimum(bonds, len(_CLOSENESS) - 1)]
    own_estate = _own_estate(molecules, outer, shell)
    half = -(-int(molecules.n_atoms.max()) // 2)
    sums, products = np.zeros((2, molecules.size, half))
    bcut = np.zeros((molecules.size, 4, 2))
    bonds_before = row_pointer(molecules.n_bonds)
    for size, own in molecules.groups:
        shape = (own.stop - own.start, size, size)
        pairs = slice(molecules.squares[own.start], molecules.squares[own.stop])
        atoms = slice(molecules.starts[own.start], molecules.starts[own.start] + shape[0] * size)
        bonds = slice(bonds_before[own.start], bonds_before[own.stop])
        first, place = molecules.starts[own], molecules.of_bond[bonds] - own.start
        i, j = (molecules.ends[bonds] - first[place][:, None]).T
        matrices = np.zeros((shape[0], 5, size, size))
        matrices[place, 0, i, j] = matrices[place, 0, j, i] = 1
        matrices[:, 1:] = _APART
        weights = (1 / np.sqrt(ORDERS[molecules.kind[bonds]]))[:, None]
        matrices[place, 1:, i, j] = matrices[place, 1:, j, i] = weights
        diagonal = np.arange(size)
        matrices[:, 1:, diagonal, diagonal] = of_atoms[:, atoms].reshape(4, -1, size).transpose(1, 0, 2)
        values = np.linalg.eigvalsh(matrices)
        low, high = values[:, 0, : size // 2], values[:, 0, ::-1][:, : size // 2]
        sums[own, : size // 2], products[own, : size // 2] = low + high, low * high
        if size % 2:
            sums[own, size // 2] = values[:, 0, size // 2]
        bcut[own] = values[:, 1:, [-1, 0]]
        estate[atoms] = _estate(own_estate[atoms].reshape(shape[:2]), closeness[pairs].reshape(shape)).ravel()
        of_pairs = by_order[pairs].reshape(shape)
        no_path = (of_pairs == FAR).sum(axis=1)
        to_all[atoms] = ((of_pairs.sum(axis=1) - FAR * no_path) / 6 + _NO_PATH * no_path).ravel()
        likeness[atoms] = _hashed(of_pairs).ravel()
    bcut[lacks_burden] = np.nan
    found = {
        name.format(end): bcut[:, row, column]
        for row, (name, ends) in enumerate(zip(_BCUT, _BCUT_ENDS, strict=True))
        for column, end in enumerate(ends)
    }
    found |= _ipc(sums, products)
    cycles = molecules.n_bonds - molecules.n_atoms + 1
    links = np.bincount(molecules.of_bond, 1 / np.sqrt(to_all[molecules.ends].prod(axis=1)), molecules.size)
    found["BalabanJ"] = np.where(cycles != -1, molecules.n_bonds / (cycles + 1) * links, 0)
    found["BertzCT"] = _bertz(molecules, likeness)
    return found, estate


def _ipc(sums: Floats, products: Floats) -> dict[str, NDArray[Any]]:
    """Compute the information content of the coefficients of characteristic polynomials.

    The lowest and the highest eigenvalue make a quadratic factor, then the next ones. In a graph without odd rings
    they are opposite, so no factor has a linear term and nothing cancels: the error stays near rounding.

    Parameters
    ----------
    sums, products : float64, (G, n / 2)
        Of the two eigenvalues of each pair; 0 for pairs beyond the size of a molecule.
    """
    polynomial = np.zeros((len(sums), 2 * sums.shape[1] + 3))
    polynomial[:, 2] = 1  # after two zeros, which stand for what precedes the first coefficient
    for place in range(sums.shape[1]):
        end = 5 + 2 * place
        change = products[:, place, None] * polynomial[:, : end - 2]
        change -= sums[:, place, None] * polynomial[:, 1 : end - 1]
        polynomial[:, 2:end] += change
    sizes = abs(polynomial)
    total = sizes.sum(axis=1)
    share = sizes / total[:, None]
    average = -(share * np.log2(np.where(share > 0, share, 1))).sum(axis=1)
    return {"Ipc": total * average, "AvgIpc": average}


def _own_estate(molecules: ChunkMolecules, outer: Ints, shell: Ints) -> Floats:
    """Return the intrinsic state of each atom, (N,)."""
    valence = outer - molecules.hydrogens
    return np.where(molecules.degree > 0, (4 / shell**2 * valence + 1) / np.maximum(molecules.degree, 1), 0)


def _estate(own: Floats, closeness: Floats) -> Floats:
    """Return the EState indices (k, n) of the states (k, n) of k molecules; `closeness` (k, n, n) weighs each pair."""
    return own + ((own[:, :, None] - own[:, None, :]) * closeness).sum(axis=2)


def _bertz(molecules: ChunkMolecules, likeness: NDArray[np.uint64]) -> Floats:
    """Compute Bertz' complexity: the entropies of elements, and of pairs of bonds that meet, by alike atoms."""
    order = ORDERS[molecules.kind]
    multiple = order > 1
    # An odd factor of 64 bits keeps the molecules apart.
    own = likeness + molecules.molecule.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    _, alike = np.unique(own, return_inverse=True)
    last = np.searchsorted(molecules.src, molecules.src, "right")
    counts = last - np.arange(len(molecules.src)) - 1
    one = np.repeat(np.arange(len(molecules.src)), counts)  # each pair of bonds of an atom once
    other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(counts) - counts, counts)
    orders = order[molecules.of_edge]
    base = len(alike) + 1
    pairs = (
        _unordered(alike[molecules.dst[one]], alike[molecules.dst[other]], base) * base + alike[molecules.src[one]] + 1
    )
    first, second = alike[molecules.ends[multiple]].T
    doubles = _unordered(first, second, base) * base
    connections = _information(
        molecules,
        np.concatenate([molecules.of_bond[multiple], molecules.molecule[molecules.src[one]]]),
        np.concatenate([doubles, pairs]),
        np.concatenate([order[multiple] * (order[multiple] - 1) / 2, orders[one] * orders[other]]),
        times=2,
    )
    elements = _information(
        molecules,
        molecules.molecule,
        molecules.molecule * _NUMBERS + molecules.number,
        np.ones(len(molecules.number)),
        times=1,
    )
    return np.where(molecules.n_atoms > 1, connections + elements, 0)


def _unordered(one: Ints, other: Ints, base: int) -> Ints:
    return np.minimum(one, other) * base + np.maximum(one, other)


def _information(molecules: ChunkMolecules, molecule: Ints, keys: Ints, weights: Floats, times: int) -> NDArray[Any]:
    """Return T (`times` log2 T) - sum w log2 w of each molecule: w the weights of equal keys, T of all.

    Different molecules have different keys.
    """
    _, place, inverse = np.unique(keys, return_index=True, return_inverse=True)
    sizes = np.bincount(inverse, weights, len(place))
    total = np.bincount(molecule[place], sizes, molecules.size)
    inner = np.bincount(molecule[place], sizes * np.log2(np.where(sizes > 0, sizes, 1)), molecules.size)
    return times * total * np.log2(np.where(total > 0, total, 1)) - inner


def _hashed(distances: NDArray[np.uint16]) -> NDArray[np.uint64]:
    """Return a number (k, n) for each atom of k molecules: equal if their sorted distances (k, n, n) are."""
    rows = np.sort(distances, axis=2)[:, :, :_LONGEST_ROW].astype(np.uint64)
    return (rows * _weights()[: rows.shape[2]]).sum(axis=2)


@cache
def _weights() -> NDArray[np.uint64]:
    return np.random.default_rng(0).integers(1 << 63, size=_LONGEST_ROW, dtype=np.uint64)
