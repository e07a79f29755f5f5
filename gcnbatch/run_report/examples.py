"""Test rows to look at: the worst errors and the best hits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.molecule_drawings import NO_LIBRARIES, NO_RDKIT, draw, has_rdkit
from gcnbatch.moments import moments
from gcnbatch.run_report.held_out import HeldOut

MOST = 6  # of the worst, and of the best


class Example(NamedTuple):
    """A test row and the task that it is shown for."""

    row: int
    task: int
    text: str


class Examples(NamedTuple):
    """The rows to look at.

    Parameters
    ----------
    worst, best : list of Example
        Largest error first; best hit first. A row is in one list, once.
    drawings : dict
        Row -> ``<svg>`` element of its molecule; "" if it is not drawn.
    note : str
        Why no molecule is drawn.
    """

    worst: list[Example]
    best: list[Example]
    drawings: dict[int, str]
    note: str


def choose(tested: HeldOut) -> Examples:
    """Return the worst errors and the best hits, with their molecules drawn.

    Best hits are the positives of largest probability, the right classes of largest probability, or the values closest
    to the measured ones. Errors of a regression task are compared in units of the standard deviation of its labels.
    """
    error, hit = _scores(tested)
    worst = _largest(error, [])
    best = _largest(hit, [row for row, _ in worst])
    drawings, note = _drawn(tested, [row for row, _ in (*worst, *best)])
    return Examples([_example(tested, *at) for at in worst], [_example(tested, *at) for at in best], drawings, note)


def _drawn(tested: HeldOut, rows: list[int]) -> tuple[dict[int, str], str]:
    """Return the drawing of each row's molecule, and why there is none."""
    nothing = dict.fromkeys(rows, "")
    if tested.smiles is None:
        missing = "The data set stores no SMILES, so no molecules are drawn."
        return nothing, missing if rows and tested.header.level == "graph" else ""
    if not rows:
        return nothing, ""
    if not has_rdkit():
        return nothing, f"No molecules are drawn. {NO_RDKIT}."
    drawings = draw([tested.smiles[row] for row in rows])
    note = "" if any(drawings) else f"No molecules are drawn. {NO_LIBRARIES}."
    return dict(zip(rows, drawings, strict=True)), note


def _scores(tested: HeldOut) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return error and hit scores of each row and task (R, K), -inf for what is not shown."""
    y, outputs = tested.y, tested.outputs.astype(np.float64)
    if tested.header.target == "multiclass":
        label, known = np.maximum(y[:, 0], 0), y[:, 0] >= 0
        of_label = outputs[np.arange(len(y)), label]
        error = np.where(known & (outputs.argmax(axis=1) != label), 1 - of_label, np.nan)[:, None]
        hit = np.where(known & (outputs.argmax(axis=1) == label), of_label, np.nan)[:, None]
    elif tested.header.target == "binary":
        error, hit = np.abs(outputs - y), np.where(y == 1, outputs, np.nan)
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            _, spread = moments(y)
            error = np.abs(outputs / 2 - y / 2) / np.where(spread > 0, spread, 1.0)
        hit = -error
    return np.where(np.isfinite(error), error, -np.inf), np.where(np.isfinite(hit), hit, -np.inf)


def _largest(scores: NDArray[np.float64], without: list[int]) -> list[tuple[int, int]]:
    """Return rows of the largest scores and the task of each, largest first."""
    task = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), task]
    best[without] = -np.inf
    order = np.argsort(-best, kind="stable")[:MOST]
    return [(int(row), int(task[row])) for row in order if best[row] > -np.inf]


def _example(tested: HeldOut, row: int, task: int) -> Example:
    header, y, outputs = tested.header, tested.y[row], tested.outputs[row]
    name = f"{header.task_names[task]}: " if len(header.task_names) > 1 else ""
    if header.target == "multiclass":
        names, found = header.class_names, int(outputs.argmax())
        text = f"is {names[int(y[0])]}, predicted {names[found]} ({outputs[found]:.2f})"
    elif header.target == "binary":
        text = f"{name}measured {y[task]:.0f}, probability of 1: {outputs[task]:.3f}"
    else:
        text = f"{name}measured {y[task]:.4g}, predicted {outputs[task]:.4g}"
    return Example(row, task, text)
