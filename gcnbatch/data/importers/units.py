"""Units of measured values: their spellings, and exact factors between units of one kind."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

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
