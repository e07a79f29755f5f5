"""Common parts of all figures: panels, colours, legends, names, and reproducible PNG files.

matplotlib is imported when a figure is drawn; pyplot and a display are not used. The colours are Okabe and Ito's, which
colour-blind readers can distinguish.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import fileio
from gcnbatch.fileio import StrPath
from gcnbatch.outputs import Kind, begins_with
from gcnbatch.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
FIGURE = Kind("a figure", begins_with(rb"\x89PNG\r\n\x1a\n"), (".png",))


def load_matplotlib() -> None:
    """Import matplotlib, also where it refuses MPLBACKEND: that is pyplot's window, and no figure here has one."""
    if "matplotlib" in sys.modules:
        return
    backend = os.environ.pop("MPLBACKEND", "")
    try:
        import matplotlib
    finally:
        if backend:
            os.environ["MPLBACKEND"] = backend
    if backend:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = backend  # for a caller that uses pyplot


def panels(rows: int, columns: int, width: float, height: float, grid: bool = True) -> tuple[Figure, list[Axes]]:
    """Return a figure of `rows` x `columns` panels, each of this size in inches, and its axes in one list."""
    load_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), dpi=120, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        if grid:
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(color="#E0E0E0", linewidth=0.6)
            ax.set_axisbelow(True)
    return figure, axes


def ticker() -> Any:
    """Return the module `matplotlib.ticker`."""
    load_matplotlib()
    import matplotlib.ticker

    return matplotlib.ticker


def legend_above(ax: Axes, columns: int = 2) -> None:
    """Put the legend above the axes, where it covers no data."""
    ax.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, frameon=False, fontsize=8, columnspacing=1.2
    )


def plain(name: str, length: int = 24) -> str:
    """Return a name given by the user as one short line, with mathematics markup escaped."""
    return printable(" ".join(name.split()), length).replace("$", r"\$")


def rehearse() -> None:
    """Draw a figure and drop it: the first figure of a process loads fonts and modules, which takes 0.2 s."""
    figure, axes = panels(1, 1, width=2.0, height=2.0)
    axes[0].plot([0.0, 1.0], [0.0, 1.0], label="0")
    axes[0].set(xlabel="x", ylabel="y", title="title")
    legend_above(axes[0])
    png(figure)


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file, which depend on the picture alone.

    A character that the font lacks becomes a box. The figure is drawn once; `Figure.savefig` would draw it twice.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stream = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        if engine := figure.get_layout_engine():
            engine.execute(figure)
            figure.set_layout_engine("none")
        canvas.print_png(stream, metadata={"Software": None})
    return stream.getvalue()


def save(figure: Figure, path: StrPath) -> None:
    """Write a figure as a PNG file, atomically."""
    fileio.write_with(path, lambda name: Path(name).write_bytes(png(figure)))
