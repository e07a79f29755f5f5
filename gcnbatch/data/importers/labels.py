"""Reading of a text column as targets: numbers, or labels that become classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.csv_tables import MISSING, parse_number, sorted_labels
from gcnbatch.data.schema import Target
from gcnbatch.text import counted

# Negative label, positive label; compared in lower case.
PAIRS = (
    ("inactive", "active"),
    ("false", "true"),
    ("f", "t"),
    ("no", "yes"),
    ("n", "y"),
    ("negative", "positive"),
    ("neg", "pos"),
    ("-", "+"),
    ("nontoxic", "toxic"),
    ("non-toxic", "toxic"),
    ("insoluble", "soluble"),
    ("nonbinder", "binder"),
    ("non-binder", "binder"),
)
_TWO_NUMBERS = ((-1.0, 1.0), (1.0, 2.0))
_THREE_NUMBERS = ((-1.0, 0.0, 1.0), (0.0, 1.0, 2.0), (1.0, 2.0, 3.0))
_MOST_CLASSES = 10  # names in a text column, above which it is not taken for classes
_IDENTIFIER_ROWS = 10  # whole numbers that all differ look like an identifier from this number of rows on


@dataclass(frozen=True)
class Reading:
    """A column read as targets.

    Parameters
    ----------
    kind : str or None
        Kind of the targets; None where the column is not taken for one.
    labelled : int
        Rows with a value.
    codes : dict
        The number that stands for each text; empty for numbers that are kept as they are.
    classes : tuple of str
        Texts of the classes 0, 1, …; empty for numbers that are kept.
    reason : str
        Why the column is not taken for a target by default; "" where it is.
    mixed : (row, text) or None
        The first text among numbers, if most values are numbers.
    named : bool
        Whether the classes are texts of unknown meaning, such as names of series.
    """

    kind: Target | None
    labelled: int = 0
    codes: Mapping[str, int] | None = None
    classes: tuple[str, ...] = ()
    reason: str = ""
    mixed: tuple[int, str] | None = None
    named: bool = False

    def values(self, texts: Sequence[str]) -> list[str]:
        """Return the column with the number of its class in place of each label."""
        if self.codes is None:
            return list(texts)
        return [str(self.codes[text]) if text in self.codes else "" for text in texts]


def read_labels(texts: Sequence[str]) -> Reading:
    """Read a column, without surrounding blanks, as targets."""
    counts = Counter(texts)
    missing = {text for text in counts if text.lower() in MISSING}
    if "+" in counts:
        missing.discard("-")
    values = {text: count for text, count in counts.items() if text not in missing}
    labelled = sum(values.values())
    if not labelled:
        return Reading(None, reason="no value in any row")
    numbers = {text: parse_number(text) for text in values if _is_number(text)}
    if len(numbers) == len(values):
        return _read_numbers(numbers, labelled, len(texts))
    if 2 * sum(values[text] for text in values if text in numbers or _is_infinite(text)) >= labelled:
        row = next(row for row, text in enumerate(texts) if text in values and text not in numbers)
        return Reading(None, labelled, reason="numbers mixed with text", mixed=(row, texts[row]))
    return _read_words(values, labelled)


def _read_numbers(numbers: Mapping[str, float], labelled: int, rows: int) -> Reading:
    """Read distinct texts as numbers; small sets of whole numbers are classes."""
    found = tuple(sorted(set(numbers.values())))
    if set(found) <= {0.0, 1.0}:
        return Reading("binary", labelled)
    kinds: tuple[tuple[tuple[tuple[float, ...], ...], Target], ...] = (
        (_TWO_NUMBERS, "binary"),
        (_THREE_NUMBERS, "multiclass"),
    )
    for sets, kind in kinds:
        if found in sets:
            codes = {text: found.index(value) for text, value in numbers.items()}
            return Reading(kind, labelled, codes, tuple(f"{value:g}" for value in found))
    whole = all(value.is_integer() for value in found)
    identifier = whole and rows >= _IDENTIFIER_ROWS and len(found) == labelled == rows
    reason = "whole numbers that all differ, as an identifier's" if identifier else ""
    return Reading("regression", labelled, reason=reason)


def _read_words(values: Mapping[str, int], labelled: int) -> Reading:
    lower = {text: text.lower() for text in values}
    for pair in PAIRS:
        if set(lower.values()) <= set(pair):
            shown = tuple(next((text for text, word in lower.items() if word == word_of), word_of) for word_of in pair)
            return Reading("binary", labelled, {text: pair.index(word) for text, word in lower.items()}, shown)
    if len(values) == 1:
        return Reading(None, labelled, reason="the same text in every row")
    reason = ""
    if len(values) > _MOST_CLASSES or labelled < 2 * len(values):
        reason = f"text with {counted(len(values), 'different value')}"
    return read_classes(list(values), labelled, reason)


def read_classes(texts: Sequence[str], labelled: int | None = None, reason: str = "") -> Reading:
    """Read any texts as names of classes, in the order of their numbers or of the alphabet."""
    known = set(texts) if labelled is not None else {text for text in texts if text.lower() not in MISSING}
    classes = tuple(sorted_labels(known))
    count = labelled if labelled is not None else sum(text in known for text in texts)
    codes = {text: number for number, text in enumerate(classes)}
    return Reading("multiclass", count, codes, classes, reason, named=True)


def as_numbers(reading: Reading) -> bool:
    """Whether the texts of a column are numbers, also where they were read as classes."""
    return not reading.named and (reading.codes is None or all(_is_number(text) for text in reading.codes))


def _is_number(text: str) -> bool:
    try:
        return not np.isnan(parse_number(text))
    except ValueError:
        return False


def _is_infinite(text: str) -> bool:
    return text.lower().lstrip("+-") in {"inf", "infinity"}


def class_codes(reading: Reading, texts: Sequence[str]) -> NDArray[np.int32]:
    """Return the class of each row (R, 1), -1 where missing."""
    codes = reading.codes or {}
    return np.array([codes.get(text, -1) for text in texts], dtype=np.int32).reshape(-1, 1)
