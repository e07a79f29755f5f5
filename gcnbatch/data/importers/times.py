"""A column of dates or numbers that orders rows in time: dates become days since 1970-01-01, in one form per column."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from math import isnan, nan

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.importers.cells import MISSING, parse_number
from gcnbatch.errors import InputError
from gcnbatch.text import printable, quoted

_CLOCK = re.compile(r"(.*?)(?:[ T]+(\d{1,2}):(\d\d)(?::(\d\d(?:\.\d+)?))?\s*([ap]m)?)?", re.I | re.S)
_FORMS = {
    "2020-01-31": "",
    "2020-01": "%Y-%m",
    "2020/01/31": "%Y/%m/%d",
    "31.01.2020": "%d.%m.%Y",
    **{f"31{sign}Jan{sign}2020": f"%d{sign}%b{sign}%Y" for sign in " -/"},
    "31-Jan-20": "%d-%b-%y",
    "31 January 2020": "%d %B %Y",
    "Jan 31, 2020": "%b %d, %Y",
    "January 31, 2020": "%B %d, %Y",
    "Jan 2020": "%b %Y",
    **{
        f"31{sign}01{sign}{year}": f"%d{sign}%m{sign}{code}"
        for sign in "/-"
        for year, code in (("2020", "%Y"), ("20", "%y"))
    },
    **{
        f"01{sign}31{sign}{year}": f"%m{sign}%d{sign}{code}"
        for sign in "/-"
        for year, code in (("2020", "%Y"), ("20", "%y"))
    },
}
_EXPECTED = "dates in one form, such as 2020-01-31, or numbers"


def read_times(place: str, texts: Sequence[str]) -> tuple[NDArray[np.float64], str]:
    """Return the time of each row (R,), NaN where missing, and what was read, for the user.

    Parameters
    ----------
    place : str
        Table and column, for messages.
    texts : list of str
        One per row, without surrounding blanks.

    Raises
    ------
    InputError
        When no row has a time, a text is neither a date nor a number, or day and month cannot be told apart.
    """
    first: dict[str, int] = {}  # row of each text
    for row, text in enumerate(texts):
        if text.lower() not in MISSING:
            first.setdefault(text, row)
    if not first:
        raise InputError(place, "no value in any row", _EXPECTED)
    known: dict[str, float] | None
    if (known := _read(_number, first)) is not None:
        found, said = known, "numbers, larger is newer"
    else:
        readings = {form: known for form, code in _FORMS.items() if (known := _read(_dates(code), first)) is not None}
        if not readings:
            raise _unreadable(place, first)
        if len(readings) > 1 and len({tuple(reading.values()) for reading in readings.values()}) > 1:
            one, other, *_ = readings
            got = f"dates such as {quoted(next(iter(first)))}: {one} or {other} fits all rows"
            raise InputError(place, got, "days and months that can be told apart", "Write dates as 2020-01-31.")
        found = next(iter(readings.values()))
        ends = [
            date.fromordinal(int(days // 1) + _EPOCH).isoformat() for days in (min(found.values()), max(found.values()))
        ]
        said = f"dates, {ends[0]} to {ends[1]}"
    return np.array([found.get(text, nan) for text in texts], np.float64), said


_EPOCH = date(1970, 1, 1).toordinal()


def _read(reader: Callable[[str], float], first: dict[str, int]) -> dict[str, float] | None:
    """Return what the reader makes of each text; None if it cannot read one."""
    found = {}
    for text in first:
        try:
            found[text] = reader(text)
        except (ValueError, OverflowError):
            return None
    return found


def _number(text: str) -> float:
    value = parse_number(text)
    if isnan(value):
        raise ValueError(text)
    return value


def _dates(code: str) -> Callable[[str], float]:
    """Return what reads a date in a form of `strptime`, "" for ISO 8601, with or without the time of day."""

    def read(text: str) -> float:
        if not code:
            moment = datetime.fromisoformat(text)
        else:
            parts = _CLOCK.fullmatch(text)
            assert parts is not None
            moment = datetime.strptime(parts[1], code)
            hours = int(parts[2] or 0) % (12 if parts[5] else 24) + 12 * ((parts[5] or "").lower() == "pm")
            moment = moment.replace(hour=hours, minute=int(parts[3] or 0), second=int(float(parts[4] or 0)))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / 86400

    return read


def _unreadable(place: str, first: dict[str, int]) -> InputError:
    """Return the error for the first text that the form of most others does not read."""
    most, wrong = -1, next(iter(first))
    for reader in (_number, *map(_dates, _FORMS.values())):
        readable = set()
        for text in first:
            with suppress(ValueError, OverflowError):
                reader(text)
                readable.add(text)
        if len(readable) > most:
            most, wrong = len(readable), next(text for text in first if text not in readable)
    return InputError(f"{place}, row {first[wrong] + 1}", quoted(printable(wrong)), _EXPECTED, "Correct the cell.")
