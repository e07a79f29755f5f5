"""The rows that a run tested, read from its data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.checks import check_targets
from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
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


def read(data: Dataset, rows: Int64, outputs: NDArray[np.floating]) -> HeldOut:
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
