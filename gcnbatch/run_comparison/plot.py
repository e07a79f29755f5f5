"""The figure of a comparison: scores of every block, and differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcnbatch.figures import BLUE, GREY, ORANGE, panels, plain, save
from gcnbatch.fileio import StrPath
from gcnbatch.metrics import label
from gcnbatch.run_comparison.paired import Difference

DRAWN_PAIRS = 40


def draw(
    scores: NDArray[np.float64],
    names: Sequence[str],
    pairs: Sequence[Difference],
    metric: str,
    level: float,
    path: StrPath,
) -> None:
    """Draw the scores (n, M) of M runs, blocks joined by lines, and the first 40 differences.

    Parameters
    ----------
    scores : float64, (n, M)
    names : M names
    pairs : list of Difference
        Joint intervals are drawn; those that leave out 0 are coloured.
    path : path
        PNG file.
    """
    pairs = pairs[:DRAWN_PAIRS]
    height = max(3.2, 0.3 * len(pairs) + 1.4)
    figure, (left, right) = panels(1, 2, width=5.2, height=height)
    places = range(len(names))
    for row in scores:
        left.plot(places, row, color=GREY, linewidth=0.8, marker="o", markersize=4, alpha=0.7)
    left.plot(places, scores.mean(axis=0), "D", color=BLUE, markersize=7, zorder=3)
    left.set_xticks(places, [plain(name) for name in names], rotation=30, ha="right", fontsize=8)
    left.set(xlim=(-0.5, len(names) - 0.5), ylabel=f"test {label(metric)}")
    left.set_title("a line per fold; diamonds: means" if len(scores) > 1 else "one split", loc="left", fontsize=9)
    for at, pair in enumerate(pairs):
        colour = ORANGE if pair.shown else GREY
        right.plot([pair.joint_low, pair.joint_high], [at, at], color=colour, linewidth=2)
        right.plot(pair.mean, at, "o", color=colour)
    labels = [f"{plain(names[pair.first])} − {plain(names[pair.second])}" for pair in pairs]
    right.set_yticks(range(len(pairs)), labels, fontsize=8)
    right.axvline(0.0, color="black", linewidth=0.8)
    right.set(ylim=(len(pairs) - 0.5, -0.5), xlabel=f"difference of {label(metric)}")
    right.set_title(f"{level:.0%} intervals of all pairs; grey: no difference shown", loc="left", fontsize=9)
    save(figure, path)
