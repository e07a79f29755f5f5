"""Texts of cells: numbers, missing values, labels, and names that a data set can have."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.tables.table import Column
from gcnbatch.errors import InputError
from gcnbatch.text import quoted

FLOAT32_MAX = float(np.finfo(np.float32).max)
_MISSING = (
    "- -- . .. ? nan -nan na n/a n.a. <na> nd n/d n.d. n.d nil none null missing #n/a #na #div/0! #value! #ref! #name? "
    "#num! #null!"
)
MISSING = frozenset({"", "#n/a n/a", *_MISSING.split()})  # in any case
NUMBER = "a finite number, or blank where missing"
SEVERAL_VALUES = "several values in a cell, a line each, as where an SDF record repeats a property"
_DIGIT = re.compile(r"\d")
_SHOWN = 5  # texts that a hint names


def about_no_number(name: str, texts: Iterable[str]) -> str:
    """Return a hint for cells of a column that are no numbers: several values, or words for a missing one; or ""."""
    texts = list(dict.fromkeys(texts))
    if any("\n" in text for text in texts):
        return f"{quoted(name)} has {SEVERAL_VALUES}: keep one."
    words = [text for text in texts if text.isprintable() and not has_digit(text) and not is_infinite(text)]
    if not words or len(words) > _SHOWN:
        return ""
    option = io.StringIO()
    csv.writer(option, lineterminator="").writerow(words)
    what = "this stands" if len(words) == 1 else f"{' and '.join(map(quoted, words))} stand"
    return f"If {what} for a missing value, add --missing {shlex.quote(option.getvalue())}."


def has_digit(text: str) -> bool:
    """Whether a text has a digit, which no word for a missing value has."""
    return _DIGIT.search(text) is not None


def is_infinite(text: str) -> bool:
    """Whether a text is an infinite number, also by its size."""
    with suppress(ValueError):
        return math.isinf(float(text))
    return False


def check_stored_names(path: Path, names: Iterable[str]) -> None:
    """Refuse columns whose names a data set cannot have: they hold control characters, marks of direction or the like.

    Raises
    ------
    InputError
        Names the first such column.
    """
    for name in names:
        _check_printable(path, name, name, "its name", "Rename the column.")


def check_stored_labels(path: Path, column: str, labels: Iterable[str]) -> None:
    """Refuse names of classes that a data set cannot have, as `check_stored_names` does names of columns.

    Raises
    ------
    InputError
        Names the first such label.
    """
    for label in labels:
        hint = about_no_number(column, [label]) if "\n" in label else "Write the label without."
        _check_printable(path, column, label, f"label {quoted(label)}", hint)


def _check_printable(path: Path, column: str, text: str, what: str, hint: str) -> None:
    if not text.isprintable():
        raise InputError(f"{path}, column {quoted(column)}", f"invisible characters in {what}", "printable ones", hint)


def parse_number(text: str) -> float:
    """Return a finite number, or NaN for a missing one (see MISSING).

    Raises
    ------
    ValueError
        For any other text, infinities included.
    """
    if text.lower() in MISSING:
        return float("nan")
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(text)
    return value


def plain_numbers(texts: Sequence[str]) -> NDArray[np.float64] | None:
    """Return texts as finite numbers, if all are written as Python writes them; else None."""
    with suppress(ValueError):
        values = np.fromiter(map(float, texts), np.float64, len(texts))
        if np.isfinite(values).all() and "_" not in "".join(texts):
            return values
    return None


def numbers(path: Path, name: str, column: Column, before: int = 0) -> NDArray[np.float64]:
    """Return a column as float64 with NaN where missing; an error names the row of a text that is not a number.

    `before` is the number of rows of the table before the column's first row.
    """
    if not isinstance(column, list):
        return column.astype(np.float64)
    if (plain := plain_numbers(column)) is not None:
        return plain
    known: dict[str, float] = {}
    texts = list(map(str.strip, column))
    for row, text in enumerate(texts):
        if text not in known:
            try:
                known[text] = parse_number(text)
            except ValueError:
                place = f"{path}, row {before + row + 1}, column {quoted(name)}"
                raise InputError(place, quoted(text), NUMBER, about_no_number(name, [text])) from None
    return np.array([known[text] for text in texts], dtype=np.float64)


def finite_numbers(
    path: Path, name: str, column: Column, before: int = 0, missing: bool = False
) -> NDArray[np.float64]:
    """Return a column of finite 32-bit numbers; NaN only where they may be `missing`. See `numbers`."""
    values = numbers(path, name, column, before)
    wrong = ~(np.abs(values) <= FLOAT32_MAX)
    refuse(
        path, name, column, wrong & ~np.isnan(values) if missing else wrong, "a 32-bit floating-point number", before
    )
    return values


def refuse(path: Path, name: str, column: Column, wrong: NDArray[np.bool_], expected: str, before: int = 0) -> None:
    """Refuse the first cell of a column that is `wrong`."""
    if wrong.any():
        row = int(np.argmax(wrong))
        place = f"{path}, row {before + row + 1}, column {quoted(name)}"
        raise InputError(place, quoted(str(column[row]).strip()), expected)


def sorted_labels(labels: set[str]) -> list[str]:
    """Sort texts by value if all are numbers, else as texts."""
    try:
        return sorted(labels, key=lambda text: (float(text), text))
    except ValueError:
        return sorted(labels)
