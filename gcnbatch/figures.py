"""Common parts of all figures: panels, colours, legends, names, and reproducible PNG files.

matplotlib is imported when a figure is drawn; pyplot and a display are not used. The colours are Okabe and Ito's, which
colour-blind readers can distinguish.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from gcnbatch import fileio
from gcnbatch.fileio import StrPath
from gcnbatch.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"


def panels(rows: int, columns: int, width: float, height: float, grid: bool = True) -> tuple[Figure, list[Axes]]:
    """Return a figure of `rows` x `columns` panels, each of this size in inches, and its axes in one list."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), dpi=120, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        if grid:
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(color="#E0E0E0", linewidth=0.6)
            ax.set_axisbelow(True)
    return figure, axes


def legend_above(ax: Axes, columns: int = 2) -> None:
    """Put the legend above the axes, where it covers no data."""
    ax.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, frameon=False, fontsize=8, columnspacing=1.2
    )


def plain(name: str, length: int = 24) -> str:
    """Return a name given by the user as one short line, with mathematics markup escaped."""
    return printable(" ".join(name.split()), length).replace("$", r"\$")


def save(figure: Figure, path: StrPath) -> None:
    """Write a PNG atomically; its bytes depend on the picture alone. A character that the font lacks becomes a box."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        fileio.write_with(path, lambda name: figure.savefig(name, format="png", metadata={"Software": None}))
