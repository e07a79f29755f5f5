"""The rows that a run tested, read from its data set, with what takes long to find out: intervals and drawn examples.

They need no other file of a run. So a run on a GPU examines its test rows in a worker while others draw the plots.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import resampling
from gcnbatch.data.checks import check_targets
from gcnbatch.data.graphs import Int64
from gcnbatch.data.molecule_drawings import NO_LIBRARIES, NO_RDKIT, draw, has_rdkit
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.moments import moments
from gcnbatch.resampling import Intervals
from gcnbatch.text import counted
from gcnbatch.training.fits import SPLITS


@dataclass(frozen=True)
class HeldOut:
    """The rows that a run tested: each once, with the mean of the outputs of the models that tested it.

    Parameters
    ----------
    header : Header
    graphs : int
        Graphs of the whole set.
    ids : (R,) str
        In the order of the data set.
    y, outputs
        As in `gcnbatch.metrics.evaluate`.
    smiles : list of R str, or None
        None if the set stores none.
    """

    header: Header
    graphs: int
    ids: NDArray[np.str_]
    y: NDArray[Any]
    outputs: NDArray[np.floating]
    smiles: list[str] | None


def read_tested(data: Dataset, rows: Int64, outputs: NDArray[np.floating]) -> HeldOut:
    """Return these rows of a data set, ascending numbers, with the outputs for them.

    Raises
    ------
    InputError
        When the set has fewer rows, or damaged targets or SMILES.
    """
    if rows[-1] >= len(data.y):
        raise InputError(str(data.path), counted(len(data.y), "row"), f"more than {rows[-1]}, as in {SPLITS}")
    check_targets(data.path, data.header, data.y)
    smiles = data.smiles()
    picked = None if smiles is None else [smiles[row] for row in rows]
    return HeldOut(data.header, data.n_graphs, data.ids[rows], data.measured[rows], outputs, picked)


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


def choose_examples(tested: HeldOut) -> Examples:
    """Return the worst errors and the best hits, with their molecules drawn.

    Best hits are the positives of largest probability, the right classes of largest probability, or the values closest
    to the measured ones. Errors of a regression task are compared in units of the standard deviation of its labels.
    """
    error, hit = _scores(tested)
    worst = _largest(error, [])
    best = _largest(hit, [row for row, _ in worst])
    drawings, note = _drawn(tested, [row for row, _ in (*worst, *best)])
    return Examples(
        [_example(tested, *place) for place in worst], [_example(tested, *place) for place in best], drawings, note
    )


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


class Examined(NamedTuple):
    """Test rows, the intervals of their figures (None: not resampled), and the rows to look at."""

    rows: HeldOut
    intervals: Intervals | None
    examples: Examples


def examine(data: Dataset, rows: Int64, outputs: NDArray[np.floating], resampled: bool = True) -> Examined:
    """Read test rows and examine them.

    Parameters
    ----------
    data : Dataset
    rows : (R,) int64
        Ascending.
    outputs : (R, K)
    resampled : bool
        Compute intervals, if there are not too many rows.

    Raises
    ------
    InputError
        As `read_tested`.
    """
    tested = read_tested(data, rows, outputs)
    header, intervals = tested.header, None
    if resampled:
        intervals = resampling.intervals(header.target, tested.y, tested.outputs, header.task_names)
    return Examined(tested, intervals, choose_examples(tested))


def examine_file(path: Path, rows: Int64, outputs: NDArray[np.floating], resampled: bool) -> Examined:
    """Read test rows from a data set and examine them; see `examine`."""
    with Dataset(path, check=False) as data:
        return examine(data, rows, outputs, resampled)
