"""Plain-text tables for stdout: aligned, without colours, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gcnbatch.text import printable

_MISSING = "–"
_LONGEST = 500  # characters of a text; a file can hold a million


def facts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return ``name   value`` lines with aligned values; pairs without a value are omitted."""
    shown = [(printable(name, _LONGEST), printable(value, _LONGEST)) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    return [f"{name:<{width}}  {value}" for name, value in shown]


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> list[str]:
    """Return aligned lines: the first `left` columns to the left, the others (numbers) to the right.

    Whole numbers get thousands separators, other numbers four significant digits; None is a dash.
    """
    cells = [tuple(map(cell, header)), *(tuple(cell(value) for value in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [str.ljust] * left + [str.rjust] * (len(widths) - left)
    return [
        "  ".join(align(text, width) for align, text, width in zip(aligned, row, widths, strict=True)).rstrip()
        for row in cells
    ]


def by_task(figures: Mapping[str, Any], title: str) -> list[str]:
    """Return a blank line and a line per task of these metrics, if several tasks have errors in different units."""
    tasks = figures.get("tasks", {})
    if len(tasks) < 2 or not all("rmse" in of for of in tasks.values()):
        return []
    from gcnbatch.metrics import label

    names = ("labelled", "rmse", "mae", "r2")
    units = any("unit" in of for of in tasks.values())
    header = [title, *(["unit"] if units else []), *map(label, names)]
    rows = [[task, *([of.get("unit", "")] if units else []), *map(of.get, names)] for task, of in tasks.items()]
    return ["", *table(header, rows, left=1 + units)]


def cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return _MISSING
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value), _LONGEST)


def size(count: int) -> str:
    """Return a number of bytes in the largest binary unit in which it is at least 1."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
