"""Detection of a table's delimiter and decimal sign."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gcnbatch.data.importers.csv_tables import MISSING
from gcnbatch.data.importers.quantities import split_cell
from gcnbatch.data.importers.text_files import open_text
from gcnbatch.errors import InputError
from gcnbatch.text import quoted

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}  # among equals, the first is taken
_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "\\t": "\t"}
DECIMAL_COMMA = "numbers have a decimal comma"  # a note for the user
_SAMPLE_LINES = 50
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
class TableFormat:
    """Delimiter and decimal sign of a text table, empty: detected; and further texts of missing values, in any case."""

    delimiter: str = ""
    decimal: str = ""
    missing: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse signs that no table uses.

        Raises
        ------
        InputError
            For another delimiter or decimal sign, and for the same sign in both places.
        """
        if self.delimiter and self.sign not in DELIMITERS:
            raise InputError("--delimiter", repr(self.delimiter), f"one of {', '.join(DELIMITERS.values())}")
        if self.decimal not in ("", ".", ","):
            raise InputError("--decimal", repr(self.decimal), "'.' or ','")

    def without_missing(self, texts: Sequence[str]) -> Sequence[str]:
        """Return cells without surrounding blanks, blank where they are one of the further texts of missing values."""
        if not self.missing:
            return texts
        tokens = {token.lower() for token in self.missing}
        return ["" if text.lower() in tokens else text for text in texts]

    @property
    def sign(self) -> str:
        """The delimiter as one character, also where it was given by name."""
        return _NAMES.get(self.delimiter.lower(), self.delimiter)


def detect_delimiter(path: Path) -> str:
    """Return the delimiter that divides the first lines of a text file into equally many fields, else its first line.

    Raises
    ------
    InputError
        As `open_text`.
    """
    with open_text(path) as stream:
        lines = list(islice(stream, _SAMPLE_LINES + 1))
    for sample in (lines[:_SAMPLE_LINES], lines[:1]):
        widths = {sign: _width(sample, sign) for sign in DELIMITERS}
        best = max(widths.values())
        if best > 1:
            return next(sign for sign, width in widths.items() if width == best)
    return ","


def _width(lines: Sequence[str], sign: str) -> int:
    """Return the number of fields of every record; 0 where the records differ."""
    try:
        records = [len(record) for record in csv.reader(lines, strict=True, delimiter=sign) if record]
    except csv.Error:
        return 0
    return records[0] if len(set(records)) == 1 else 0


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
    def of(cls, path: Path, columns: Iterable[tuple[str, Sequence[str]]], wished: str = "") -> NumberFormat:
        """Return the format of these columns; `wished` is the decimal sign that the user names, "" detected.

        Raises
        ------
        InputError
            When a column could have either sign.
        """
        signs: dict[str, str] = {}
        unclear: dict[str, str] = {}  # cells as 1.500
        grouped: dict[str, str] = {}
        for name, texts in columns:
            values = {text for text in texts if text.lower() not in MISSING}
            if not values or not any(sign in text for text in values for sign in ",.' \u00a0\u202f"):
                continue
            parts = {text: split_cell(text) for text in values}
            cells = {one[1]: text for text, one in parts.items() if one is not None}
            if None in parts.values():
                continue
            sign = wished or _sign(path, name, cells)
            if sign:
                signs[name] = sign
                if some := [cells[number] for number in cells if _GROUPED[sign].fullmatch(number)]:
                    grouped[name] = some[0]
            elif (with_point := [n for n in cells if "." in n]) and all(map(_EITHER["."].fullmatch, with_point)):
                unclear[name] = cells[min(with_point)]
        has_commas = "," in signs.values() and not wished
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
