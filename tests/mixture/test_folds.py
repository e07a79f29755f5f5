from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.errors import InputError
from gcnbatch.mixture.folds import make_folds, strata


def test_parts_are_equally_large_and_repeat_from_the_seed() -> None:
    groups, labels = np.arange(103), np.zeros(103, np.int64)
    folds = make_folds(groups, labels, seed=3)
    assert sorted(np.bincount(folds)) == [10] * 7 + [11] * 3
    assert np.array_equal(folds, make_folds(groups, labels, seed=3))
    assert not np.array_equal(folds, make_folds(groups, labels, seed=4))


def test_copies_of_a_molecule_are_in_one_part() -> None:
    groups = np.random.default_rng(0).integers(0, 60, 200).astype(str)
    folds = make_folds(groups, np.zeros(200, np.int64), seed=0)
    for group in np.unique(groups):
        assert len(set(folds[groups == group])) == 1
    assert np.ptp(np.bincount(folds)) <= 8


def test_each_part_has_its_share_of_a_rare_label() -> None:
    labels = np.zeros(200, np.int64)
    labels[::10] = 1
    folds = make_folds(np.arange(200), labels, seed=1)
    assert np.array_equal(np.bincount(folds[labels == 1], minlength=10), [2] * 10)


def test_fewer_molecules_than_parts_give_a_part_each() -> None:
    assert sorted(make_folds(np.array(list("abca")), np.zeros(4, np.int64), seed=0)) == [0, 0, 1, 2]


def test_one_molecule_is_refused() -> None:
    with pytest.raises(InputError, match="1 different molecule; expected at least 2"):
        make_folds(np.array(["a", "a"]), np.zeros(2, np.int64), seed=0)


def test_the_stratum_of_a_row_is_its_rarest_label() -> None:
    y = np.array([[0, 1], [0, np.nan], [0, 0], [1, 0], [np.nan, 0], [0, 0]])
    found = strata(y)
    assert found[0] != found[2]
    assert found[3] not in (found[0], found[2])
    assert found[1] == found[2] == found[5]
