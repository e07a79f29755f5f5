"""Detection of a table's delimiter, comment lines and decimal sign."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gcnbatch.data.importers.csv_tables import MISSING, Layout, parse_number
from gcnbatch.data.importers.smiles_columns import names_smiles
from gcnbatch.data.importers.text_files import open_text
from gcnbatch.errors import InputError
from gcnbatch.text import quoted

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}  # among equals, the first is taken
_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "\\t": "\t"}
DECIMAL_COMMA = "numbers have a decimal comma"  # a note for the user
_SAMPLE_LINES = 50
_WITH_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_WITHOUT_COMMA = re.compile(r"[+-]?\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@dataclass(frozen=True)
class TableFormat:
    """Delimiter, decimal sign and encoding of a text table; empty: detected.

    `encoding` None: as empty, where the user cannot name one.
    """

    delimiter: str = ""
    decimal: str = ""
    encoding: str | None = None

    def check(self) -> None:
        """Refuse signs that no table uses, and unknown encodings.

        Raises
        ------
        InputError
            Names the option.
        """
        if self.delimiter and self.sign not in DELIMITERS:
            raise InputError("--delimiter", repr(self.delimiter), f"one of {', '.join(DELIMITERS.values())}")
        if self.decimal not in ("", ".", ","):
            raise InputError("--decimal", repr(self.decimal), "'.' or ','")
        try:
            "a".encode(self.encoding or "utf-8")
        except (LookupError, ValueError) as error:
            expected = "an encoding of text, such as utf-8, cp1252 or utf-16"
            raise InputError("--encoding", quoted(self.encoding), expected) from error

    @property
    def sign(self) -> str:
        """The delimiter as one character, also where it was given by name."""
        return _NAMES.get(self.delimiter.lower(), self.delimiter)


def detect_layout(path: Path, wished: TableFormat) -> Layout:
    """Return the layout of a text table by its first lines.

    The delimiter divides these lines into equally many fields, else the header line alone. Lines above the header line
    that begin with ``#`` are comments. The last of them is the header line if it has as many fields as the line below
    and names a column of SMILES, or the line below has a number.

    Raises
    ------
    InputError
        As `open_text`.
    """
    skipped, mark, at, first = 0, "", -1, ""
    with open_text(path, wished.encoding) as stream:
        for line in stream:
            if line.startswith("#"):
                mark, at = line, skipped
            elif line.strip():
                first = line
                break
            skipped += 1
        lines = [first, *islice(stream, _SAMPLE_LINES)]
    if mark:
        head = mark.lstrip("#")
        sign = wished.sign or _sign([head, *lines[:-1]])
        if _is_header(head, first, sign):
            return Layout(sign, at, marked=True)
    return Layout(wished.sign or _sign(lines), skipped)


def _sign(lines: Sequence[str]) -> str:
    for sample in (lines[:_SAMPLE_LINES], lines[:1]):
        widths = {sign: _width(sample, sign) for sign in DELIMITERS}
        best = max(widths.values())
        if best > 1:
            return next(sign for sign, width in widths.items() if width == best)
    return ","


def _is_header(head: str, below: str, sign: str) -> bool:
    """Whether a comment is the header line of the line below it."""
    if _width([head, below], sign) < 2:
        return False
    names, fields = (next(csv.reader([line], delimiter=sign)) for line in (head, below))
    if any(map(names_smiles, fields)):
        return False
    return any(map(names_smiles, names)) or any(map(_is_number, fields))


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(parse_number(text.strip()))
    except ValueError:
        return False


def _width(lines: Sequence[str], sign: str) -> int:
    """Return the number of fields of every record; 0 where the records differ."""
    try:
        records = [len(record) for record in csv.reader(lines, strict=True, delimiter=sign) if record]
    except csv.Error:
        return 0
    return records[0] if len(set(records)) == 1 else 0


def has_decimal_commas(path: Path, columns: Iterable[tuple[str, Sequence[str]]]) -> bool:
    """Whether the numbers of any column are written with a decimal comma.

    Raises
    ------
    InputError
        When a column could as well hold whole numbers with commas between thousands.
    """
    found = False
    for name, texts in columns:
        values = {text for text in texts if text.lower() not in MISSING}
        commas = [text for text in values if _WITH_COMMA.fullmatch(text)]
        if not commas or (len(commas) < len(values) and not all(map(_number_like, values))):
            continue
        if all(map(_THOUSANDS.fullmatch, commas)):
            place = f"{path}, column {quoted(name)}"
            got = f"{quoted(min(commas))} is a fraction or a number above 1,000"
            raise InputError(place, got, "a known decimal sign", "Give --decimal ',' or --decimal '.'.")
        found = True
    return found


def _number_like(text: str) -> bool:
    return bool(_WITH_COMMA.fullmatch(text) or _WITHOUT_COMMA.fullmatch(text))


def with_points(texts: Sequence[str]) -> list[str]:
    """Return the texts with a decimal point in every number that has a decimal comma."""
    return [text.replace(",", ".") if _WITH_COMMA.fullmatch(text) else text for text in texts]
