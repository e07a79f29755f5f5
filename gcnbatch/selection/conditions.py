"""Conditions on molecules, such as ``MW < 500 and supplier = Enamine``: columns of the pool and RDKit's descriptors.

A condition is a comparison, or several joined by ``and``: a name, one of < <= > >= = !=, and a number or a text. A
name or text with characters other than letters, digits and ``._-`` is in double quotes. Nothing is executed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcnbatch.errors import InputError, nearest
from gcnbatch.text import quoted

OPTION = "--where"
_WORD = r'(?:"([^"]*)"|([^\s<>=!"]+))'
_COMPARISON = re.compile(rf"\s*{_WORD}\s*(<=|>=|==|!=|<|>|=)\s*{_WORD}\s*")
_AND = re.compile(r"and\b", re.IGNORECASE)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_SHORT = {"mw": "MolWt", "logp": "MolLogP", "hba": "NumHAcceptors", "hbd": "NumHDonors", "rotb": "NumRotatableBonds"}


@dataclass(frozen=True)
class ColumnComparison:
    """A comparison.

    Parameters
    ----------
    name, sign, value : str
    descriptor : callable or None
        RDKit's function of a molecule; None: `name` is a column.
    """

    name: str
    sign: str
    value: str
    descriptor: Callable[[Any], float] | None

    def holds(self, cells: Mapping[str, str], molecule: Any) -> bool:
        """Return whether it holds for a row; never for a value that is missing or cannot be compared."""
        compare, wanted = _OPERATORS[self.sign], _number(self.value)
        if self.descriptor is not None:
            return bool(compare(self.descriptor(molecule), wanted))
        cell = cells[self.name].strip()
        found = _number(cell)
        if found is not None and wanted is not None:
            return bool(compare(found, wanted))
        return bool(cell) and self.sign in ("=", "==", "!=") and bool(compare(cell, self.value))

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.value}"


def parse(text: str, columns: Sequence[str]) -> list[ColumnComparison]:
    """Return the comparisons of a condition; none of an empty one.

    A name is a column of the pool, else a descriptor of RDKit in any case, or one of MW, LogP, HBA, HBD, RotB.

    Raises
    ------
    InputError
        For a text that is no condition, an unknown name, and a descriptor that is compared with a text.
    """
    found: list[ColumnComparison] = []
    place = 0
    while place < len(text):
        match = _COMPARISON.match(text, place)
        if match is None:
            expected = "comparisons such as MW < 500, joined by and"
            raise InputError(f"{OPTION} {quoted(text)}", f"cannot be read from {quoted(text[place:])} on", expected)
        name, sign, value = match[1] or match[2], match[3], match[5] if match[4] is None else match[4]
        found.append(_comparison(name, sign, value, columns))
        place = match.end()
        if place < len(text):
            joint = _AND.match(text, place)
            if joint is None or joint.end() == len(text):
                got = f"{quoted(text[place:])} after {quoted(str(found[-1]))}"
                raise InputError(f"{OPTION} {quoted(text)}", got, "and, and another comparison")
            place = joint.end()
    return found


def _comparison(name: str, sign: str, value: str, columns: Sequence[str]) -> ColumnComparison:
    if name in columns:
        return ColumnComparison(name, sign, value, None)
    from rdkit.Chem import Descriptors

    known: dict[str, Callable[[Any], float]] = dict(Descriptors._descList)
    spelled = {one.lower(): one for one in known} | _SHORT
    full = spelled.get(name.lower())
    if full is None:
        hint = nearest(name, [*columns, *known, "MW", "LogP", "HBA", "HBD", "RotB"])
        raise InputError(f"{OPTION} {quoted(name)}", "no such column or descriptor", hint=hint)
    if _number(value) is None:
        raise InputError(f"{OPTION} {quoted(name)}", f"compared with {quoted(value)}", "a number")
    return ColumnComparison(name, sign, value, known[full])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
