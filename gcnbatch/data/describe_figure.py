"""Figure of a data set: distributions of graph sizes, degrees and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.describe import Description, Distribution, TaskLabels
from gcnbatch.figures import BLUE, GREY, ORANGE, legend_above, panels, plain, save, ticker
from gcnbatch.fileio import Output
from gcnbatch.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BARS = 60  # at most; wider ranges are binned
_TAIL = 5  # logarithmic axes if the maximum exceeds the 95th percentile by more than this factor
_NAMED = 30  # more tasks or classes than this are drawn without names
_DRAWN = 500  # more tasks or classes than this are not drawn


def draw(description: Description, y: NDArray[Any], path: Output) -> None:
    """Write a PNG with node counts (unless there is one graph), degrees, and labels per task.

    Parameters
    ----------
    description : Description
    y : (R, K)
        The targets, for the histograms of a regression set.
    path : Output
        PNG file, written atomically.
    """
    many = description.graphs > 1
    rows = len(description.header.class_names) or len(description.tasks)
    height = float(np.clip(0.24 * rows + 1.0, 3.4, 8.0)) if rows <= _NAMED else 4.5
    figure, axes = panels(1, 2 + many, 4.6, height)
    if many:
        _distribution(axes[0], description.nodes_per_graph, "nodes per graph", "graphs")
    _distribution(axes[-2], description.degree, "neighbours per node (without itself)", "nodes")
    _labels(axes[-1], description, y)
    what = f"{counted(description.graphs, 'graph')}, " if many else ""
    title = (
        f"{description.header.name}: {what}{counted(description.nodes, 'node')}, {counted(description.edges, 'edge')}"
    )
    figure.suptitle(plain(title, 100), x=0.01, ha="left", fontsize=11, fontweight="bold")
    save(figure, path)


def _distribution(ax: Axes, distribution: Distribution, label: str, unit: str) -> None:
    summary = distribution.summary()
    ax.set(xlabel=label, ylabel=unit)
    if summary is None:
        _nothing(ax)
        return
    if summary.max > _TAIL * max(summary.p95, 1):
        _tail(ax, distribution)
    else:
        step = -(-(summary.max - summary.min + 1) // _BARS)
        edges = np.arange(summary.min, summary.max + step + 1, step)
        counts, _ = np.histogram(distribution.values, bins=edges, weights=distribution.counts)
        ax.bar(edges[:-1] + (step - 1) / 2, counts, width=0.9 * step, color=BLUE)
        ax.xaxis.set_major_locator(ticker().MaxNLocator(integer=True))
        ax.yaxis.set_major_formatter("{x:,.0f}")
    for value, style, name in ((summary.median, "-", "median"), (summary.mean, "--", "mean")):
        ax.axvline(value, color=ORANGE, linestyle=style, linewidth=1.4, label=f"{name} {value:,.4g}")
    legend_above(ax)


def _tail(ax: Axes, distribution: Distribution) -> None:
    """Draw the number of values at or above each abscissa, on logarithmic axes: a power law is a straight line."""
    reached = np.cumsum(distribution.counts[::-1])[::-1]
    shown = distribution.values > 0
    ax.step(distribution.values[shown], reached[shown], where="pre", color=BLUE, linewidth=1.8)
    ax.set(xscale="log", yscale="log", ylabel=f"{ax.get_ylabel()} with at least so many")


def _labels(ax: Axes, description: Description, y: NDArray[Any]) -> None:
    target = description.header.target
    unit = "nodes" if description.header.level == "node" else "graphs"
    ax.set_xlabel(unit)
    if target == "multiclass":
        task = description.tasks[0]
        _bars(ax, list(task.values), {"labelled": np.array(list(task.values.values()))}, "classes")
        if task.missing:
            ax.set_title(f"{task.missing:,} {unit} without a label", loc="left", fontsize=9)
    elif target == "binary":
        parts = {name: _column(description.tasks, name) for name in ("positive", "negative", "missing")}
        _bars(ax, [task.name for task in description.tasks], parts, "tasks")
        legend_above(ax, columns=3)
    elif len(description.tasks) == 1:
        known = y[~np.isnan(y)]
        ax.hist(known, bins=min(_BARS, max(10, int(np.sqrt(len(known))))), color=BLUE)
        ax.set(xlabel=plain(description.tasks[0].name, 50), ylabel=unit)
    else:
        _boxes(ax, description, y)


def _column(tasks: tuple[TaskLabels, ...], name: str) -> NDArray[np.int64]:
    return np.array([task.missing if name == "missing" else task.values[name] for task in tasks], dtype=np.int64)


def _bars(ax: Axes, names: list[str], parts: dict[str, NDArray[np.int64]], plural: str) -> None:
    """Draw a stacked horizontal bar per name, the first on top."""
    total, names = len(names), names[:_DRAWN]
    places = np.arange(len(names))
    left = np.zeros(len(names))
    colours = (ORANGE, BLUE, GREY) if len(parts) > 1 else (BLUE,)
    for (part, all_counts), colour in zip(parts.items(), colours, strict=True):
        counts = all_counts[:_DRAWN]
        ax.barh(places, counts, left=left, height=0.8 if len(names) <= _NAMED else 1.0, color=colour, label=part)
        left += counts
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    if len(names) <= _NAMED:
        ax.set_yticks(places, [plain(name, 24) for name in names], fontsize=8)
    else:
        ax.set(yticks=[], ylabel=_in_order(total, plural))


def _boxes(ax: Axes, description: Description, y: NDArray[Any]) -> None:
    columns = [column[~np.isnan(column)] for column in y.T[:_DRAWN]]
    box = ax.boxplot(columns, orientation="horizontal", patch_artist=True, showfliers=False)
    for patch, median in zip(box["boxes"], box["medians"], strict=True):
        patch.set(facecolor=BLUE, edgecolor=BLUE)
        median.set(color="white")
    ax.invert_yaxis()
    ax.set_xlabel("value (box: quartiles; whiskers: 1.5 boxes)")
    if len(columns) <= _NAMED:
        ax.set_yticklabels([plain(task.name, 24) for task in description.tasks], fontsize=8)
    else:
        ax.set(yticks=[], ylabel=_in_order(y.shape[1], "tasks"))


def _in_order(total: int, plural: str) -> str:
    return f"{total} {plural}, in order" if total <= _DRAWN else f"the first {_DRAWN} of {total} {plural}, in order"


def _nothing(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.text(0.5, 0.5, "nothing to count", ha="center", va="center", transform=ax.transAxes)
