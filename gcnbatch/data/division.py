"""Division of rows, groups and times into the parts of a split: the arithmetic below `gcnbatch.data.splits`.

`candidates` are the row numbers to divide, int64 and ascending, as are those of the parts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.sparse import row_pointer
from gcnbatch.errors import InputError
from gcnbatch.text import counted


class PartSizes(NamedTuple):
    """Rows of each part."""

    train: int
    valid: int
    test: int


def part_sizes(rows: int, valid: float, test: float) -> PartSizes:
    """Return the number of rows of each part.

    The cuts are ``floor((1 - valid - test) rows)`` and ``floor((1 - test) rows)``; a part with a share above 0 then
    gets at least one row, taken from train.
    """
    slack = 1e-9  # 1 - 0.1 - 0.2 is slightly below 0.7: that must not cost a row
    train_cut = int((1.0 - valid - test) * rows + slack)
    valid_cut = int((1.0 - test) * rows + slack)
    n_test = min(max(rows - valid_cut, int(test > 0.0)), rows)
    n_valid = min(max(valid_cut - train_cut, int(valid > 0.0)), rows - n_test)
    return PartSizes(rows - n_valid - n_test, n_valid, n_test)


def evenly_spaced(length: int, count: int, draws: np.random.Generator) -> NDArray[np.bool_]:
    """Mark `count` of `length` positions at equal distances, from a random start.

    Any run of m neighbours (a stratum) holds ``m count / length`` marks, rounded up or down.
    """
    if count == 0:
        return np.zeros(length, dtype=np.bool_)
    steps = (np.arange(length + 1) * count + draws.integers(length)) // length
    return np.diff(steps) > 0


def fill_by_size(candidates: Int64, groups: NDArray[np.int32], sizes: PartSizes) -> Split:
    """Return whole groups: the largest first fill train, then valid, then test."""
    _, first, group, count = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    part = np.empty(len(count), dtype=np.int8)
    filled = [0, 0, 0]
    for number in np.lexsort((-first, -count)):
        size = int(count[number])
        if filled[0] + size <= sizes.train:
            part[number] = 0
        elif filled[0] + filled[1] + size <= sizes.train + sizes.valid:
            part[number] = 1
        else:
            part[number] = 2
        filled[part[number]] += size
    return _split(candidates, part[group])


def fill_at_random(candidates: Int64, groups: NDArray[Any], sizes: PartSizes, draws: np.random.Generator) -> Split:
    """Return whole groups: in random order, they fill test, then valid, where they fit; the others train."""
    _, group, count = np.unique(groups, return_inverse=True, return_counts=True)
    part, smallest = np.zeros(len(count), np.int8), np.sort(count)
    wanted = {number: size for number, size in ((2, sizes.test), (1, sizes.valid)) if size}
    left = {number: max(size, int(smallest[place])) for place, (number, size) in enumerate(wanted.items())}
    for cluster in draws.permutation(len(count)):
        fitting = [number for number, size in left.items() if count[cluster] <= size]
        if fitting:
            part[cluster] = fitting[0]
            left[fitting[0]] -= int(count[cluster])
    return _split(candidates, part[group])


def cut_by_time(subject: str, candidates: Int64, times: NDArray[np.float64], sizes: PartSizes) -> Split:
    """Return the newest rows for test, those before them for valid; rows of equal time are in one part."""
    _, moment, count = np.unique(times, return_inverse=True, return_counts=True)
    parts = 1 + (sizes.valid > 0) + (sizes.test > 0)
    if len(count) < parts:
        got = f"{counted(len(count), 'different time')} for {counted(parts, 'part')}"
        raise InputError(subject, got, "a time per part", 'Set split.kind to "random" or "stratified".')
    before = row_pointer(count)  # rows before each time

    def nearest(rows: int, first: int, stop: int) -> int:
        return first + int(np.argmin(np.abs(before[first:stop] - rows)))

    test = nearest(len(times) - sizes.test, parts - 1, len(count)) if sizes.test else len(count)
    valid = nearest(int(before[test]) - sizes.valid, 1, test) if sizes.valid else test
    return _split(candidates, (moment >= valid).astype(int) + (moment >= test))


def _split(candidates: Int64, part: NDArray[Any]) -> Split:
    """Return the candidates by the number of their part."""
    return Split(*(candidates[part == number] for number in range(3)))


def balanced_folds(kind: str, groups: NDArray[Any], folds: int, draws: np.random.Generator) -> Int64:
    """Return the fold of each row: the largest group goes to the smallest fold.

    Ties of scaffolds go by first row, those of clusters at random, those of folds to the first.
    """
    _, first, group, count = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    fold_of = np.empty(len(count), dtype=np.int64)
    filled = np.zeros(folds, dtype=np.int64)
    tie = draws.permutation(len(count)) if kind == "cluster" else first
    for number in np.lexsort((tie, -count)):
        fold_of[number] = np.argmin(filled)
        filled[fold_of[number]] += count[number]
    return fold_of[group]
