"""The decimal sign of a table's numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gcnbatch.data.importers.csv_tables import MISSING
from gcnbatch.errors import InputError
from gcnbatch.text import quoted

DECIMAL_COMMA = "numbers have a decimal comma"  # a note for the user
_WITH_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_WITHOUT_COMMA = re.compile(r"[+-]?\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


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
