"""Charts of the report as PNG: training, inference, time per operation, and a timeline of one step per backend."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.figures import BLUE, GREEN, GREY, ORANGE, legend_above, panels, save
from gcnbatch.lab.backend_comparison.operations import FAMILIES
from gcnbatch.lab.backend_comparison.timeline import OTHER, Trace
from gcnbatch.pages.elements import MISSING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = ("training.png", "inference.png", "operations.png", "timeline.png")
BACKEND_COLOURS = (GREY, ORANGE, BLUE, GREEN)
FAMILY_COLOURS = (
    *("#BBBBBB", "#0072B2", "#56B4E9", "#E69F00", "#117733", "#D55E00", "#009E73"),
    *("#F0E442", "#CC79A7", "#882255", "#44AA99", "#332288", "#AA4499", "#DDCC77", "#88CCEE", "#999933", "#666666"),
    *("#661100", "#6699CC"),
)
LOGARITHMIC_FROM = 30  # ratio of the longest to the shortest bar above which an axis is logarithmic


def draw(folder: Path, content: dict[str, Any], traces: Sequence[Trace]) -> list[str]:
    """Draw all charts into `folder` and return the names of the files; none without measurements."""
    if not content["timing"]:
        return []
    for work, unit in (("training", "an epoch"), ("inference", "the data set")):
        _passes(content, work, unit, folder / f"{work}.png")
    _operations(content["operations"], folder / "operations.png")
    _timeline(traces, folder / "timeline.png")
    return list(NAMES)


def _passes(content: dict[str, Any], work: str, unit: str, path: Path) -> None:
    figures = {name: one[work]["seconds"] for name, one in content["timing"].items()}
    figure, (ax,) = panels(1, 1, width=7.2, height=0.75 + 0.5 * len(figures))
    medians = [seconds["median"] for seconds in figures.values()]
    errors = [
        [seconds["median"] - seconds["p20"] for seconds in figures.values()],
        [seconds["p80"] - seconds["median"] for seconds in figures.values()],
    ]
    bars = ax.barh(list(figures), medians, color=_colours(len(figures)), height=0.62, xerr=errors, ecolor="#333333")
    speedups = content["speedup"][work]
    labels = []
    for name, median in zip(figures, medians, strict=True):
        over = [f"{ratio(factors[name])} over {base}" for base, factors in speedups.items() if name in factors]
        labels.append("   ".join([f"{number(median)} s", *over]))
    ax.bar_label(bars, labels, padding=6, fontsize=8)  # right of the whiskers
    ax.set(xlabel=f"seconds for {unit} (median, 20 – 80 %)")
    _finish(ax, [*medians, *(seconds["p80"] for seconds in figures.values())])
    save(figure, path)


def _operations(operations: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw a bar per operation and backend, forward and backward."""
    labels = list(dict.fromkeys(label for rows in operations.values() for label in rows))
    figure, (ax,) = panels(1, 1, width=7.2, height=1.2 + 0.24 * len(labels) * len(operations))
    thickness = 0.8 / len(operations)
    drawn: list[float] = []
    for which, ((name, rows), colour) in enumerate(zip(operations.items(), _colours(len(operations)), strict=True)):
        present = [(place, rows[label]["microseconds"]) for place, label in enumerate(labels) if label in rows]
        places = [place + (which - (len(operations) - 1) / 2) * thickness for place, _ in present]
        times = [time for _, time in present]
        ax.barh(places, times, height=thickness * 0.92, color=colour, label=name)
        for place, time in zip(places, times, strict=True):
            ax.annotate(number(time), (time, place), (3, 0), textcoords="offset points", va="center", fontsize=6.5)
        drawn += times
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.set(xlabel="us per training step")
    ax.margins(y=0.01)
    _finish(ax, drawn)
    legend_above(ax, columns=len(operations))
    save(figure, path)


def _timeline(traces: Sequence[Trace], path: Path) -> None:
    """Draw a panel per backend with its own time axis: calls on the host above kernels on the device."""
    figure, axes = panels(len(traces), 1, width=9.0, height=1.45)
    seen = {span.family for one in traces for span in (*one.host, *one.device)}
    families = [family for family in (*FAMILIES, OTHER.family) if family in seen]
    colours = dict(zip(families, cycle(FAMILY_COLOURS), strict=False))
    for ax, one in zip(axes, traces, strict=True):
        lanes = [("host", one.host), *([("device", one.device)] if one.device else [])]
        for place, (_, spans) in enumerate(reversed(lanes)):
            bars = [(span.start, span.length) for span in spans]
            shades = [colours[span.family] for span in spans]
            ax.broken_barh(bars, (place - 0.36, 0.72), color=shades, linewidth=0.6)
        ax.set_yticks(range(len(lanes)), [lane for lane, _ in reversed(lanes)], fontsize=8)
        ax.set(xlim=(0, one.length), ylim=(-0.55, len(lanes) - 0.45))
        ax.tick_params(labelsize=8)
        ax.set_title(f"{one.backend}: one step, {number(one.length)} us", loc="left", fontsize=9)
        ax.grid(axis="y", visible=False)
    axes[-1].set_xlabel("us; every panel has its own scale")
    handles = [axes[0].barh(0, 0, color=colours[family], label=family) for family in families]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    save(figure, path)


def _finish(ax: Axes, lengths: Sequence[float]) -> None:
    """Put the first bar on top and make room for labels; use a logarithmic axis, and say so, if bars differ much."""
    ax.invert_yaxis()
    ax.tick_params(labelsize=8)
    ax.grid(axis="y", visible=False)
    positive = [length for length in lengths if length > 0]
    if positive and max(positive) > LOGARITHMIC_FROM * min(positive):
        ax.set(xscale="log", xlim=(min(positive) / 2, max(positive) * 12))
        ax.set_xlabel(f"{ax.get_xlabel()}, logarithmic")
    elif positive:
        ax.set_xlim(0, max(positive) * 1.6)


def _colours(count: int) -> list[str]:
    return [BACKEND_COLOURS[number % len(BACKEND_COLOURS)] for number in range(count)]


def number(value: float | None) -> str:
    """Return a number with three significant digits, with an exponent only if it is very small or large."""
    if value is None:
        return MISSING
    if value and not 1e-3 <= abs(value) < 1e9:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Return a speedup, such as ``23.4x``."""
    return f"{value:,.0f}x" if value >= 100 else f"{value:.3g}x"
