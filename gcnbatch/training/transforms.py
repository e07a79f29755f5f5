"""The choice of transforms of regression targets: by a kernel on left-out rows, before any network trains."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.data.graphs import Int64
from gcnbatch.data.store import Dataset
from gcnbatch.mixture import choose_kinds
from gcnbatch.mixture.folds import make_folds
from gcnbatch.mixture.transforms import Kind
from gcnbatch.training import mixed

_MOST = 2000  # rows of each task that the kernel sees


def choose(dataset: Dataset, rows: Int64, groups: NDArray[Any], metric: str, seed: int) -> tuple[Kind, ...]:
    """Return the kind of transform of each target with the least error of the metric, in the user's units.

    Parameters
    ----------
    rows : (n,)
        Training and validation rows, ascending.
    groups : (n,)
        Rows of equal groups, such as copies of a molecule, are left out together.
    """
    labelled = ~np.isnan(dataset.measured[rows])
    order = philox.generator(seed, "transforms").permutation(len(rows))
    drawn = (labelled[order] & (np.cumsum(labelled[order], axis=0) <= _MOST)).any(axis=1)
    some = np.sort(order[drawn])
    if len(np.unique(groups[some])) < 2:  # nothing can be left out
        return ("none",) * labelled.shape[1]
    folds = make_folds(groups[some], np.zeros(len(some)), seed)
    problem = mixed.problem(dataset, rows[some], folds, metric, seed)
    return choose_kinds(problem, mixed.molecules(dataset.header, mixed.rows_of(dataset, rows[some])))
