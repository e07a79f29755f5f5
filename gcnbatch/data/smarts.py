"""Substructure search over all molecules of a chunk at once: SMARTS patterns, matched by array operations.

RDKit's matcher takes one molecule and one pattern a call; hundreds of patterns cost a millisecond a molecule. Here a
step of the search is a join of all partial matches in the chunk with the bonds that can continue them.

The language is what RDKit's own tables of fragments are written in: atoms by element, ``#n``, ``A``, ``a``, ``*``, D,
X, H, v, R, charge and recursive ``$(…)``; bonds ``- = # : ~ @``; the operators ``! & , ;``; branches and rings. Any
other text, such as a pattern of several parts, is refused with a ValueError.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Expression = tuple[Any, ...]  # ("and" | "or" | "not", *expressions), or a primitive: (letter, number or text)

_SYMBOLS = (
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb "
    "Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au "
    "Hg Tl Pb Bi"
)
_NUMBERS = {symbol: number for number, symbol in enumerate(_SYMBOLS.split(), 1)}
_AROMATIC = ("se", "as", "te", "b", "c", "n", "o", "p", "s")
_ELEMENT = "|".join(sorted((name for name in _NUMBERS if name != "H"), key=len, reverse=True))
_PRIMITIVE = re.compile(
    rf"(?P<element>{_ELEMENT})|(?P<aromatic>{'|'.join(_AROMATIC)})|\#(?P<number>\d+)|(?P<any>[*Aa])"
    r"|(?P<count>[DXHvRr])(?P<n>\d*)|(?P<charge>\++|-+)(?P<size>\d*)|(?P<isotope>\d+)"
)
_ORGANIC = re.compile(r"Cl|Br|[BCNOPSFI*Aa]|[bcnops]")
_BOND = re.compile(r"[-=#:~@!&,;]+")
_USUAL_BOND = ("or", ("-", 0), (":", 0))


class Pattern(NamedTuple):
    """A connected pattern: an expression for each atom, and (first atom, second atom, expression) for each bond.

    `ring_bonds` are the places in `bonds` of those in a ring of the pattern. `degrees` and `ring_degrees` are the
    numbers of bonds, and of bonds in a ring, of each atom.
    """

    atoms: tuple[Expression, ...]
    bonds: tuple[tuple[int, int, Expression], ...]
    ring_bonds: frozenset[int]
    degrees: tuple[int, ...]
    ring_degrees: tuple[int, ...]


@dataclass(eq=False)
class Molecules:
    """Atoms (N,) and bonds of the molecules of a chunk, as a search sees them.

    Parameters
    ----------
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

    size: int
    molecule: Ints
    number: Ints
    charge: Ints
    hydrogens: Ints
    aromatic: Mask
    src: Ints
    dst: Ints
    kind: Ints
    in_ring: Mask
    rings: Ints
    _atoms: dict[Expression, Mask] = field(default_factory=dict)
    _bonds: dict[Expression, Mask] = field(default_factory=dict)
    _placed: dict[tuple[Expression, int, int], tuple[Mask, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.number)
        self.degree = np.bincount(self.src, minlength=count)
        self._ring_degree = np.bincount(self.src[self.in_ring], minlength=count)
        orders = np.bincount(self.src, np.array([0, 1, 2, 3, 1.5])[self.kind], count)
        none = np.zeros(count, bool)
        self._simple = {"*": ~none, "a": self.aromatic, "A": ~self.aromatic, "in ring": self.rings > 0}
        self._simple["isotope"] = none  # molecules with isotopes are not searched
        self._numbers = {
            "#": self.number,
            "D": self.degree,
            "X": self.degree + self.hydrogens,
            "H": self.hydrogens,
            "v": orders.astype(np.int64) + self.hydrogens,
            "R": self.rings,
            "charge": self.charge,
        }
        self._first = np.cumsum(self.degree) - self.degree
        self._key = self.src * count + self.dst
        # Sums of these tell sets of atoms apart: two of 64 bits are never equal by chance.
        self._weights = np.random.default_rng(0).integers(1 << 63, size=count, dtype=np.uint64)

    def atoms(self, expression: Expression) -> Mask:
        """Return which atoms (N,) an expression holds for."""
        found = self._atoms.get(expression)
        if found is None:
            found = self._atoms[expression] = self._evaluated(expression, self.atoms, self._primitive)
        return found

    def count(self, pattern: Pattern) -> Ints:
        """Return the number of matches in each molecule (G,); matches with the same atoms count once."""
        columns = self.matches(pattern)
        first = columns[0]
        if len(first) and pattern.bonds:
            sets = self._weights[first]
            for column in columns[1:]:
                sets = sets + self._weights[column]
            first = first[np.unique(sets, return_index=True)[1]]
        return np.bincount(self.molecule[first], minlength=self.size)

    def matches(self, pattern: Pattern, among: Mask | None = None) -> list[Ints]:
        """Return every match, in each order that matches: for each atom of the pattern, one of the chunk.

        `among` (N,) limits the first atom.
        """
        masks: list[Mask] = []
        counts: list[int] = []
        for atom, bonds, ring_bonds in zip(pattern.atoms, pattern.degrees, pattern.ring_degrees, strict=True):
            mask, number = self._that_fit((atom, bonds, ring_bonds))
            if among is not None and not masks:
                mask = mask & among
                number = int(np.count_nonzero(mask))
            if not number:
                return [np.zeros(0, np.int64)] * len(pattern.atoms)
            masks.append(mask)
            counts.append(number)
        start = counts.index(min(counts))
        columns = {start: np.flatnonzero(masks[start])}
        left = set(range(len(pattern.bonds)))
        while left and len(columns[start]):
            place = min(left, key=lambda one: _cost(pattern.bonds[one], columns, counts))
            left.remove(place)
            first, second, bond = pattern.bonds[place]
            allowed = self._kinds(("and", bond, ("@", 0)) if place in pattern.ring_bonds else bond)
            if first in columns and second in columns:
                columns = self._closed(columns, first, second, allowed)
            elif first in columns:
                columns = self._extended(columns, first, second, masks[second], allowed)
            else:
                columns = self._extended(columns, second, first, masks[first], allowed)
        if left:
            return [np.zeros(0, np.int64)] * len(pattern.atoms)
        return [columns[atom] for atom in range(len(pattern.atoms))]

    # -------------------------------------------------------------------------------------------- internals

    def _that_fit(self, key: tuple[Expression, int, int]) -> tuple[Mask, int]:
        """Return which atoms an atom of a pattern can be, by its expression and its numbers of bonds; and how many."""
        found = self._placed.get(key)
        if found is None:
            expression, bonds, ring_bonds = key
            mask = self.atoms(expression)
            if bonds > 1:
                mask = mask & (self.degree >= bonds)
            if ring_bonds:
                mask = mask & (self._ring_degree >= ring_bonds)
            found = self._placed[key] = mask, int(np.count_nonzero(mask))
        return found

    def _extended(self, columns: dict[int, Ints], known: int, new: int, mask: Mask, allowed: Mask) -> dict[int, Ints]:
        """Add the neighbours of atom `known` that can be atom `new`."""
        atoms = columns[known]
        counts = self.degree[atoms]
        before = counts.cumsum()
        edges = np.arange(int(before[-1])) + (self._first[atoms] - before + counts).repeat(counts)
        added = self.dst[edges]
        kept = (mask[added] & allowed[edges]).nonzero()[0]
        rows, added = np.arange(len(atoms)).repeat(counts)[kept], added[kept]
        found = {atom: column[rows] for atom, column in columns.items()}
        earlier = [column for atom, column in found.items() if atom != known]
        if earlier:
            distinct = earlier[0] != added
            for column in earlier[1:]:
                distinct &= column != added
            if not distinct.all():
                found, added = {atom: column[distinct] for atom, column in found.items()}, added[distinct]
        return found | {new: added}

    def _closed(self, columns: dict[int, Ints], first: int, second: int, allowed: Mask) -> dict[int, Ints]:
        """Keep the rows whose two atoms have a bond."""
        key = columns[first] * len(self.number) + columns[second]
        at = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        kept = (self._key[at] == key) & allowed[at]
        return {atom: column[kept] for atom, column in columns.items()}

    def _kinds(self, expression: Expression) -> Mask:
        found = self._bonds.get(expression)
        if found is None:
            found = self._bonds[expression] = self._evaluated(expression, self._kinds, self._bond)
        return found

    @staticmethod
    def _evaluated(expression: Expression, whole: Any, primitive: Any) -> Any:
        name, *parts = expression
        if name == "not":
            return ~whole(parts[0])
        if name in ("and", "or"):
            join = np.logical_and if name == "and" else np.logical_or
            return join.reduce([whole(part) for part in parts])
        return primitive(name, parts[0])

    def _bond(self, name: str, _: int) -> Mask:
        if name == "~":
            return np.ones(len(self.kind), bool)
        return self.in_ring if name == "@" else self.kind == " -=#:".index(name)

    def _primitive(self, name: str, value: Any) -> Mask:
        if name == "$":
            found = np.zeros(len(self.number), bool)
            found[self.matches(compiled(value))[0]] = True
            return found
        return self._simple[name] if name in self._simple else np.asarray(self._numbers[name] == value)


@cache
def compiled(smarts: str) -> Pattern:
    """Return the pattern of a SMARTS.

    Raises
    ------
    ValueError
        When it is not in the language of this module.
    """
    atoms: list[Expression] = []
    bonds: list[tuple[int, int, Expression]] = []
    open_rings: dict[str, tuple[int, str]] = {}
    branches: list[int] = []
    previous, bond, place = -1, "", 0
    while place < len(smarts):
        letter = smarts[place]
        if letter == "(":
            branches.append(previous)
        elif letter == ")":
            previous = branches.pop()
        elif letter.isdigit():
            if letter in open_rings:
                other, its_bond = open_rings.pop(letter)
                bonds.append((other, previous, _bond_expression(bond or its_bond)))
            else:
                open_rings[letter] = (previous, bond)
            bond = ""
        elif found := _BOND.match(smarts, place):
            bond = found[0]
            place = found.end()
            continue
        else:
            if letter == "[":
                end = _closing(smarts, place, "[]")
                atom = _expression(smarts[place + 1 : end], _atom_primitives)
            elif found := _ORGANIC.match(smarts, place):
                end, atom = found.end() - 1, _joint("and", _atom_primitives(found[0]))
            else:
                raise ValueError(f"{smarts!r}: unknown at {place}")
            atoms.append(atom)
            if previous >= 0:
                bonds.append((previous, len(atoms) - 1, _bond_expression(bond)))
            previous, bond, place = len(atoms) - 1, "", end
        place += 1
    if open_rings or branches or bond or not atoms:
        raise ValueError(f"{smarts!r}: incomplete")
    ring_bonds = _ring_bonds(len(atoms), bonds)
    degrees, ring_degrees = (
        tuple(sum(atom in bonds[place][:2] for place in some) for atom in range(len(atoms)))
        for some in (range(len(bonds)), ring_bonds)
    )
    return Pattern(tuple(atoms), tuple(bonds), ring_bonds, degrees, ring_degrees)


def _cost(bond: tuple[int, int, Expression], placed: Container[int], counts: list[int]) -> int:
    """Return in which order bonds are searched for: first between placed atoms, then to the rarest atom."""
    first, second, _ = bond
    if first in placed:
        return 0 if second in placed else counts[second]
    return counts[first] if second in placed else sys.maxsize


def _ring_bonds(count: int, bonds: list[tuple[int, int, Expression]]) -> frozenset[int]:
    """Return the bonds whose ends are connected without them."""
    found = set()
    for place in range(len(bonds)):
        group = list(range(count))
        for other, (first, second, _) in enumerate(bonds):
            if other != place:
                old, new = group[first], group[second]
                group = [new if one == old else one for one in group]
        if group[bonds[place][0]] == group[bonds[place][1]]:
            found.add(place)
    return frozenset(found)


def _closing(text: str, start: int, pair: str) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == pair[0]) - (text[place] == pair[1])
        if depth == 0:
            return place
    raise ValueError(f"{text!r}: no closing {pair[1]}")


def _joint(name: str, parts: list[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else (name, *parts)


def _expression(text: str, primitives: Any) -> Expression:
    """Return the expression in brackets: ``;`` binds weakest, then ``,``, then ``&`` or nothing, then ``!``."""
    high = [[primitives(part) for part in _split(term, ",")] for term in _split(text, ";")]
    return _joint("and", [_joint("or", [_joint("and", parts) for parts in term]) for term in high])


def _split(text: str, separator: str) -> list[str]:
    """Return the parts between separators outside of parentheses and brackets."""
    depth, places = 0, [-1]
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == separator and depth == 0:
            places.append(place)
    return [text[first + 1 : end] for first, end in pairwise([*places, len(text)])]


def _atom_primitives(text: str) -> list[Expression]:
    found: list[Expression] = []
    place, negative = 0, False
    while place < len(text):
        letter = text[place]
        place += 1
        if letter == "&":
            continue
        if letter == "!":
            negative = not negative
            continue
        if letter == "$":
            end = _closing(text, place, "()")
            compiled(text[place + 1 : end])
            one: Expression = ("$", text[place + 1 : end])
            place = end + 1
        elif match := _PRIMITIVE.match(text, place - 1):
            one = _atom_primitive(match)
            place = match.end()
        else:
            raise ValueError(f"{text!r}: unknown at {place - 1}")
        found.append(("not", one) if negative else one)
        negative = False
    if negative or not found:
        raise ValueError(f"{text!r}: incomplete")
    return found


def _atom_primitive(match: re.Match[str]) -> Expression:
    if symbol := match["element"] or match["aromatic"]:
        return ("and", ("#", _NUMBERS[symbol.capitalize()]), ("a" if match["aromatic"] else "A", 0))
    if match["number"]:
        return ("#", int(match["number"]))
    if match["any"]:
        return (match["any"], 0)
    if match["count"]:
        if match["count"] in "Rr" and not match["n"]:
            return ("in ring", 0)
        if match["count"] == "r":
            raise ValueError(f"{match[0]!r}: sizes of rings are not known")
        return (match["count"], int(match["n"] or 1))
    if match["charge"]:
        size = int(match["size"]) if match["size"] else len(match["charge"])
        return ("charge", size if match["charge"][0] == "+" else -size)
    return ("isotope", int(match["isotope"]))


@cache
def _bond_expression(text: str) -> Expression:
    return _expression(text, _bond_primitives) if text else _USUAL_BOND


def _bond_primitives(text: str) -> list[Expression]:
    found: list[Expression] = []
    negative = False
    for letter in text.replace("&", ""):
        if letter == "!":
            negative = not negative
            continue
        found.append(("not", (letter, 0)) if negative else (letter, 0))
        negative = False
    if negative or not found:
        raise ValueError(f"bond {text!r}: incomplete")
    return found
