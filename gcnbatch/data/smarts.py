"""SMARTS patterns as values: the language that RDKit's own tables of fragments are written in.

Atoms by element, ``#n``, ``A``, ``a``, ``*``, D, X, H, v, R, charge and recursive ``$(…)``; bonds ``- = # : ~ @``; the
operators ``! & , ;``; branches and rings. Any other text, such as a pattern of several parts, is refused with a
ValueError.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

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
                end, atom = found.end() - 1, joint("and", _atom_primitives(found[0]))
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


def joint(name: str, parts: list[Expression]) -> Expression:
    """Return the expression "and" or "or" of parts, one at least."""
    return parts[0] if len(parts) == 1 else (name, *parts)


def _expression(text: str, primitives: Any) -> Expression:
    """Return the expression in brackets: ``;`` binds weakest, then ``,``, then ``&`` or nothing, then ``!``."""
    high = [[primitives(part) for part in _split(term, ",")] for term in _split(text, ";")]
    return joint("and", [joint("or", [joint("and", parts) for parts in term]) for term in high])


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
