"""Substructure search over all molecules of a chunk at once: SMARTS patterns, matched by array operations.

RDKit's matcher takes one molecule and one pattern a call; hundreds of patterns cost a millisecond a molecule. Here the
expressions of all patterns are evaluated together, for all atoms and bonds of the chunk. Patterns of which an atom or a
bond is nowhere in it are not searched for. A step of a search is a join of all partial matches in the chunk with the
bonds that can continue them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Container, Iterable, Iterator
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
    """A pattern of a plan: the literal of each atom, and (first atom, second atom, kind of edge) for each bond."""

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
        self.edges: dict[tuple[int, int, int], int] = {}  # kinds of edges: literals of both ends, kind of bond
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
            edge = atoms[first], atoms[second], self.kinds.setdefault(of_bond, len(self.kinds))
            bonds_of.append((first, second, self.edges.setdefault(edge, len(self.edges))))
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

    @cached_property
    def ends(self) -> Ints:
        """The kinds of edges, (edges, 3)."""
        return np.array(list(self.edges), np.int64).reshape(-1, 3)

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
        # Behind the last edge, one that is none: of no kind, from any atom to any
        self._src, self._dst = np.append(src, 0), np.append(dst, 0)
        count = len(number)
        self.degree = np.bincount(src, minlength=count)
        self._key = src * count + dst
        # Of each atom: its neighbours, the edges to them and those back, then the edge that is none
        place = np.arange(len(src)) - (np.cumsum(self.degree) - self.degree)[src]
        self._neighbours, self._forth, self._back = np.full((3, count, int(self.degree.max(initial=0))), len(src))
        self._neighbours[src, place], self._forth[src, place] = dst, np.arange(len(src))
        self._back[src, place] = np.argsort(dst, kind="stable")
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
        self._kinds = np.pad(_kinds_of(plan.kinds, kind, in_ring), ((0, 0), (0, 1)))
        self._edges: dict[int, Mask] = {}
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
        """Yield the patterns of which each atom and each bond is somewhere in the chunk; `matches` takes only them."""
        literals, starts = patterns.literals
        held = self._some[literals]
        some = dict(compress(patterns.items(), np.logical_and.reduceat(held, starts).tolist()))
        self._find_edges({edge for one in some.values() for *_, edge in one.bonds} - self._counts.keys())
        counts = self._counts
        yield from (key for key, one in some.items() if all(counts[edge] for *_, edge in one.bonds))

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
        if not pattern.bonds:
            mask = self.atoms(pattern)
            return [np.flatnonzero(mask if among is None else mask & among)]
        counts = [self._counts[edge] for *_, edge in pattern.bonds]
        left = dict(enumerate(pattern.bonds))
        starts = [place for place, bond in left.items() if among is None or 0 in bond[:2]]
        first, second, edge = left.pop(min(starts, key=counts.__getitem__))
        edges = self._edges[edge].nonzero()[0]
        columns = {first: self._src[edges], second: self._dst[edges]}
        if among is not None:
            kept = among[columns[0]]
            columns = {atom: column[kept] for atom, column in columns.items()}
        while left and len(columns[first]):
            place = min(left, key=lambda one: _cost(left[one], columns, counts[one]))
            one, other, edge = left.pop(place)
            if one in columns and other in columns:
                columns = self._closed(columns, one, other, edge)
            elif one in columns:
                columns = self._extended(columns, one, other, edge, forward=True)
            else:
                columns = self._extended(columns, other, one, edge, forward=False)
        if left:
            return [np.zeros(0, np.int64)] * len(pattern.atoms)
        return [columns[atom] for atom in range(len(pattern.atoms))]

    # -------------------------------------------------------------------------------------------- internals

    def _find_edges(self, kinds: Collection[int]) -> None:
        """Find the edges of these kinds, all in a few operations."""
        if not kinds:
            return
        numbers = list(kinds)
        one, other, bond = self._plan.ends[numbers].T
        masks = self._masks[one].take(self._src, axis=1)
        masks &= self._masks[other].take(self._dst, axis=1)
        masks &= self._kinds[bond]
        self._edges.update(zip(numbers, masks, strict=True))
        self._counts.update(zip(numbers, map(np.count_nonzero, masks), strict=True))

    def _extended(self, columns: dict[int, Ints], known: int, new: int, edge: int, forward: bool) -> dict[int, Ints]:
        """Add the neighbours of atom `known` that can be atom `new`; `forward`: the kind of edge leads to it."""
        edges = (self._forth if forward else self._back)[columns[known]]
        rows, place = self._edges[edge][edges].nonzero()
        found = {atom: column[rows] for atom, column in columns.items()}
        added = self._neighbours[found[known], place]
        earlier = [column for atom, column in found.items() if atom != known]
        if earlier:
            distinct = earlier[0] != added
            for column in earlier[1:]:
                distinct &= column != added
            if not distinct.all():
                found, added = {atom: column[distinct] for atom, column in found.items()}, added[distinct]
        return found | {new: added}

    def _closed(self, columns: dict[int, Ints], first: int, second: int, edge: int) -> dict[int, Ints]:
        """Keep the rows whose two atoms have a bond."""
        key = columns[first] * len(self.number) + columns[second]
        index = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        kept = (self._key[index] == key) & self._edges[edge][index]
        return {atom: column[kept] for atom, column in columns.items()}


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


def _cost(bond: tuple[int, int, int], placed: Container[int], count: int) -> int:
    """Return in which order bonds are searched for: first between placed atoms, then the rarest one."""
    first, second, _ = bond
    if first in placed:
        return 0 if second in placed else count
    return count if second in placed else sys.maxsize
