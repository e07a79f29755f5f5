"""Output of ``bench spgemm``: a table, JSON with the environment, a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gcnbatch import environment, figures, fileio
from gcnbatch.lab.bench.spgemm import matrices
from gcnbatch.lab.bench.spgemm.matrices import SpgemmProblem
from gcnbatch.lab.bench.spgemm.runs import CONTENDERS, SpgemmTiming
from gcnbatch.lab.statistics import geometric_mean
from gcnbatch.progress import counter

JSON, PLOT = "spgemm.json", "spgemm.png"
OURS = CONTENDERS[0]
COLOURS = {"gcnbatch": figures.BLUE, "cusparse": figures.ORANGE, "scipy": figures.GREY}


def problems(
    files: Sequence[Path], classes: Sequence[str] | None, scale: float, seed: int
) -> list[Callable[[], SpgemmProblem]]:
    """Return a function that creates each problem; names are checked now, matrices are created later."""
    wanted = classes if classes is not None else [] if files else list(matrices.CLASSES)
    for name in wanted:
        matrices.check_class(name, scale)
    of_classes = [partial(matrices.of_class, name, scale, seed) for name in wanted]
    of_files = [partial(matrices.of_dataset if path.suffix == ".h5" else matrices.of_file, path) for path in files]
    return [*of_classes, *of_files]


def shown(made: Sequence[Callable[[], SpgemmProblem]]) -> Iterator[SpgemmProblem]:
    """Create and yield the problems, with progress on stderr."""
    with counter(len(made), " matrices", leave=False) as bar:
        for make in made:
            yield make()
            bar.update()


HEADER = ("matrix", "contender", "rows", "entries", "products", "results", "ratio", "ms", "GFLOPS", "phases, us")


def cells(row: SpgemmTiming) -> list[Any]:
    """Return a row's cells under `HEADER`."""
    phases = " ".join(f"{name} {ms * 1e3:.0f}" for name, ms in row.phases.items())
    sizes = [row.rows, row.entries, row.products, row.results, row.compression]
    return [row.matrix, row.contender, *sizes, row.ms, row.gflops, phases]


def speedups(rows: Sequence[SpgemmTiming]) -> dict[str, float]:
    """Return the ratio of cuSPARSE's time to ours, by matrix."""
    ms = {(row.matrix, row.contender): row.ms for row in rows}
    return {
        matrix: ms[matrix, "cusparse"] / ours
        for (matrix, contender), ours in ms.items()
        if contender == OURS and (matrix, "cusparse") in ms
    }


def summary(rows: Sequence[SpgemmTiming]) -> list[str]:
    """Return a line about the ratio to cuSPARSE over all matrices, or none if it was not measured."""
    found = speedups(rows)
    if not found:
        return []
    mean = geometric_mean(list(found.values()))
    return [f"cuSPARSE takes {mean:.2f} times as long in the geometric mean, {min(found.values()):.2f} at least"]


def as_json(rows: Sequence[SpgemmTiming]) -> dict[str, Any]:
    """Return the rows and the environment of the measurement."""
    about = environment.collect()
    return {
        "rows": [row._asdict() for row in rows],
        "speedup_over_cusparse": speedups(rows),
        "environment": {key: about[key] for key in ("gcnbatch", "commit", "cpu", "gpus")},
    }


def save(rows: Sequence[SpgemmTiming], folder: Path) -> None:
    """Write ``spgemm.json`` and ``spgemm.png`` into a folder."""
    fileio.write_json(folder / JSON, as_json(rows))
    draw(rows, folder / PLOT)


def draw(rows: Sequence[SpgemmTiming], path: Path) -> None:
    """Draw GFLOPS and, for our kernel, the share of each phase."""
    kinds = [name for name in CONTENDERS if any(row.contender == name for row in rows)]
    labels = list(dict.fromkeys(row.matrix for row in rows))
    phased = [row for row in rows if row.phases and row.contender == OURS]
    figure, axes = figures.panels(1, 2 if phased else 1, 5.2, 3.4)
    for place, kind in enumerate(kinds):
        mine = {row.matrix: row.gflops for row in rows if row.contender == kind}
        x = np.arange(len(labels)) + (place - (len(kinds) - 1) / 2) * 0.8 / len(kinds)
        axes[0].bar(x, [mine.get(name, 0.0) for name in labels], 0.8 / len(kinds), label=kind, color=COLOURS[kind])
    axes[0].set(ylabel="GFLOPS (2 x products / time)", yscale="log", xticks=range(len(labels)))
    axes[0].set_xticklabels([figures.plain(name, 14) for name in labels])
    figures.legend_above(axes[0], len(kinds))
    if phased:
        _draw_phases(axes[1], phased)
    figures.save(figure, path)


def _draw_phases(ax: Any, rows: Sequence[SpgemmTiming]) -> None:
    left = np.zeros(len(rows))
    for name in dict.fromkeys(name for row in rows for name in row.phases):
        share = np.array([row.phases.get(name, 0.0) / sum(row.phases.values()) for row in rows])
        ax.barh(range(len(rows)), share, left=left, label=name)
        left += share
    ax.set(xlabel="share of the kernels' time", yticks=range(len(rows)), xlim=(0, 1))
    ax.set_yticklabels([figures.plain(row.matrix, 14) for row in rows])
    ax.invert_yaxis()
    figures.legend_above(ax, 4)
