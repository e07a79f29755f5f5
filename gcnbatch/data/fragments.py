"""Counts of fragments (Morgan, Morgan of features, atom pairs) of all molecules of a chunk at once.

RDKit takes 0.3 ms a molecule for the three fingerprints. Here a round of Morgan's algorithm is a few array operations
over all atoms of the chunk. The codes of the fragments are those of RDKit, so the counts are, too.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.chunk_molecules import ChunkMolecules
from gcnbatch.data.featurizer_options import ATOM_PAIR, FEATURE
from gcnbatch.data.rdkit_binary import Ints
from gcnbatch.data.smarts import compiled
from gcnbatch.data.substructures import Patterns, Plan, Search

Codes = NDArray[np.uint32]
_GOLDEN = np.uint32(0x9E3779B9)
_BOND_CODES = np.array([0, 1, 2, 3, 12], np.uint64)  # RDKit's numbers, by the type of a bond
_ATOM_BITS = 30  # of the number of an atom in a chunk
# Gobbi's and Poppinger's features of atoms: donor, acceptor, aromatic, halogen, basic, acidic
_FEATURES = (
    "[$([N;!H0;v3,v4&+1]),$([O,S;H1;+0]),n&H1&+0]",
    "[$([O,S;H1;v2;!$(*-*=[O,N,P,S])]),$([O,S;H0;v2]),$([O,S;-]),$([N;v3;!$(N-*=[O,N,P,S])]),n&H0&+0,"
    "$([o,s;+0;!$([o,s]:n);!$([o,s]:c:n)])]",
    "[a]",
    "[F,Cl,Br,I]",
    "[#7;+,$([N;H2&+0][$([C,a]);!$([C,a](=O))]),$([N;H1&+0]([$([C,a]);!$([C,a](=O))])[$([C,a]);!$([C,a](=O))]),"
    "$([N;H0&+0]([C;!$(C(=O))])([C;!$(C(=O))])[C;!$(C(=O))])]",
    "[$([C,S](=[O,S,P])-[O;H1,-1])]",
)
# Atom pairs: elements with a type of their own; distances
_TYPED = (5, 6, 7, 8, 9, 14, 15, 16, 17, 33, 34, 35, 51, 52, 53)
_TYPES = np.full(128, len(_TYPED), np.uint32)
_TYPES[list(_TYPED)] = range(len(_TYPED))
_LONGEST = 30
_TETRAHEDRAL = 4  # RDKit's number of the hybridisation sp3


def fragments(molecules: ChunkMolecules, kind: str, radius: int) -> tuple[Ints, Codes]:
    """Return molecule and code of each fragment of a fingerprint without chirality; see `FeaturizerOptions`.

    A fingerprint counts them in column ``code % size``.
    """
    if kind == ATOM_PAIR:
        return _atom_pairs(molecules)
    layers = _morgan(molecules, _features(molecules), radius) if kind == FEATURE else circular(molecules, radius)
    molecule, codes = zip(*layers, strict=True)
    return np.concatenate(molecule), np.concatenate(codes)


def circular(molecules: ChunkMolecules, radius: int) -> list[tuple[Ints, Codes]]:
    """Return molecule and code of Morgan's fragments of radius 0, 1, …, each in a pair of arrays."""
    if len(molecules.circular) <= radius:
        molecules.circular = _morgan(molecules, _connectivity(molecules), radius)
    return molecules.circular[: radius + 1]


def _morgan(molecules: ChunkMolecules, invariants: Codes, radius: int) -> list[tuple[Ints, Codes]]:
    """Return what `circular` returns for other atoms.

    A fragment is a set of bonds. Of the atoms whose fragments are the same, or the same as a smaller one, one at most
    goes on, that with the least code.

    Parameters
    ----------
    molecules : ChunkMolecules
    invariants : uint32, (N,)
        Codes of the atoms.
    radius : int
    """
    degree, src, dst = molecules.degree, molecules.src, molecules.dst
    with_bonds = np.flatnonzero(degree)
    kind = _BOND_CODES[molecules.kind[molecules.of_edge]]
    edges = src.astype(np.uint64) << 36 | kind << 32
    own = _bits(molecules.of_edge - (np.cumsum(molecules.n_bonds) - molecules.n_bonds)[molecules.molecule[src]])
    bonds = np.zeros((len(degree), own.shape[1]), np.uint64)  # of the fragment around each atom
    seen = np.zeros(0, np.uint64)
    alive, codes = degree > 0, invariants
    layers = [(molecules.molecule, codes)]
    for layer in range(radius):
        codes = np.where(alive, _grown(molecules, edges, codes, layer), 0)
        joined = np.bitwise_or.reduceat(own | bonds[dst], molecules.first_edge[with_bonds], axis=0)
        bonds[with_bonds] |= np.where(alive[with_bonds, None], joined, 0)
        atoms = np.flatnonzero(alive)
        keys = _keys(molecules.molecule[atoms], bonds[atoms])
        kept = _new(seen, keys, codes[atoms])
        seen = np.concatenate([seen, keys[kept]])
        atoms = atoms[kept]
        alive = np.zeros(len(degree), bool)
        alive[atoms] = True
        layers.append((molecules.molecule[atoms], codes[atoms]))
    return layers


def _grown(molecules: ChunkMolecules, edges: NDArray[np.uint64], codes: Codes, layer: int) -> Codes:
    """Return the codes (N,) of the atoms with their bonds and neighbours, these in the order of their codes.

    Parameters
    ----------
    molecules : ChunkMolecules
    edges : uint64, (2 B,)
        The atom from bit 36 on, and the code of the bond from bit 32 on.
    codes : uint32, (N,)
    layer : int
    """
    pairs = np.sort(edges | codes[molecules.dst])
    kinds, neighbours = (pairs >> 32 & 15).astype(np.uint32), pairs.astype(np.uint32)
    hashed = _combined(_combined(np.zeros(1, np.uint32), kinds), neighbours)
    found = _combined(np.full(len(codes), layer, np.uint32), codes)
    atoms, number = np.flatnonzero(molecules.degree), 0
    while len(atoms):
        found[atoms] = _combined(found[atoms], hashed[molecules.first_edge[atoms] + number])
        number += 1
        atoms = atoms[molecules.degree[atoms] > number]
    return found


def _connectivity(molecules: ChunkMolecules) -> Codes:
    """Return the codes (N,) of the atoms by element, bonds, hydrogens and charge."""
    parts = (
        molecules.number,
        molecules.degree + molecules.hydrogens,
        molecules.hydrogens,
        molecules.charge,
        np.zeros(1, np.int64),  # mass that an isotope adds
    )
    codes = np.zeros(len(molecules.number), np.uint32)
    for part in parts:
        codes = _combined(codes, part.astype(np.uint32))
    return np.where(molecules.rings > 0, _combined(codes, np.ones(1, np.uint32)), codes)


def feature_patterns(plan: Plan) -> Patterns[int]:
    """Add the features of atoms to a plan; return them by the bit of each."""
    return Patterns((bit, plan.add(compiled(text))) for bit, text in enumerate(_FEATURES))


def features(search: Search, patterns: Patterns[int]) -> Codes:
    """Return the codes (N,) of the atoms: a bit for each feature."""
    codes = np.zeros(len(search.number), np.uint32)
    for bit, pattern in patterns.items():
        codes |= search.atoms(pattern).astype(np.uint32) << np.uint32(bit)
    return codes


def _features(molecules: ChunkMolecules) -> Codes:
    if molecules.features is None:
        plan, patterns = _plan()
        molecules.features = features(molecules.search(plan), patterns)
    return molecules.features


def _atom_pairs(molecules: ChunkMolecules) -> tuple[Ints, Codes]:
    """Return molecule and code of the pairs of atoms with at most 30 bonds between them."""
    degree = molecules.degree
    pi = np.where(molecules.hybridisation == _TETRAHEDRAL, 0, molecules.order.astype(np.int64) - degree)
    pi = np.where(molecules.aromatic, 1, pi)
    of_atoms = (degree % 7 | pi % 3 << 3).astype(np.uint32) | _TYPES[molecules.number] << np.uint32(5)
    distances = molecules.distances[0]
    first, second = molecules.pairs
    chosen = np.flatnonzero((first < second) & (distances <= _LONGEST))
    first, second = first[chosen], second[chosen]
    one, other = of_atoms[first], of_atoms[second]
    codes = np.zeros(1, np.uint32)
    for part in (np.minimum(one, other), distances[chosen].astype(np.uint32), np.maximum(one, other)):
        codes = _combined(codes, part)
    return molecules.molecule[first], codes


def _new(seen: NDArray[np.uint64], keys: NDArray[np.uint64], codes: Codes) -> Ints:
    """Return the places in `keys` of those that are not in `seen`; of equal ones, that of the least code."""
    ranks = (codes.astype(np.uint64) + 1 << _ATOM_BITS) | np.arange(len(keys), dtype=np.uint64)
    ranks, keys = np.concatenate([np.zeros(len(seen), np.uint64), ranks]), np.concatenate([seen, keys])
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
    least = np.minimum.reduceat(ranks[order], starts) if len(keys) else keys
    return (least[least > 0] & np.uint64((1 << _ATOM_BITS) - 1)).astype(np.int64)


def _bits(places: Ints) -> NDArray[np.uint64]:
    """Return a row of words for each place, of which this bit alone is set."""
    words = np.arange(int(places.max(initial=0)) // 64 + 1)
    bits: NDArray[np.uint64] = np.uint64(1) << (places % 64).astype(np.uint64)
    return np.where(places[:, None] // 64 == words, bits[:, None], np.uint64(0))


def _keys(molecule: Ints, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number for each row of words: those of a molecule are equal if the rows are, others never by chance."""
    odd = _odd_factors(words.shape[1] + 1)
    half = np.uint64(32)
    mixed = (words ^ words >> half) * odd[0]  # else sums of few high bits could be equal
    mixed ^= mixed >> half
    return molecule.astype(np.uint64) * odd[0] + (mixed * odd[1:]).sum(axis=1)


def _combined(codes: Codes, value: Codes) -> Codes:
    """Return Boost's hash of the codes with a value added to what they are made from."""
    return codes ^ (value + _GOLDEN + (codes << np.uint32(6)) + (codes >> np.uint32(2)))


@cache
def _odd_factors(count: int) -> NDArray[np.uint64]:
    """Return odd factors of 64 bits."""
    return np.random.default_rng(0).integers(1 << 63, size=count, dtype=np.uint64) * 2 + 1


@cache
def _plan() -> tuple[Plan, Patterns[int]]:
    plan = Plan()
    return plan, feature_patterns(plan)
