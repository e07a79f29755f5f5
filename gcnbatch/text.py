r"""Text of a file that may be hostile, made safe for where it is shown: terminal, HTML, Markdown, CSV, JSON, figures.

Control characters and escape sequences can steer a terminal, and marks of writing direction can make a text look like
another one. They are shown as Python writes them in a literal (``\x1b``, ``\u202e``). A CSV file keeps all other
characters, also line breaks, so that ids can be joined with those of the input.
"""

from __future__ import annotations

import html as _html
import json
import re
import unicodedata
from collections.abc import Container, Iterable
from itertools import islice
from typing import Any

QUOTED = 80  # characters of a file that a message shows
LISTED = 20  # texts that a message lists
_MARKDOWN = re.compile(r"([\\`*_\[\]<>!|~$&])")
_STEERING = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_FORMULA = ("=", "+", "-", "@")


def is_safe(character: str) -> bool:
    """Whether a character is shown as it is: printable characters and spaces of every script."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def printable(text: str, most: int | None = None) -> str:
    """Return `text` as one line of safe characters, at most `most` of them."""
    safe = text if most is None else text[:most]
    if not safe.isprintable():
        safe = "".join(one if is_safe(one) else repr(one)[1:-1] for one in safe)
    if most is not None and max(len(text), len(safe)) > most:
        return f"{safe[: most - 1]}…"
    return safe


def is_storable(text: str) -> bool:
    """Whether a file in UTF-8 can hold `text` and a path can be named so: a path that is not UTF-8 has surrogates."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def quoted(text: object) -> str:
    """Return `text` in single quotes for a message, as one line of at most QUOTED characters."""
    return f"'{printable(str(text), QUOTED)}'"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural unless the number is 1; empty `plural`: the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def some_of(number: int, rows: int, noun: str, verb: str, verbs: str) -> str:
    """Return how many of some rows do something: ``1 of 4 rows has``, ``2 of 4 rows have``."""
    return f"{number:,} of {counted(rows, noun)} {verb if number == 1 else verbs}"


def shown(value: object) -> str:
    """Return a value of a configuration as Python writes it, as one line of at most QUOTED characters."""
    try:
        return printable(repr(value), QUOTED)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of too many digits"
    except RecursionError:
        return "lists that are nested too deep"


def listed(texts: Iterable[str], separator: str = ", ") -> str:
    """Return texts one after the other for a message; only the first LISTED of many."""
    shown = [printable(text, 2 * QUOTED) for text in islice(texts, LISTED + 1)]
    return separator.join(shown[:LISTED]) + (f"{separator}…" if len(shown) > LISTED else "")


def figure(value: float, signed: bool = False) -> str:
    """Return a figure with four decimal places, or four significant digits where these show too little or too much.

    >>> figure(0.12345), figure(0.0002, signed=True), figure(6.04e-30), figure(1.2e20)
    ('0.1235', '+0.0002', '6.04e-30', '1.2e+20')
    """
    usual = value == 0 or (5e-5 if signed else 1e-3) <= abs(value) < 1e6
    return f"{value:{'+' if signed else ''}{'.4f' if usual else '.4g'}}"


def html(text: str) -> str:
    """Return `text` as content or attribute of an HTML element."""
    return _html.escape(printable(text))


def markdown(text: str) -> str:
    """Return `text` as Markdown that shows its characters, without markup, links or HTML."""
    return _MARKDOWN.sub(r"\\\1", printable(text))


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]], words: Container[int] = (0,)) -> list[str]:
    r"""Return the lines of a table in Markdown; the columns that are not `words` are right-aligned.

    >>> markdown_table(["rows", "R²"], [["test|valid", "0.9"]])
    ['| rows | R² |', '| --- | ---: |', '| test\\|valid | 0.9 |']
    """
    head = list(header)
    lines = [head, ["---" if column in words else "---:" for column in range(len(head))], *rows]
    return ["| " + " | ".join(re.sub(r"(?<!\\)\|", r"\|", cell).strip() for cell in line) + " |" for line in lines]


def csv_cell(text: str, spreadsheet: bool = False, shown: bool = False) -> str:
    """Return `text` as a cell of CSV: unchanged, but for control characters other than line breaks, and directions.

    Parameters
    ----------
    text : str
    spreadsheet : bool
        Put an apostrophe before a text that a spreadsheet would run as a formula.
    shown : bool
        The CSV goes to a terminal: also escape line breaks and all other characters that are not safe.
    """
    safe = text
    if not text.isprintable():
        safe = printable(text) if shown else _STEERING.sub(lambda found: repr(found[0])[1:-1], text)
    return f"'{safe}" if spreadsheet and safe.lstrip().startswith(_FORMULA) else safe


def json_line(value: Any) -> str:
    """Return `value` as one line of JSON; unsafe characters are JSON's escapes, so that readers find the same text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isprintable() else "".join(one if is_safe(one) else json.dumps(one)[1:-1] for one in text)
