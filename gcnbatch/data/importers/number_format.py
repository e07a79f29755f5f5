"""How the numbers of a table are written: decimal sign and separated thousands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gcnbatch.data.importers.cells import MISSING, has_digit
from gcnbatch.data.importers.quantities import split_cell
from gcnbatch.errors import InputError
from gcnbatch.text import quoted

DECIMAL_COMMA = "numbers have a decimal comma"  # a note for the user
_HEAD, _EXPONENT = r"[+−-]?", r"(?:[eE][+−-]?\d+)?"
_OTHER = {".": ",", ",": "."}  # between thousands
_FRACTION = {sign: re.compile(rf"{_HEAD}\d*[{sign}]\d+{_EXPONENT}") for sign in _OTHER}
_EITHER = {sign: re.compile(rf"{_HEAD}[1-9]\d{{0,2}}[{sign}]\d{{3}}") for sign in _OTHER}  # a fraction, or thousands
_GROUPED = {  # by decimal sign
    sign: re.compile(rf"{_HEAD}[1-9]\d{{0,2}}(?:[{other}'\s]\d{{3}})+(?:[{sign}]\d*)?{_EXPONENT}")
    for sign, other in _OTHER.items()
}
_SURE = {  # numbers that have this decimal sign and separated thousands
    sign: re.compile(
        rf"{_HEAD}[1-9]\d{{0,2}}(?:(?:[{other}'\s]\d{{3}})+[{sign}]\d*|(?:[{other}]\d{{3}}){{2,}}){_EXPONENT}"
    )
    for sign, other in _OTHER.items()
}


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a table are written: the decimal sign of each column that needs to be rewritten.

    Between thousands stand the other one of ``.`` and ``,``, blanks or apostrophes.

    Parameters
    ----------
    signs : dict of str
        By column.
    notes : tuple of str
        What was detected, for the user.
    """

    signs: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path, columns: Iterable[tuple[str, Sequence[str]]], asked: str = "") -> NumberFormat:
        """Return the format of these columns; `asked` is the decimal sign that the user names, "" detected.

        Raises
        ------
        InputError
            When a column could have either sign.
        """
        signs: dict[str, str] = {}
        unclear: dict[str, str] = {}  # cells as 1.500
        grouped: dict[str, str] = {}
        for name, texts in columns:
            values = {text for text in set(texts) if text.lower() not in MISSING}
            if not values or not any(sign in text for text in values for sign in ",.' \u00a0\u202f"):
                continue
            parts = {text: split_cell(text) for text in values}
            cells = {one[1]: text for text, one in parts.items() if one is not None}
            others = [text for text, one in parts.items() if one is None]
            if any(map(has_digit, others)) or 2 * len(others) >= len(values):  # a few words may be missing values
                continue
            sign = asked or _sign(path, name, cells)
            if sign:
                signs[name] = sign
                if some := [cells[number] for number in cells if _GROUPED[sign].fullmatch(number)]:
                    grouped[name] = some[0]
            elif (with_point := [n for n in cells if "." in n]) and all(map(_EITHER["."].fullmatch, with_point)):
                unclear[name] = cells[min(with_point)]
        has_commas = "," in signs.values() and not asked
        if has_commas and unclear:
            raise _unclear(path, *next(iter(unclear.items())))
        notes = [DECIMAL_COMMA] if has_commas else []
        for name, text in islice(grouped.items(), 1):
            number = plain(text, signs[name])
            notes.append(f"thousands are separated: in column {quoted(name)}, {quoted(text)} is {number}")
        return cls(signs, tuple(notes))

    def plain(self, name: str, texts: Sequence[str]) -> Sequence[str]:
        """Return the cells of a column with numbers as Python writes them."""
        if (sign := self.signs.get(name)) is None:
            return texts
        known = {text: plain(text, sign) for text in set(texts)}
        return [known[text] for text in texts]


def plain(text: str, sign: str) -> str:
    """Return a cell with its number as Python writes it.

    >>> plain("1.500,5 nM", ","), plain(">1,500", "."), plain("2,5", ".")
    ('1500.5 nM', '>1500', '2,5')
    """
    parts = split_cell(text)
    if parts is None:
        return text
    number = parts[1]
    if _GROUPED[sign].fullmatch(number):
        number = re.sub(r"[.'\s]" if sign == "," else r"[,'\s]", "", number)
    if sign == ",":
        number = number.replace(",", ".")
    return text.replace(parts[1], number, 1)


def _sign(path: Path, name: str, cells: Mapping[str, str]) -> str:
    """Return the decimal sign of these numbers, keys of their cells; "" if they are plain, or have both signs."""
    has = {sign: [n for n in cells if _FRACTION[sign].fullmatch(n) and not _EITHER[sign].fullmatch(n)] for sign in ".,"}
    for sign in ".,":
        has[sign] += [n for n in cells if _SURE[sign].fullmatch(n)]
    if has[","]:
        return "" if has["."] else ","
    if either := [cells[number] for number in cells if _EITHER[","].fullmatch(number)]:
        if not has["."]:
            raise _unclear(path, name, min(either))
        return "."
    return "." if any(_GROUPED["."].fullmatch(number) for number in cells) else ""


def _unclear(path: Path, name: str, text: str) -> InputError:
    got = f"{quoted(text)} is a fraction or a number above 1,000"
    hint = "Give --decimal ',' or --decimal '.'."
    return InputError(f"{path}, column {quoted(name)}", got, "a known decimal sign", hint)
