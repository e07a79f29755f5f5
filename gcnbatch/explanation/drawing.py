"""Drawings of explained molecules: what raises an output is orange, what lowers it blue; the stronger, the denser.

An atom has a disc that fades out, a bond a line. A drawing holds numbers, colours and the names of the tasks, escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.molecule_drawings import HEIGHT, WIDTH, Layout
from gcnbatch.text import html

RAISES, LOWERS = "#d55e00", "#0072b2"  # of Okabe and Ito: also without red and green they differ
LEGEND = 36  # height of the lines below a panel
COLUMNS = 4  # panels side by side
MARGIN = 16  # around a drawing, for the discs of atoms at its edge
FAINT = 4  # per cent of the strongest mark, below which a mark is left out
_STOPS = '<stop offset="0.2" stop-color="{0}" stop-opacity="0.9"/><stop offset="1" stop-color="{0}" stop-opacity="0"/>'
GRADIENTS = "".join(
    f'<radialGradient id="{name}">{_STOPS.format(colour)}</radialGradient>'
    for name, colour in (("raises", RAISES), ("lowers", LOWERS))
)


class Panel(NamedTuple):
    """An output of a molecule: lines of text, and values of the marks (M,), per cent of the strongest."""

    lines: tuple[str, str]
    values: NDArray[np.int64]


def radius(layout: Layout) -> float:
    """Return the radius of an atom's disc: most of a bond's length, and at most MARGIN."""
    if not layout.bonds:
        return float(MARGIN)
    points = np.array(layout.points)
    first, second = np.array(layout.bonds).T
    lengths = np.hypot(*(points[first] - points[second]).T)
    return min(round(float(np.median(lengths)) * 0.75, 1), float(MARGIN))


def blank(layout: Layout) -> str:
    """Return the molecule with marks that a script colours, as elements of an SVG: its bonds, then its atoms."""
    size = radius(layout)
    width = round(size * 0.5, 1)
    lines = "".join(f'<line {_ends(layout, index)} stroke-width="{width}"/>' for index in range(len(layout.bonds)))
    discs = "".join(f'<circle cx="{x}" cy="{y}" r="{size}"/>' for x, y in layout.points)
    return f'<g class="marks" fill="none" stroke-linecap="round" opacity="0.8">{lines}{discs}</g>{layout.paths}'


def file(layout: Layout, panels: Sequence[Panel]) -> str:
    """Return the text of an SVG file with a panel for every output."""
    columns, high = min(len(panels), COLUMNS), HEIGHT + LEGEND
    width, height = columns * WIDTH + 2 * MARGIN, -(-len(panels) // columns) * high + 2 * MARGIN
    size = radius(layout)
    discs = "".join(f'<circle id="{name}-atom" r="{size}" fill="url(#{name})"/>' for name in ("raises", "lowers"))
    placed = "".join(
        f'<g transform="translate({index % columns * WIDTH} {index // columns * high})">{_panel(layout, panel)}</g>\n'
        for index, panel in enumerate(panels)
    )
    box = f'viewBox="{-MARGIN} {-MARGIN} {width} {height}" width="{width}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="12" text-anchor="middle">\n'
        f'<defs>{GRADIENTS}{discs}<g id="molecule">{layout.paths}</g></defs>\n'
        f'<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" fill="#fff"/>\n{placed}</svg>\n'
    )


def _panel(layout: Layout, panel: Panel) -> str:
    width = round(radius(layout) * 0.5, 1)
    lines, discs = [], []
    for index, value in enumerate(panel.values.tolist()):
        if abs(value) < FAINT:
            continue
        kind, colour = ("raises", RAISES) if value > 0 else ("lowers", LOWERS)
        if index < len(layout.bonds):
            looks = f'stroke="{colour}" stroke-width="{width}" opacity="{abs(value) / 100:g}"'
            lines.append(f"<line {_ends(layout, index)} {looks}/>")
        else:
            x, y = layout.points[index - len(layout.bonds)]
            discs.append(f'<use href="#{kind}-atom" x="{x}" y="{y}" opacity="{abs(value) / 100:g}"/>')
    texts = "".join(
        f'<text x="{WIDTH / 2:g}" y="{HEIGHT + 12 + 16 * row}">{html(line)}</text>'
        for row, line in enumerate(panel.lines)
    )
    marks = f'<g stroke-linecap="round" opacity="0.8">{"".join(lines)}{"".join(discs)}</g>'
    return f'{marks}<use href="#molecule"/>{texts}'


def _ends(layout: Layout, bond: int) -> str:
    """Return the ends of a bond as attributes of a line."""
    (x1, y1), (x2, y2) = (layout.points[end] for end in layout.bonds[bond])
    return f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
