"""The plot of uncertainty: reliability of probabilities, or coverage of intervals against their level."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.figures import BLUE, GREEN, GREY, ORANGE, legend_above, panels, save
from gcnbatch.fileio import StrPath
from gcnbatch.uncertainty.figures import reliability, reliability_columns
from gcnbatch.uncertainty.model import Uncertainty, labelled

LEVELS = np.arange(0.05, 1.0, 0.05)
DRAWN_TASKS = 40


def draw(uncertainty: Uncertainty, y: NDArray[Any], outputs: NDArray[np.floating], path: StrPath) -> None:
    """Draw test rows: probabilities before and after calibration against frequencies, or coverage by level.

    Parameters
    ----------
    y, outputs
        As in `metrics.evaluate`.
    path : path
        PNG file.
    """
    if uncertainty.header.target == "regression":
        _coverage(uncertainty, y, outputs, path)
    else:
        _reliability(uncertainty, y, outputs, path)


def _reliability(uncertainty: Uncertainty, y: NDArray[Any], outputs: NDArray[np.floating], path: StrPath) -> None:
    figure, (ax, shares) = panels(1, 2, width=4.2, height=4.0)
    calibrated = uncertainty.calibrated(outputs)
    states = [("before calibration" if any(uncertainty.calibrators) else "not calibrated", outputs, ORANGE)]
    if calibrated is not None and np.array_equal(calibrated, outputs, equal_nan=True):
        states = [("as predicted: no calibration is better", outputs, BLUE)]
    elif calibrated is not None:
        states.append(("calibrated", calibrated, BLUE))
    for label, probabilities, colour in states:
        columns = reliability_columns(uncertainty.header, y, probabilities)
        came, p = (np.concatenate(side) for side in zip(*columns, strict=True))
        if not len(p):
            continue
        bins = reliability(came, p)
        ax.plot(bins.predicted, bins.observed, "o-", color=colour, markersize=4, label=f"{label}: ECE {bins.ece:.3f}")
        shares.plot(bins.predicted, bins.share, "o-", color=colour, markersize=4, label=label)
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1.0)
    ax.set(xlabel="predicted probability", ylabel="frequency", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    shares.set(xlabel="predicted probability", ylabel="share of the labels", xlim=(-0.02, 1.02), yscale="log")
    for one in (ax, shares):
        if len(one.get_legend_handles_labels()[0]):
            legend_above(one, columns=1)
    figure.suptitle("test rows, all tasks", x=0.01, ha="left", fontsize=10)
    save(figure, path)


def _coverage(uncertainty: Uncertainty, y: NDArray[Any], outputs: NDArray[np.floating], path: StrPath) -> None:
    figure, (ax,) = panels(1, 1, width=4.4, height=4.2)
    widths = np.array([uncertainty.half_widths(float(level)) for level in LEVELS])
    columns = labelled(uncertainty.header, y, outputs)
    for task, (labels, values) in enumerate(columns[:DRAWN_TASKS]):
        error = np.abs(labels - values)
        if not len(error):
            continue
        covered = np.where(np.isnan(widths[:, task]), np.nan, [np.mean(error <= half) for half in widths[:, task]])
        colour = BLUE if len(columns) == 1 else GREEN
        ax.plot(LEVELS, covered, "o-", color=colour, markersize=3, alpha=1.0 if len(columns) == 1 else 0.5)
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1.0)
    ax.set(xlabel="level of the interval", ylabel="coverage of test rows", xlim=(0, 1), ylim=(0, 1.02))
    save(figure, path)
