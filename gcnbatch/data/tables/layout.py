"""The layout of a text table: delimiter, lines above the header line, encoding; given by the user or detected."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gcnbatch.data.tables.files import open_text
from gcnbatch.errors import InputError
from gcnbatch.text import counted, quoted

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}  # among equals, the first is taken
_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "\\t": "\t"}
_SAMPLE_LINES = 50


@dataclass(frozen=True)
class TableFormat:
    """Delimiter, decimal sign and encoding of a text table; empty: detected.

    `encoding` None: as empty, where the user cannot name one. `missing` are further texts of missing values, in any
    case.
    """

    delimiter: str = ""
    decimal: str = ""
    encoding: str | None = None
    missing: tuple[str, ...] = ()

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


@dataclass(frozen=True)
class Layout:
    """Layout of a text table.

    Parameters
    ----------
    sign : str
        The delimiter.
    skipped : int
        Lines above the header line, which are comments or blank.
    marked : bool
        The header line itself begins with ``#``.
    """

    sign: str
    skipped: int = 0
    marked: bool = False

    def notes(self, asked: TableFormat) -> list[str]:
        """Return what was detected, for the user."""
        notes = []
        if self.sign != "," and not asked.sign:
            notes.append(f"fields are separated by a {DELIMITERS[self.sign]}")
        if self.skipped:
            notes.append(f"{counted(self.skipped, 'line')} above the header line left out")
        return notes


def detect_layout(path: Path, asked: TableFormat) -> Layout:
    """Return the layout of a text table by its first lines.

    The delimiter divides these lines into equally many fields, else the header line alone. Lines above the header line
    that begin with ``#`` are comments. The last of them is the header line if it has as many fields as the line below
    and names a column of SMILES, or the line below has a number.

    Raises
    ------
    InputError
        As `open_text`.
    """
    skipped, mark, marked_line, first = 0, "", -1, ""
    with open_text(path, asked.encoding) as file:
        lines = file.lines()
        for line in lines:
            if line.startswith("#"):
                mark, marked_line = line, skipped
            elif line.strip():
                first = line
                break
            skipped += 1
        sample = [first, *islice(lines, _SAMPLE_LINES)]
    if mark:
        head = mark.lstrip("#")
        sign = asked.sign or _sign([head, *sample[:-1]])
        if _is_header(head, first, sign):
            return Layout(sign, marked_line, marked=True)
    return Layout(asked.sign or _sign(sample), skipped)


def _sign(lines: Sequence[str]) -> str:
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


def _is_header(head: str, below: str, sign: str) -> bool:
    """Whether a comment is the header line of the line below it."""
    if _width([head, below], sign) < 2:
        return False
    names, fields = (next(csv.reader([line], delimiter=sign), []) for line in (head, below))
    if any(map(names_smiles, fields)):
        return False
    return any(map(names_smiles, names)) or any(map(_is_number, fields))


def plain_name(name: str) -> str:
    """Return the letters and digits of a name in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def names_smiles(name: str) -> bool:
    """Whether a name says that a column has SMILES: ``smiles``, ``Canonical SMILES``, ``MOLECULE_SMILES``."""
    plain = plain_name(name)
    return plain.startswith("smiles") or plain.endswith("smiles")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
