"""Figures from records, as in the papers: GFLOPS over columns, one panel per figure, and a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.figures import BLUE, GREEN, GREY, ORANGE, panels, plain, save, ticker
from gcnbatch.lab.bench.spmm.methods import NAMES, SCIPY
from gcnbatch.lab.bench.spmm.runs import Record, by_point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: Mapping[str, dict[str, Any]] = {
    SCIPY: {"label": "SciPy on the CPU", "color": GREY, "marker": "x", "linestyle": ":"},
    "tf-loop": {"label": "loop of TensorFlow-like", "color": "#E69F00", "marker": "v", "linestyle": "--"},
    "cusparse-loop": {"label": "loop of cuSPARSE", "color": "#CC79A7", "marker": "^", "linestyle": "--"},
    "cublas": {"label": "cuBLAS gemmBatched", "color": GREEN, "marker": "s", "linestyle": "-."},
    "cusparse": {"label": "cuSPARSE block-diagonal", "color": "#56B4E9", "marker": "D", "linestyle": "-."},
    "swa-coo": {"label": "Batched SWA SparseTensor", "color": ORANGE, "marker": "<", "linestyle": "-"},
    "swa-csr": {"label": "Batched SWA CSR", "color": "#332288", "marker": ">", "linestyle": "-"},
    "naive": {"label": "naive", "color": GREY, "marker": "1", "linestyle": "-"},
    "csr": {"label": "ours, general", "color": "#999933", "marker": "2", "linestyle": "-"},
    "fastest": {"label": "ours", "color": BLUE, "marker": "o", "linestyle": "-", "linewidth": 2},
}
ACROSS = 3


def draw(path: Path, records: Sequence[Record]) -> None:
    """Write the figure as PNG."""
    names = list(dict.fromkeys(record["figure"] for record in records))
    copied = next((record["copy_gb_per_s"] for record in records if "copy_gb_per_s" in record), None)
    count = len(names) + (copied is not None)
    across = min(ACROSS, count)
    figure, axes = panels(ceil(count / across), across, width=4.0, height=3.2)
    for ax, name in zip(axes, names, strict=False):
        _throughput(ax, name, [record for record in records if record["figure"] == name])
    used = len(names)
    if copied is not None:
        _roofline(axes[used], records, copied)
        used += 1
    for ax in axes[used:]:
        ax.set_visible(False)
    figure.suptitle(_caption(records), fontsize=8, color="#333333")
    lines = {str(line.get_label()): line for ax in axes[: len(names)] for line in ax.get_lines()}
    figure.legend(handles=lines.values(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    save(figure, path)


def _throughput(ax: Axes, name: str, records: Sequence[Record]) -> None:
    """Draw GFLOPS over columns, both axes logarithmic: warm cache, without launch overhead."""
    points = [methods for _, methods in by_point(records)]
    for method in NAMES:
        found = sorted((one[method]["columns"], one[method]["gflops"]) for one in points if method in one)
        if found:
            ax.plot(*zip(*found, strict=True), markersize=3.5, **STYLES[method])
    ax.set_xscale("log", base=2)
    _axes(ax, _title(name, records[0]), "columns of the dense matrix (nB)")


def _axes(ax: Axes, title: str, x: str) -> None:
    """Label both axes, with plain numbers: 64, not 2^6."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < 100 * low:
        ax.yaxis.set_major_locator(ticker().LogLocator(subs=(1, 2, 5)))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(ticker().StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(ticker().NullFormatter())
    ax.set_title(title, loc="left", fontsize=9)
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel("GFLOPS", fontsize=8)
    ax.tick_params(labelsize=7)


def _caption(records: Sequence[Record]) -> str:
    on = next((record["gpu"] for record in records if "gpu" in record), None)
    return f"{on}: cache warm, no launch cost (SciPy: on the host)" if on else str(records[0]["cpu"])


def _title(name: str, record: Record) -> str:
    if "dim" not in record:
        return f"{plain(name)}: batch {record['batch']}"
    spans = ("-".join(map(str, sorted(set(record[key])))) for key in ("dim", "nnz_per_row"))
    return "{}: batch {}, dim {}, nnz/row {}".format(plain(name), record["batch"], *spans)


def _roofline(ax: Axes, records: Sequence[Record], copied: float) -> None:
    """Draw GFLOPS over flops per byte with a cold cache, and the bound given by the copy speed."""
    intensities = []
    for method in NAMES:
        cold = [one for one in records if one["method"] == method and one["cache"] == "cold"]
        if cold:
            x = [record["gflops"] / record["gb_per_s"] for record in cold]
            intensities += x
            style = {key: STYLES[method][key] for key in ("color", "marker")}
            ax.plot(x, [record["gflops"] for record in cold], linestyle="", markersize=3, **style)
    if intensities:
        ends = [min(intensities) * 0.8, max(intensities) * 1.25]
        ax.plot(ends, [copied * end for end in ends], color="#333333", linewidth=1)
        label, place = f"copy, {copied / 1e3:.2f} TB/s", (ends[1], copied * ends[1])
        ax.annotate(label, place, (0, 4), textcoords="offset points", ha="right", fontsize=7)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(ticker().LogLocator(subs=(1, 2, 5)))
    _axes(ax, "roofline: cold L2", "flops per unavoidable byte")
