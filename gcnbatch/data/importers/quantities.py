"""Numbers as tables of measurements write them: ``1,500.5``, ``1 500``, ``2.5 uM``, ``>10``.

A column of them becomes numbers in one unit. Values in other units of the same kind are converted to the most frequent
one, exactly. A bound, as ``>10``, counts as the number that it names, and its direction is kept.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from math import isfinite, nan
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.cells import MISSING, NUMBER, about_no_number, plain_numbers
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

_PREFIXES = {"": 0, "m": -3, "u": -6, "n": -9, "p": -12, "f": -15}
_LITRES = {"L": 0, "dL": -1, "mL": -3, "uL": -6}
_MASSES = {"kg": 3, **{f"{prefix}g": power for prefix, power in _PREFIXES.items() if prefix != "f"}}
_OTHERS = {
    "time": {"ms": "1/1000", "s": "1", "min": "60", "h": "3600", "d": "86400"},
    "share": {"%": "1", "‰": "1/10"},
    "molar energy": {"J/mol": "1/1000", "kJ/mol": "1", "cal/mol": "0.004184", "kcal/mol": "4.184"},
    "energy": {"meV": "1/1000", "eV": "1"},
    "length": {"pm": "1e-12", "nm": "1e-9", "um": "1e-6", "mm": "1e-3", "cm": "1e-2", "m": "1", "Å": "1e-10"},
    "speed": {"nm/s": "1e-9", "um/s": "1e-6", "mm/s": "1e-3", "cm/s": "1e-2", "m/s": "1"},
    "degrees Celsius": {"°C": "1"},  # scales of temperature have different zeros
    "degrees Fahrenheit": {"°F": "1"},
    "kelvin": {"K": "1"},
}
_SPELLINGS = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
    **{"percent": "%", "degC": "°C", "degF": "°F", "Da": "g/mol", "kDa": "kg/mol"},
}
# The unit in a column's name: in brackets, or at its end. There, letters and words with other meanings are no units.
_BRACKETS = re.compile(r"[(\[]\s*(?:in\s+)?([^()\[\]]+?)\s*[)\]]\s*$")
_END = re.compile(r"[\s_/,](?:in[\s_])?([^\s_,()\[\]]{2,})$")
_OTHER_MEANINGS = {"min", "pm", "nm", "um", "mm"}  # minimum; molar units in lower case
_LOGARITHM = re.compile(r"(?i:log)|\bln\b|^p[A-Z]", re.ASCII)
_INVERSE = re.compile(r" ?[·*]?([A-Za-z]+)(?:\^?-1|⁻¹)")  # L-1 is /L
_LITRE = re.compile(r"(?<![A-Za-z])([dmu]?)l(?![A-Za-z])")


def spelled(text: str) -> str:
    """Return a unit in its usual spelling; an unknown one stays as it is.

    >>> [spelled(text) for text in ("µM", "umol/l", "mg mL-1", "hours", "stars")]
    ['uM', 'umol/L', 'mg/mL', 'h', 'stars']
    """
    plain = unicodedata.normalize("NFC", text.replace("\N{MICRO SIGN}", "u").replace("\N{GREEK SMALL LETTER MU}", "u"))
    plain = _LITRE.sub(r"\1L", _INVERSE.sub(r"/\1", plain)).replace(" / ", "/")
    plain = _SPELLINGS.get(plain, plain)
    return plain if plain in _known() else text


def unit_of_name(name: str) -> str:
    """Return the unit, as `spelled` returns it, that the name of a column of measured values states; "" without one.

    >>> [unit_of_name(name) for name in ("IC50 (nM)", "Ki [µM]", "IC50_nM", "half-life, h", "pIC50 (nM)", "dose_min")]
    ['nM', 'uM', 'nM', '', '', '']
    """
    if _LOGARITHM.search(name):
        return ""
    if found := _BRACKETS.search(name):
        unit = spelled(found[1])
        return unit if is_known(unit) else ""
    found = _END.search(name)
    unit = spelled(found[1]) if found else ""
    return unit if is_known(unit) and unit not in _OTHER_MEANINGS else ""


def is_known(unit: str) -> bool:
    """Return whether a unit, as `spelled` returns it, is one of the table."""
    return unit in _known()


def factor(unit: str, other: str) -> Fraction | None:
    """Return how many of `other` one `unit` is; None if they are not of one known kind.

    >>> factor("nM", "uM"), factor("h", "min"), factor("mg/mL", "uM")
    (Fraction(1, 1000), Fraction(60, 1), None)
    """
    if unit == other:
        return Fraction(1)
    known = _known()
    if unit not in known or other not in known or known[unit][0] != known[other][0]:
        return None
    return known[unit][1] / known[other][1]


@cache
def _known() -> dict[str, tuple[str, Fraction]]:
    """Return the kind of each unit, and what one of it is in the kind's first unit."""
    decimal = {unit: (kind, Fraction(10) ** power) for unit, kind, power in _decimal()}
    others = {unit: (kind, Fraction(value)) for kind, units in _OTHERS.items() for unit, value in units.items()}
    return decimal | others


def _decimal() -> Iterator[tuple[str, str, int]]:
    """Yield units that differ by powers of ten: name, kind and power."""
    for prefix, power in _PREFIXES.items():
        yield f"{prefix}M", "molar concentration", power
        yield f"{prefix}mol/kg", "molar dose", power
        for litre, of in _LITRES.items():
            yield f"{prefix}mol/{litre}", "molar concentration", power - of
    for mass, power in _MASSES.items():
        yield mass, "mass", power
        yield f"{mass}/kg", "dose", power
        yield f"{mass}/mol", "molar mass", power
        for litre, of in _LITRES.items():
            yield f"{mass}/{litre}", "mass concentration", power - of


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
        if (values := plain_numbers(texts)) is not None:
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
