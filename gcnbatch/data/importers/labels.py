"""Reading of a text column as targets: numbers, or labels that become classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.cells import MISSING, SEVERAL_VALUES, is_infinite, parse_number, sorted_labels
from gcnbatch.data.importers.quantities import (
    Quantities,
    Quantity,
    QuantityColumn,
    is_known,
    read_quantity,
    unit_of_name,
)
from gcnbatch.data.schema import Target
from gcnbatch.text import counted, quoted

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
LIKE_IDS = "whole numbers that all differ, as an identifier's"
_IDENTIFIER_ROWS = 10  # whole numbers that all differ look like an identifier from this number of rows on


@dataclass(frozen=True)
class ColumnReading:
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
    unit : str
        The most frequent unit of numbers.
    missing : dict of int
        Texts that count as missing values, with their rows.
    """

    kind: Target | None
    labelled: int = 0
    codes: Mapping[str, int] | None = None
    classes: tuple[str, ...] = ()
    reason: str = ""
    mixed: tuple[int, str] | None = None
    named: bool = False
    unit: str = ""
    missing: Mapping[str, int] = field(default_factory=dict)


def read_labels(texts: Sequence[str], measured: bool = False) -> ColumnReading:
    """Read a column, without surrounding blanks, as targets; `measured`: the user says that it has measured values."""
    counts = Counter(texts)
    missing = {text for text in counts if text.lower() in MISSING}
    if "+" in counts:
        missing.discard("-")
    values = {text: count for text, count in counts.items() if text not in missing}
    lost = {text: counts[text] for text in sorted(missing) if text}
    labelled = sum(values.values())
    if not labelled:
        return ColumnReading(None, reason="no value in any row")
    numbers = {text: parse_number(text) for text in values if _is_number(text)}
    if len(numbers) == len(values):
        return replace(_read_numbers(numbers, labelled, len(texts)), missing=lost)
    quantities = _quantities(values, measured)
    if len(quantities) == len(values):
        return replace(_read_quantities(quantities, values, labelled), missing=lost)
    if 2 * sum(values[text] for text in values if text in quantities or is_infinite(text)) >= labelled:
        row = next(row for row, text in enumerate(texts) if text in values and text not in quantities)
        return ColumnReading(None, labelled, reason="numbers mixed with text", mixed=(row, texts[row]))
    return replace(_read_words(values, labelled), missing=lost)


def _quantities(values: Mapping[str, int], measured: bool) -> dict[str, Quantity]:
    """Return the texts that are numbers, perhaps with units or bounds.

    Texts such as 2C9 or 3d are numbers where they are said to be `measured`; else only where all have this unit and
    differ as measured values do.
    """
    found = {text: one for text in values if (one := read_quantity(text)) is not None}
    if measured:
        return found
    strange = {one.unit for one in found.values() if one.unit.isalpha() and len(one.unit) == 1}
    strange |= {one.unit for one in found.values() if one.unit and not is_known(one.unit)}
    numbers = [one.value for one in found.values()]
    varies = len(set(numbers)) > _MOST_CLASSES or not all(map(float.is_integer, numbers))
    if len(strange) == 1 and varies and all(one.unit in strange for one in found.values()):
        return found
    return {text: one for text, one in found.items() if one.unit not in strange or (varies and is_known(one.unit))}


def _read_quantities(found: Mapping[str, Quantity], rows: Mapping[str, int], labelled: int) -> ColumnReading:
    units = Counter[str]()
    for text, one in found.items():
        units[one.unit] += rows[text]
    unit = units.most_common(1)[0][0]
    reason = f"numbers in the unknown unit {quoted(unit)}" if unit and not is_known(unit) else ""
    return ColumnReading("regression", labelled, reason=reason, unit=unit)


def _read_numbers(numbers: Mapping[str, float], labelled: int, rows: int) -> ColumnReading:
    """Read distinct texts as numbers; small sets of whole numbers are classes."""
    found = tuple(sorted(set(numbers.values())))
    if set(found) <= {0.0, 1.0}:
        return ColumnReading("binary", labelled)
    kinds: tuple[tuple[tuple[tuple[float, ...], ...], Target], ...] = (
        (_TWO_NUMBERS, "binary"),
        (_THREE_NUMBERS, "multiclass"),
    )
    for sets, kind in kinds:
        if found in sets:
            codes = {text: found.index(value) for text, value in numbers.items()}
            return ColumnReading(kind, labelled, codes, tuple(f"{value:g}" for value in found))
    whole = all(value.is_integer() and abs(value) < 2**53 for value in found)  # beyond, all numbers are
    identifier = whole and rows >= _IDENTIFIER_ROWS and len(found) == labelled == rows
    reason = LIKE_IDS if identifier else ""
    return ColumnReading("regression", labelled, reason=reason)


def _read_words(values: Mapping[str, int], labelled: int) -> ColumnReading:
    lower = {text: text.lower() for text in values}
    for pair in PAIRS:
        if set(lower.values()) <= set(pair):
            shown = tuple(next((text for text, word in lower.items() if word == word_of), word_of) for word_of in pair)
            return ColumnReading("binary", labelled, {text: pair.index(word) for text, word in lower.items()}, shown)
    if len(values) == 1:
        return ColumnReading(None, labelled, reason="the same text in every row")
    reason = ""
    if any("\n" in text for text in values):
        reason = SEVERAL_VALUES
    elif len(values) > _MOST_CLASSES or labelled < 2 * len(values):
        reason = f"text with {counted(len(values), 'different value')}"
    return read_classes(list(values), labelled, reason)


def read_classes(texts: Sequence[str], labelled: int | None = None, reason: str = "") -> ColumnReading:
    """Read any texts as names of classes, in the order of their numbers or of the alphabet."""
    counts = Counter(texts)
    lost = {} if labelled is not None else {text: counts[text] for text in counts if text.lower() in MISSING}
    classes = tuple(sorted_labels(counts.keys() - lost.keys()))
    count = labelled if labelled is not None else counts.total() - sum(lost.values())
    codes = {text: number for number, text in enumerate(classes)}
    named = {text: number for text, number in sorted(lost.items()) if text}
    return ColumnReading("multiclass", count, codes, classes, reason, named=True, missing=named)


def in_unit_of(name: str, reading: ColumnReading, texts: Sequence[str]) -> ColumnReading:
    """Return the reading of measured values in the unit that the column's name states for numbers without one."""
    if reading.kind != "regression" or not (unit := unit_of_name(name)):
        return reading
    bare = not reading.unit or any((one := read_quantity(text)) is not None and not one.unit for text in set(texts))
    return replace(reading, unit=unit) if bare else reading


def as_numbers(reading: ColumnReading) -> bool:
    """Whether the texts of a column are numbers, also where they were read as classes."""
    return not reading.named and (reading.codes is None or all(_is_number(text) for text in reading.codes))


def _is_number(text: str) -> bool:
    try:
        return not np.isnan(parse_number(text))
    except ValueError:
        return False


def class_codes(reading: ColumnReading, texts: Sequence[str]) -> NDArray[np.int32]:
    """Return the class of each row (R, 1), -1 where missing."""
    codes = reading.codes or {}
    return np.array([codes.get(text, -1) for text in texts], dtype=np.int32).reshape(-1, 1)


def quantities(path: Path, name: str, reading: ColumnReading, texts: Sequence[str]) -> Quantities:
    """Return a column of numbers, or of labels that stand for 0 and 1.

    Raises
    ------
    InputError
        As `QuantityColumn`.
    """
    if reading.codes is not None:
        codes = class_codes(reading, texts)[:, 0]
        return Quantities(np.where(codes < 0, np.nan, codes), missing=reading.missing)
    column = QuantityColumn(path, name)
    column.add(texts)
    return column.finish()
