"""Ten parts of the training rows, each of which is left out once: cross-fitting."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.errors import InputError
from gcnbatch.text import counted

PARTS = 10


def make_folds(groups: NDArray[Any], labels: NDArray[Any], seed: int, parts: int = PARTS) -> NDArray[np.int8]:
    """Return the part (n,) of each row.

    Rows of equal groups are in one part. Parts have about equal numbers of rows and of each label: groups are dealt,
    largest first and then label by label, to the part that has fewest groups of that label.

    Parameters
    ----------
    groups : (n,)
        Keys of any type that sorts; rows of one molecule have equal ones.
    labels : (n,) integers
        Strata, such as classes; equal values if there are none.
    seed : int
    parts : int
        Fewer are made where there are fewer groups.

    Raises
    ------
    InputError
        When all rows are of one group.
    """
    _, first, group, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    count = min(parts, len(sizes))
    if count < 2:
        raise InputError("training rows", counted(len(sizes), "different molecule"), "at least 2", "Add molecules.")
    _, stratum = np.unique(labels[first], return_inverse=True)
    shuffled = philox.generator(seed, "mixture.folds").permutation(len(sizes))
    order = shuffled[np.lexsort([stratum[shuffled], -sizes[shuffled]])]
    of_group = np.zeros(len(sizes), np.int8)
    dealt, rows = np.zeros((int(stratum.max()) + 1, count), np.int64), np.zeros(count, np.int64)
    for one in order.tolist():
        part = np.lexsort([rows, dealt[stratum[one]]])[0]
        of_group[one] = part
        dealt[stratum[one], part] += 1
        rows[part] += sizes[one]
    return of_group[group.ravel()]


def strata(y: NDArray[Any]) -> NDArray[np.int64]:
    """Return the stratum (n,) of each row: the rarest label that it has.

    Parameters
    ----------
    y : (n, T) float64
        Labels of T tasks, whole numbers, NaN where missing.
    """
    found, rarity = np.zeros(len(y), np.int64), np.full(len(y), len(y) + 1)
    number = 0
    for column in y.T:
        for label in np.unique(column[~np.isnan(column)]):
            number += 1
            rows = np.flatnonzero(column == label)
            rare = rows[rarity[rows] > len(rows)]
            found[rare], rarity[rare] = number, len(rows)
    return found
