"""Numbers as tables of measurements write them: ``1,500.5``, ``1 500``, ``2.5 uM``, ``>10``.

A column of them becomes numbers in one unit. Values in other units of the same kind are converted to the most frequent
one, exactly. A bound, as ``>10``, counts as the number that it names, and its direction is kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from math import isfinite, nan
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.cells import MISSING, NUMBER, about_no_number
from gcnbatch.data.importers.units import factor, is_known, spelled, unit_of_name
from gcnbatch.errors import InputError
from gcnbatch.text import counted, quoted

_CELL = re.compile(
    r"(<<|>>|<=|>=|[<>≤≥~≈=]?)\s*"  # sign
    r"([+−-]?(?:\d(?:[\d.,'\s]*\d)?\.?|\.\d+)(?:[eE][+−-]?\d+)?)\s*"  # number
    r"((?:[^\W\d_]|[%‰°])[^,;<>=\x00-\x1f]{0,23}|)"  # unit
)
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_GROUPED = re.compile(  # 1,500.5 and 1,500,000, but not 1,500, which could be a fraction
    r"[+-]?[1-9]\d{0,2}(?:(?:,\d{3})+\.\d*|(?:,\d{3}){2,}|(?:[\s']\d{3})+(?:\.\d*)?)(?:[eE][+-]?\d+)?"
)
_DIRECTIONS = {"<": -1, "<<": -1, "<=": -1, "≤": -1, ">": 1, ">>": 1, ">=": 1, "≥": 1}
_ABOUT = ("~", "≈")
_LONGEST = 80  # characters of a cell


class Quantity(NamedTuple):
    """A number with its unit, "" without; `sign` is what stands before it."""

    value: float
    unit: str = ""
    sign: str = ""

    @property
    def direction(self) -> int:
        """1 if the true value is above the number, -1 if it is below, else 0."""
        return _DIRECTIONS.get(self.sign, 0)


def split_cell(text: str) -> tuple[str, str, str] | None:
    """Return sign, number and unit as they are written; None for another text.

    >>> split_cell(">1,500.5 nM"), split_cell("5-10")
    (('>', '1,500.5', 'nM'), None)
    """
    found = _CELL.fullmatch(text) if len(text) <= _LONGEST else None
    return None if found is None else (found[1], found[2].strip(), found[3])


def read_quantity(text: str) -> Quantity | None:
    """Return a finite number with its unit; None for another text.

    >>> read_quantity("1,500.5 nM"), read_quantity("1,500"), read_quantity("inf")
    (Quantity(value=1500.5, unit='nM', sign=''), None, None)
    """
    if (parts := split_cell(text)) is None:
        return None
    sign, number, unit = parts
    number = number.replace("−", "-")
    if _GROUPED.fullmatch(number):
        number = re.sub(r"[,'\s]", "", number)
    elif not _PLAIN.fullmatch(number):
        return None
    value = float(number)
    return Quantity(value, spelled(unit), sign) if isfinite(value) else None


class Quantities(NamedTuple):
    """A column of numbers in one unit.

    Parameters
    ----------
    values : float64, (R,)
        NaN where missing.
    directions : int8, (R,), or None
        Those of bounds; None without any.
    unit : str
    notes : sequence of str
        What was converted or kept as a bound, for the user.
    missing : dict of int
        Texts that count as missing values, with their rows.
    """

    values: NDArray[np.float64]
    directions: NDArray[np.int8] | None = None
    unit: str = ""
    notes: Sequence[str] = ()
    missing: Mapping[str, int] = MappingProxyType({})


class QuantityColumn:
    """Reads a column of texts, block by block.

    Parameters
    ----------
    path, name
        Table and column, for messages; the name may state the unit of numbers without one, as "IC50 (nM)" does.

    Raises
    ------
    InputError
        Names the row of a text that is not a finite number, or of a unit that does not fit the others.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name, self._unit = path, name, unit_of_name(name)  # of numbers without one
        self._forms: dict[tuple[str, str], int] = {(self._unit, ""): 0}  # unit and sign
        self._first: dict[str, tuple[int, str]] = {}  # row and text of each unit
        self._values: list[NDArray[np.float64]] = []
        self._codes: list[NDArray[np.int32]] = []
        self._lost = Counter[str]()

    def add(self, texts: Sequence[str], before: int = 0) -> None:
        """Add rows without surrounding blanks, after `before` others."""
        with suppress(ValueError):
            values = np.fromiter(map(float, texts), np.float64, len(texts))
            if np.isfinite(values).all() and "_" not in "".join(texts):
                self._values.append(values)
                self._codes.append(np.zeros(len(texts), np.int32))
                if texts:
                    self._first.setdefault(self._unit, (before, texts[0]))
                return
        known: dict[str, tuple[float, int]] = {}
        for row, text in enumerate(texts):
            if text not in known:
                known[text] = self._cell(text, before + row)
        self._values.append(np.array([known[text][0] for text in texts], np.float64))
        self._codes.append(np.array([known[text][1] for text in texts], np.int32))
        if lost := {text for text in known if text and known[text][1] < 0}:
            self._lost.update(text for text in texts if text in lost)

    def _cell(self, text: str, row: int) -> tuple[float, int]:
        if text.lower() in MISSING:
            return nan, -1
        if (found := read_quantity(text)) is None:
            hint = "Write numbers without commas between thousands." if re.search(r"\d,\d{3}(?!\d)", text) else ""
            raise self._refusal((row, text), NUMBER, hint or about_no_number(self._name, [text]))
        unit = found.unit or self._unit
        self._first.setdefault(unit, (row, text))
        return found.value, self._forms.setdefault((unit, found.sign), len(self._forms))

    def _refusal(self, cell: tuple[int, str], expected: str, hint: str = "") -> InputError:
        row, text = cell
        return InputError(f"{self._path}, row {row + 1}, column {quoted(self._name)}", quoted(text), expected, hint)

    def finish(self) -> Quantities:
        """Return all rows."""
        values, codes = np.concatenate(self._values), np.concatenate(self._codes)
        if len(self._forms) == 1:
            are_labels = np.isin(values, (0, 1)) | np.isnan(values)  # 0 and 1 may be labels
            return Quantities(values, unit="" if are_labels.all() else self._unit, missing=self._lost)
        of_forms = {form: int(np.count_nonzero(codes == code)) for form, code in self._forms.items()}
        units, signs = Counter[str](), Counter[str]()
        for (unit, sign), count in of_forms.items():
            units[unit] += count
            signs[sign] += count
        chosen = self._unit if self._unit and units[self._unit] else max(units, key=lambda unit: units[unit])
        directions = np.zeros(len(values), np.int8)
        for (unit, sign), code in self._forms.items():
            rows = codes == code
            directions[rows] = Quantity(0.0, unit, sign).direction
            if unit != chosen and units[unit]:
                self._convert(values, rows, unit, chosen, units[chosen])
        of, others = f"column {quoted(self._name)}", {unit: count for unit, count in units.items() if unit != chosen}
        ties = units[chosen] in others.values()
        rank = "the first of the most frequent units" if ties else "the most frequent unit"
        rank = "the unit in the column's name" if chosen and chosen == self._unit else rank
        notes = [
            f"{of}: {counted(count, 'value')} in {unit} converted to {chosen}, {rank}"
            for unit, count in others.items()
            if count
        ]
        if chosen and not is_known(chosen):
            notes.append(f"{of}: the unit {chosen} is not known and kept as it is")
        notes += self._of_signs(signs)
        return Quantities(values, directions if directions.any() else None, chosen, notes, self._lost)

    def _convert(self, values: NDArray[np.float64], rows: NDArray[np.bool_], unit: str, chosen: str, most: int) -> None:
        """Convert these rows in place; `most` rows are in the `chosen` unit."""
        times = factor(unit, chosen)
        if times is None:
            known = f"a number in {chosen}, or in a unit of its kind" if is_known(chosen) else f"a number in {chosen}"
            expected = known if chosen else "a number without a unit"
            raise self._refusal(self._first[unit], f"{expected}, as in {counted(most, 'row')}")
        distinct, place = np.unique(values[rows], return_inverse=True)
        try:
            values[rows] = np.array([float(Fraction(repr(value)) * times) for value in distinct.tolist()])[place]
        except OverflowError:
            raise self._refusal(self._first[unit], f"a number that is finite in {chosen}") from None

    def _of_signs(self, signs: Counter[str]) -> list[str]:
        """Return notes on bounds and on values of which little is known."""
        of, notes = f"column {quoted(self._name)}", list[str]()
        if bounds := [f"{count:,} with {sign}" for sign, count in signs.items() if count and sign in _DIRECTIONS]:
            notes.append(
                f"{of}: bounds ({', '.join(bounds)}) are kept as the numbers that they name, with their direction "
                "beside them. Metrics leave them out; train.bounds says how a model learns them"
            )
        about = {sign: count for sign, count in signs.items() if count and sign in _ABOUT}
        return [
            *notes,
            *(f"{of}: the sign {sign} of {counted(count, 'value')} is left out" for sign, count in about.items()),
        ]
