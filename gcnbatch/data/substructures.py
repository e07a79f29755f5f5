"""Substructure search over all molecules of a chunk at once: SMARTS patterns, matched by array operations.

RDKit's matcher takes one molecule and one pattern a call; hundreds of patterns cost a millisecond a molecule. Here the
expressions of all patterns are evaluated together, for all atoms and bonds of the chunk. Patterns of which an atom is
nowhere in it are not searched for. A search begins at the rarest atom; a step is a join of all partial matches in the
chunk with the bonds that can continue them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import compress, zip_longest
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.smarts import Expression, Pattern, compiled, joint

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Key = TypeVar("Key")
_LEAST = ("bonds", "ring bonds")  # primitives of which an atom has at least a number; it has exactly one of the others
_TRUE = np.uint64(0x0101010101010101)  # of 8 atoms
_LETTERS = ("*", "isotope", "a", "A", "in ring", "#", "D", "X", "H", "v", "R", "charge", *_LEAST)


class Searched(NamedTuple):
    """A pattern of a plan: the literal of each atom, and (first atom, second atom, kind) for each bond."""

    atoms: tuple[int, ...]
    bonds: tuple[tuple[int, int, int], ...]


class Patterns(dict[Key, Searched]):
    """Patterns of a plan by key."""

    @cached_property
    def literals(self) -> tuple[Ints, Ints]:
        """The literals of the atoms of all patterns, and the first one of each."""
        sizes = np.array([len(one.atoms) for one in self.values()], np.int64)
        return np.array([literal for one in self.values() for literal in one.atoms], np.int64), sizes.cumsum() - sizes


class _Level(NamedTuple):
    """Expressions whose parts have lower levels.

    Parameters
    ----------
    found : int64 (n,)
        Literals that are true where all their parts are.
    parts : list of int64
        Literals of the first part of each, then of the second part of those that have one, and so on.
    recursive : Patterns
        By the literal that is true for the first atoms of their matches.
    """

    found: Ints
    parts: list[Ints]
    recursive: Patterns[int]


class Plan:
    """Patterns that are searched for together: every expression in them is evaluated once, level by level.

    Literal 2n is the n-th expression of atoms, 2n + 1 its negation. All patterns must be added before the first search.
    """

    def __init__(self) -> None:
        self.primitives: list[tuple[int, str, int]] = []  # literal, letter and number
        self.kinds: dict[Expression, int] = {}  # expressions of bonds
        self._literals: dict[Expression, int] = {}
        self._level: list[int] = []  # of each expression
        self._joints: list[tuple[int, list[int]]] = []  # literals, and those that all must hold
        self._recursive: dict[int, Searched] = {}

    def add(self, pattern: Pattern) -> Searched:
        """Return the pattern as a search takes it."""
        atoms = []
        for atom, bonds, ring_bonds in zip(pattern.atoms, pattern.degrees, pattern.ring_degrees, strict=True):
            least = [("bonds", bonds)] * (bonds > 1) + [("ring bonds", ring_bonds)] * (ring_bonds > 0)
            atoms.append(self._literal(joint("and", [atom, *least])))
        bonds_of = []
        for place, (first, second, bond) in enumerate(pattern.bonds):
            of_bond = ("and", bond, ("@", 0)) if place in pattern.ring_bonds else bond
            bonds_of.append((first, second, self.kinds.setdefault(of_bond, len(self.kinds))))
        return Searched(tuple(atoms), tuple(bonds_of))

    @cached_property
    def compared(self) -> tuple[Ints, Ints, Mask, NDArray[np.int16]]:
        """Of the n primitives: literals, places in _LETTERS, whether a value may be larger, and numbers; each (n,)."""
        literals, letters, numbers = zip(*self.primitives, strict=True)
        places = [_LETTERS.index(letter) for letter in letters]
        return np.array(literals), np.array(places), np.isin(letters, _LEAST), np.array(numbers, np.int16)

    @property
    def size(self) -> int:
        """Number of expressions."""
        return len(self._level)

    @cached_property
    def levels(self) -> list[_Level]:
        """The expressions that are not primitives, in the order of their evaluation."""
        found = []
        for level in range(1, max(self._level, default=0) + 1):
            joints = [(literal, parts) for literal, parts in self._joints if self._level[literal >> 1] == level]
            recursive = Patterns(
                (literal, one) for literal, one in self._recursive.items() if self._level[literal >> 1] == level
            )
            joints.sort(key=lambda one: -len(one[1]))
            columns = zip_longest(*(parts for _, parts in joints))
            parts = [np.array([part for part in column if part is not None], np.int64) for column in columns]
            found.append(_Level(np.array([literal for literal, _ in joints], np.int64), parts, recursive))
        return found

    def _literal(self, expression: Expression) -> int:
        """Return the literal of an expression of atoms."""
        name, *parts = expression
        if name == "not":
            return self._literal(parts[0]) ^ 1
        if expression in self._literals:
            return self._literals[expression]
        if name in ("and", "or"):
            negated = int(name == "or")  # a or b = not (not a and not b)
            own = [self._literal(part) ^ negated for part in parts]
            literal = self._new(own) ^ negated
            self._joints.append((literal, own))
            literal ^= negated
        elif name == "$":
            pattern = self.add(compiled(parts[0]))
            literal = self._new(pattern.atoms)
            self._recursive[literal] = pattern
        else:
            literal = self._new(())
            self.primitives.append((literal, name, parts[0]))
        self._literals[expression] = literal
        return literal

    def _new(self, parts: Iterable[int]) -> int:
        """Return the literal of a new expression of these parts."""
        self._level.append(1 + max((self._level[part >> 1] for part in parts), default=-1))
        return 2 * (len(self._level) - 1)


class Search:
    """The atoms (N,) and bonds of the molecules of a chunk, and which of them the expressions of a plan hold for.

    Parameters
    ----------
    plan : Plan
    size : int
        Number of molecules, G.
    molecule, number, charge, hydrogens : int64, (N,)
        Position of the atom's molecule, atomic number, charge and number of hydrogens, which are no atoms.
    aromatic : bool, (N,)
    src, dst : int64, (2 B,)
        Both directions of each bond, counted over all molecules, sorted by `src`, then `dst`.
    kind : int64, (2 B,)
        1, 2, 3; 4 for aromatic bonds.
    in_ring : bool, (2 B,)
    rings : int64, (N,)
        Number of rings of each atom, of the smallest set of smallest rings.
    """

    def __init__(
        self,
        plan: Plan,
        size: int,
        molecule: Ints,
        number: Ints,
        charge: Ints,
        hydrogens: Ints,
        aromatic: Mask,
        src: Ints,
        dst: Ints,
        kind: Ints,
        in_ring: Mask,
        rings: Ints,
    ) -> None:
        self.size, self.molecule, self.number, self._plan = size, molecule, number, plan
        count = len(number)
        self.degree = np.bincount(src, minlength=count)
        self._key = src * count + dst
        # Neighbours of each atom, padded with atom 0; `_bonds`: if the bond to each is of a kind; never to padding
        place = np.arange(len(src)) - (np.cumsum(self.degree) - self.degree)[src]
        self._neighbours = np.zeros((count, int(self.degree.max(initial=0))), np.int64)
        self._neighbours[src, place] = dst
        self._kinds = _kinds_of(plan.kinds, kind, in_ring)
        self._bonds = np.zeros((len(self._kinds), *self._neighbours.shape), bool)
        self._bonds[:, src, place] = self._kinds
        orders = np.bincount(src, np.array([0, 1, 2, 3, 1.5])[kind], count)
        none = np.zeros(count, np.int64)
        values = {
            "*": none,
            "isotope": none - 1,  # molecules with isotopes are not searched
            "a": ~aromatic,
            "A": aromatic,
            "in ring": rings == 0,
            "#": number,
            "D": self.degree,
            "X": self.degree + hydrogens,
            "H": hydrogens,
            "v": orders.astype(np.int64) + hydrogens,
            "R": rings,
            "charge": charge,
            "bonds": self.degree,
            "ring bonds": np.bincount(src[in_ring], minlength=count),
        }
        literals, letters, is_least, numbers = plan.compared
        own = np.array([values[letter] for letter in _LETTERS], np.int16)[letters]
        # The masks of the literals, the same memory as words of 8 atoms, and whether a mask is true for any atom
        words = np.zeros((2 * plan.size, -(-count // 8)), np.uint64)
        self._masks = words.view(bool)[:, :count]
        self._some = np.zeros(2 * plan.size, bool)
        holds = own == numbers[:, None]
        holds[is_least] = own[is_least] >= numbers[is_least, None]
        self._set(literals, holds)
        self._counts: dict[int, int] = {}
        for level in plan.levels:
            if len(level.found):
                joint = words[level.parts[0]]
                for parts in level.parts[1:]:
                    joint[: len(parts)] &= words[parts]
                words[level.found], words[level.found ^ 1] = joint, joint ^ _TRUE
                self._note(level.found)
            if level.recursive:
                literals = np.array(list(level.recursive))
                self._set(literals, False)
                for literal in self.possible(level.recursive):
                    first = self.matches(level.recursive[literal])[0]
                    self._masks[literal, first], self._masks[literal ^ 1, first] = True, False
                self._note(literals)

    def _set(self, literals: Ints, masks: Any) -> None:
        self._masks[literals], self._masks[literals ^ 1] = masks, ~np.asarray(masks)
        self._note(literals)

    def _note(self, literals: Ints) -> None:
        """Note which literals and negated ones are true for any atom."""
        self._some[literals] = self._masks[literals].any(axis=1)
        self._some[literals ^ 1] = ~self._masks[literals].all(axis=1)

    def atoms(self, pattern: Searched) -> Mask:
        """Return which atoms (N,) can be the only atom of a pattern."""
        mask: Mask = self._masks[pattern.atoms[0]]
        return mask

    def possible(self, patterns: Patterns[Key]) -> Iterator[Key]:
        """Yield the patterns of which each atom is somewhere in the chunk."""
        literals, starts = patterns.literals
        yield from compress(patterns, np.logical_and.reduceat(self._some[literals], starts).tolist())

    def count(self, pattern: Searched) -> Ints:
        """Return the number of matches in each molecule (G,); matches with the same atoms count once."""
        columns = self.matches(pattern)
        first = columns[0]
        if len(columns) > 1 and len(first):
            weights = _weights(len(self.number).bit_length())
            sets = weights[first]
            for column in columns[1:]:
                sets = sets + weights[column]
            first = first[np.unique(sets, return_index=True)[1]]
        return np.bincount(self.molecule[first], minlength=self.size)

    def matches(self, pattern: Searched, among: Mask | None = None) -> list[Ints]:
        """Return every match, in each order that matches: for each atom of the pattern, one of the chunk.

        `among` (N,) limits the first atom.
        """
        counts = [self._count(literal) for literal in pattern.atoms]
        start = 0 if among is not None else counts.index(min(counts))
        mask = self._masks[pattern.atoms[start]]
        found = np.flatnonzero(mask if among is None else mask & among)[None]
        rows, left = {start: 0}, list(pattern.bonds)  # of `found`, by the pattern's atom that they hold
        while left and found.size:
            bond = min(left, key=lambda one: _cost(one, rows, counts))
            left.remove(bond)
            first, second, kind = bond
            if first in rows and second in rows:
                found = self._closed(found, rows[first], rows[second], kind)
                continue
            known, new = (first, second) if first in rows else (second, first)
            found = self._extended(found, rows[known], pattern.atoms[new], kind)
            rows[new] = len(rows)
        if left:
            return [np.zeros(0, np.int64)] * len(pattern.atoms)
        return [found[rows[atom]] for atom in range(len(pattern.atoms))]

    # -------------------------------------------------------------------------------------------- internals

    def _count(self, literal: int) -> int:
        """Return the number of atoms that a literal holds for."""
        if literal not in self._counts:
            self._counts[literal] = int(np.count_nonzero(self._masks[literal]))
        return self._counts[literal]

    def _extended(self, found: Ints, known: int, literal: int, kind: int) -> Ints:
        """Add a row to matches (k, n): the atoms that a literal holds for, with this bond to those of row `known`."""
        atoms = found[known]
        neighbours = self._neighbours.take(atoms, axis=0)
        fits = self._masks[literal].take(neighbours)
        fits &= self._bonds[kind].take(atoms, axis=0)
        places = fits.ravel().nonzero()[0]
        added = neighbours.ravel().take(places)
        found = found.take(places // neighbours.shape[1], axis=1)
        extended = np.concatenate([found, added[None]])
        if len(found) == 1:
            return extended
        distinct = (found != added).all(axis=0)
        return extended if distinct.all() else extended[:, distinct]

    def _closed(self, found: Ints, first: int, second: int, kind: int) -> Ints:
        """Keep the matches (k, n) whose atoms of these rows have a bond of this kind."""
        key = found[first] * len(self.number) + found[second]
        index = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        return found[:, (self._key[index] == key) & self._kinds[kind][index]]


def _kinds_of(expressions: Collection[Expression], kind: Ints, in_ring: Mask) -> Mask:
    """Return which bonds (K, 2 B) the K expressions of bonds hold for."""

    def holds(expression: Expression) -> Mask:
        name, *parts = expression
        if name == "not":
            return ~holds(parts[0])
        if name in ("and", "or"):
            join = np.logical_and if name == "and" else np.logical_or
            found: Mask = join.reduce([holds(part) for part in parts])
            return found
        if name == "~":
            return np.ones(len(kind), bool)
        return in_ring if name == "@" else np.asarray(kind == " -=#:".index(name))

    return np.array([holds(expression) for expression in expressions]).reshape(len(expressions), len(kind))


@cache
def _weights(bits: int) -> NDArray[np.uint64]:
    """Return numbers of 2^bits atoms: sums of them tell sets of atoms apart, as two are never equal by chance."""
    return np.random.default_rng(0).integers(1 << 63, size=1 << bits, dtype=np.uint64)


def _cost(bond: tuple[int, int, int], placed: Container[int], counts: Sequence[int]) -> int:
    """Return in which order bonds are searched for: first between placed atoms, then to the rarest one."""
    first, second, _ = bond
    if first in placed:
        return 0 if second in placed else counts[second]
    return counts[first] if second in placed else sys.maxsize
