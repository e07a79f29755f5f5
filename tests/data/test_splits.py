"""Splits: properties of the parts for any rows, and the messages of refused splits."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import GroupKFold

from gcnbatch.config_sections import SplitConfig
from gcnbatch.data.division import part_sizes
from gcnbatch.data.graphs import Split
from gcnbatch.data.splits import (
    SplitRows,
    describe,
    make_folds,
    make_split,
    make_splits,
    notes,
    split_seed,
    strata,
    title,
    without_copies,
)
from gcnbatch.errors import InputError

few = settings(max_examples=30, derandomize=True)
KINDS = ("random", "stratified", "scaffold")


def rows_of(y: Any, *, target: str = "binary", **other: Any) -> SplitRows:
    fields = {"subject": "set.h5", "level": "graph", "groups": None, "splits": {}} | other
    return SplitRows(target=target, y=np.asarray(y), **fields)  # type: ignore[arg-type]


def random_rows(target: str, n: int, seed: int, missing: float = 0.3, level: str = "graph") -> SplitRows:
    rng = np.random.default_rng(seed)
    blank = rng.random((n, 1 if target == "multiclass" else 3)) < missing
    if target == "multiclass":
        y: Any = np.where(blank, -1, rng.integers(0, 4, blank.shape)).astype(np.int32)
    elif target == "binary":
        y = np.where(blank, np.nan, rng.random(blank.shape) < 0.15).astype(np.float32)
    else:
        y = np.where(blank, np.nan, rng.normal(size=blank.shape)).astype(np.float32)
    groups = np.minimum(rng.geometric(0.15, n), 40).astype(np.int32)
    return rows_of(y, target=target, groups=groups, level=level)


def labelled(rows: SplitRows) -> np.ndarray:
    return np.flatnonzero((rows.y >= 0 if rows.target == "multiclass" else ~np.isnan(rows.y)).any(axis=1))


def assert_partition(split: Split, expected: Any) -> None:
    parts = list(split.parts().values())
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), expected)


def assert_same(one: Split, other: Split) -> None:
    for part, numbers in one.parts().items():
        np.testing.assert_array_equal(numbers, other.parts()[part])


shapes = st.tuples(st.sampled_from(("binary", "multiclass", "regression")), st.integers(30, 200), st.integers(0, 2**32))
shares = st.sampled_from((0.0, 0.1, 0.2, 0.25, 0.4))


# ------------------------------------------------------------------------------------------------ one split


@few
@given(shapes, shares, shares, st.sampled_from(("random", "stratified")))
def test_parts_are_disjoint_and_complete_and_have_their_shares(shape, valid, test, kind) -> None:
    target, n, seed = shape
    rows = random_rows(target, n, seed)
    split = make_split(SplitConfig(kind=kind, valid=valid, test=test), seed, rows)
    assert_partition(split, labelled(rows))
    n = len(labelled(rows))
    assert abs(len(split.valid) - valid * n) <= 1
    assert abs(len(split.test) - test * n) <= 1


@few
@given(shapes)
def test_stratified_spreads_every_stratum_over_the_parts(shape) -> None:
    target, n, seed = shape
    rows = random_rows(target, n, seed)
    split = make_split(SplitConfig(kind="stratified", valid=0.2, test=0.3), seed, rows)
    stratum = strata(rows.target, rows.y)
    sizes = np.bincount(stratum[labelled(rows)] - stratum.min())
    for part, share in (("train", 0.5), ("valid", 0.2), ("test", 0.3)):
        counts = np.bincount(stratum[split.parts()[part]] - stratum.min(), minlength=len(sizes))
        assert np.all(np.abs(counts - share * sizes) < 2.5), part


@few
@given(shapes, st.sampled_from((0.1, 0.3)))
def test_scaffold_keeps_groups_whole_and_does_not_depend_on_the_seed(shape, share) -> None:
    target, n, seed = shape
    rows = random_rows(target, n, seed)
    assert rows.groups is not None
    rows.groups[: n // 2] = 1000 + np.arange(n // 2)  # many groups of one row, as molecules have
    config = SplitConfig(kind="scaffold", valid=share, test=share)
    split = make_split(config, seed, rows)
    known = labelled(rows)
    assert_partition(split, known)
    groups = [np.unique(rows.groups[part]) for part in split.parts().values()]
    assert sum(len(part) for part in groups) == len(np.unique(rows.groups[known]))
    assert len(split.train) <= (1 - 2 * share) * len(known) + 1e-9
    assert_same(split, make_split(config, seed + 1, rows))


def test_scaffold_assigns_the_largest_groups_first_and_of_equals_the_later_one() -> None:
    groups = np.array([5, 7, 7, 7, 7, 2, 2, 9, 4, 4], np.int32)  # sizes: 7 four, 2 and 4 two, 5 and 9 one
    split = make_split(
        SplitConfig(kind="scaffold", valid=0.2, test=0.2), 0, rows_of(np.zeros((10, 1), np.float32), groups=groups)
    )
    np.testing.assert_array_equal(split.train, [1, 2, 3, 4, 8, 9])
    np.testing.assert_array_equal(split.valid, [5, 6])
    np.testing.assert_array_equal(split.test, [0, 7])


@few
@given(shapes, st.sampled_from((0.0, 0.1, 0.3)), st.sampled_from((0.0, 0.1, 0.3)))
def test_clusters_stay_whole_and_fill_the_shares_of_test_and_validation(shape, valid, test) -> None:
    target, n, seed = shape
    rows = random_rows(target, n, seed)
    assert rows.groups is not None
    rows.groups[: n // 2] = 1000 + np.arange(n // 2)
    split = make_split(SplitConfig(kind="cluster", valid=valid, test=test), seed, rows)
    known = labelled(rows)
    assert_partition(split, known)
    groups = [np.unique(rows.groups[part]) for part in split.parts().values()]
    assert sum(len(part) for part in groups) == len(np.unique(rows.groups[known]))
    sizes = part_sizes(len(known), valid, test)
    assert (len(split.valid), len(split.test)) == sizes[1:]


def test_the_smallest_clusters_test_and_validate_where_none_fits() -> None:
    rows = rows_of(np.zeros((12, 1), np.float32), groups=np.repeat(np.arange(3, dtype=np.int32), [5, 4, 3]))
    for seed in range(20):
        sizes = [len(part) for part in make_split(SplitConfig(kind="cluster"), seed, rows).parts().values()]
        assert sorted(sizes) == [3, 4, 5], sizes


@few
@given(shapes, st.sampled_from((0.0, 0.1, 0.3)), st.sampled_from((0.0, 0.1, 0.3)), st.integers(5, 60))
def test_the_newest_rows_test_and_rows_of_equal_time_are_together(shape, valid, test, moments) -> None:
    target, n, seed = shape
    rng = np.random.default_rng(seed)
    times = rng.integers(0, moments, n) + 0.5
    times[rng.random(n) < 0.1] = np.nan
    rows = replace(random_rows(target, n, seed), times=times)
    split = make_split(SplitConfig(kind="time", valid=valid, test=test), seed, rows)
    known = labelled(rows)[~np.isnan(times[labelled(rows)])]
    assert_partition(split, known)
    parts = [times[part] for part in split.parts().values() if len(part)]
    assert len(parts) == 1 + (valid > 0) + (test > 0)
    assert all(older.max() < newer.min() for older, newer in pairwise(parts))
    largest = np.unique(times[known], return_counts=True)[1].max()
    sizes = part_sizes(len(known), valid, test)
    assert abs(len(split.test) - sizes.test) <= largest
    without = np.setdiff1d(labelled(rows), known)
    have, are = ("has", "is") if len(without) == 1 else ("have", "are")
    said = f"{len(without)} of {n} rows {have} no time and {are} left out"
    assert (said in notes(SplitConfig(kind="time"), rows)) == bool(len(without))


def test_cuts_in_time_are_those_nearest_to_the_shares() -> None:
    times = np.array([2015, 2012, 2013, 2012, 2014, 2015, 2011, 2010, 2013, 2015], float)
    split = make_split(SplitConfig(kind="time", valid=0.2, test=0.2), 0, rows_of(np.zeros((10, 1), "f4"), times=times))
    np.testing.assert_array_equal(split.test, [0, 5, 9])
    np.testing.assert_array_equal(split.valid, [2, 4, 8])
    np.testing.assert_array_equal(split.train, [1, 3, 6, 7])


def test_copies_follow_the_oldest_in_a_split_by_time() -> None:
    times, copies = np.array([5.0, 1, 2, 3, 4]), np.array([0, 0, 2, 3, 4])
    rows = rows_of(np.zeros((5, 1), np.float32), times=times)
    split = make_split(SplitConfig(kind="time", valid=0.2, test=0.4), 0, rows)
    together = without_copies(split, copies, times)
    assert [part.tolist() for part in split.parts().values()] == [[1, 2], [3], [0, 4]]
    assert [part.tolist() for part in together.parts().values()] == [[0, 1, 2], [3], [4]]


@pytest.mark.parametrize(
    ("kind", "about", "message"),
    [
        (
            "cluster",
            {},
            r"set\.h5: the file has no molecules; expected a cluster per row for split\.kind = cluster\. Imp",
        ),
        (
            "cluster",
            {"groups": np.zeros(9, np.int32)},
            r"all 9 rows are in one group \(a cluster\), which no split by c",
        ),
        (
            "time",
            {},
            r"set\.h5: the file has no times; expected a time per row for split\.kind = time\. Name the column",
        ),
        ("time", {"times": np.full(9, np.nan)}, r"set\.h5: the file has no times; "),
        ("time", {"times": np.repeat([1.0, 2.0], [4, 5])}, "2 different times for 3 parts; expected a time per part"),
    ],
)
def test_what_a_split_by_cluster_or_time_lacks_is_said(kind: Any, about: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_split(SplitConfig(kind=kind), 0, rows_of(np.zeros((9, 1), np.float32), **about))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "time", "folds": 3}, "folds need other test rows in each; a split by time has one test part"),
        ({"kind": "predefined", "valid_kind": "time", "folds": 3}, "folds need other test rows in each"),
        ({"kind": "time", "repeats": 2}, "repeats of a time split would be equal"),
        ({"similarity": 0.0}, "greater than 0"),
    ],
)
def test_keys_that_do_not_fit_the_kind_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SplitConfig(**keys)


@pytest.mark.parametrize("kind", ["random", "stratified", "cluster"])
def test_the_seed_decides_and_nothing_else(kind: str) -> None:
    rows = random_rows("binary", 120, 3)
    first = make_split(SplitConfig(kind=kind), 5, rows)
    np.random.seed(99)  # noqa: NPY002  the global generator must not matter
    assert_same(first, make_split(SplitConfig(kind=kind), 5, rows))
    assert_same(first, make_split(SplitConfig(kind=kind, seed=5), 6, rows))
    assert not np.array_equal(first.test, make_split(SplitConfig(kind=kind), 6, rows).test)


def test_the_splits_own_seed_wins_over_the_runs() -> None:
    assert split_seed(SplitConfig(), 7) == 7
    assert split_seed(SplitConfig(seed=0), 7) == 0


@pytest.mark.parametrize("kind", ["random", "stratified"])
def test_every_row_reaches_every_part_over_seeds(kind: str) -> None:
    rows = random_rows("regression", 12, 0)
    reached = np.zeros((3, 12), bool)
    for seed in range(60):
        split = make_split(SplitConfig(kind=kind, valid=0.25, test=0.25), seed, rows)
        for number, part in enumerate(split.parts().values()):
            reached[number, part] = True
    assert reached.all()


@pytest.mark.parametrize("level", ["graph", "node"])
def test_rows_without_labels_are_left_out_of_generated_splits(level: str) -> None:
    rows = random_rows("multiclass", 90, 1, missing=0.5, level=level)
    assert_partition(make_split(SplitConfig(), 0, rows), labelled(rows))
    folds = make_folds(SplitConfig(folds=3), 0, rows)
    np.testing.assert_array_equal(np.sort(np.concatenate([fold.test for fold in folds])), labelled(rows))
    count = 90 - len(labelled(rows))
    assert notes(SplitConfig(), rows) == [f"{count} of 90 rows have no label and are left out"]


def test_a_set_without_any_label_cannot_be_split() -> None:
    with pytest.raises(InputError, match=r"set\.h5: no row has a label; expected targets to train on"):
        make_split(SplitConfig(), 0, rows_of(np.full((9, 1), np.nan, np.float32)))


@given(st.integers(0, 5000), shares, shares)
@few
def test_part_sizes_add_up_and_serve_every_share(n, valid, test) -> None:
    sizes = part_sizes(n, valid, test)
    assert sum(sizes) == n
    assert min(sizes) >= 0
    if n >= 3:
        assert (sizes.valid > 0) == (valid > 0)
        assert (sizes.test > 0) == (test > 0)


def test_three_rows_are_enough_for_three_parts() -> None:
    split = make_split(SplitConfig(), 0, random_rows("binary", 3, 0))
    assert [len(part) for part in split.parts().values()] == [1, 1, 1]


# ------------------------------------------------------------------------------------------------ strata


def test_binary_strata_are_the_rarest_positive_task_no_positive_and_no_label() -> None:
    nan = np.nan
    y = np.array([[1, 1], [1, 0], [1, nan], [0, 0], [nan, nan], [nan, 0]], np.float32)
    np.testing.assert_array_equal(strata("binary", y), [1, 0, 0, 2, 3, 2])


def test_regression_strata_are_quantile_bins_of_equal_size() -> None:
    y = np.random.default_rng(0).normal(size=(100, 1)).astype(np.float32)
    stratum = strata("regression", y)
    np.testing.assert_array_equal(np.bincount(stratum), np.full(10, 10))
    order = np.argsort(y[:, 0])
    assert np.all(np.diff(stratum[order]) >= 0)


@pytest.mark.parametrize("target", ["binary", "regression"])
def test_strata_of_a_set_without_any_label_are_one(target: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(set(strata(target, np.full((7, 2), np.nan, np.float32)).tolist())) == 1  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ folds


@few
@given(shapes, st.integers(2, 7), st.sampled_from((0.0, 0.1, 0.3)), st.sampled_from(("random", "stratified")))
def test_each_row_is_tested_once_and_folds_are_even(shape, k, valid, kind) -> None:
    target, n, seed = shape
    rows = random_rows(target, n, seed)
    known = labelled(rows)
    n = len(known)
    folds = make_folds(SplitConfig(kind=kind, folds=k, valid=valid), seed, rows)
    for fold in folds:
        assert_partition(fold, known)
        assert abs(len(fold.valid) - valid * (n - len(fold.test))) <= 1
    np.testing.assert_array_equal(np.sort(np.concatenate([fold.test for fold in folds])), known)
    sizes = [len(fold.test) for fold in folds]
    assert max(sizes) - min(sizes) <= 1


@few
@given(st.integers(40, 200), st.integers(2, 5), st.integers(0, 2**32))
def test_stratified_folds_share_every_class_evenly(n, k, seed) -> None:
    rows = random_rows("multiclass", n, seed)
    folds = make_folds(SplitConfig(kind="stratified", folds=k), seed, rows)
    counts = np.array([np.bincount(rows.y[fold.test, 0] + 1, minlength=5) for fold in folds])
    assert np.all(counts.max(axis=0) - counts.min(axis=0) <= 1)


@few
@given(st.integers(60, 200), st.integers(2, 4), st.integers(0, 2**32))
def test_scaffold_folds_keep_groups_whole_and_are_as_even_as_sklearns(n, k, seed) -> None:
    rows = random_rows("binary", n, seed)
    assert rows.groups is not None
    folds = make_folds(SplitConfig(kind="scaffold", folds=k, valid=0.0), seed, rows)
    known = labelled(rows)
    np.testing.assert_array_equal(np.sort(np.concatenate([fold.test for fold in folds])), known)
    for fold in folds:
        assert not set(rows.groups[fold.test].tolist()) & set(rows.groups[fold.train].tolist())
    peer = [len(test) for _, test in GroupKFold(k).split(rows.y[known], groups=rows.groups[known])]
    assert sorted(len(fold.test) for fold in folds) == sorted(peer)


def test_scaffold_folds_draw_validation_groups_that_are_not_in_training() -> None:
    rows = rows_of(np.zeros((60, 1), np.float32), groups=np.repeat(np.arange(20, dtype=np.int32), 3))
    for fold in make_folds(SplitConfig(kind="scaffold", folds=4, valid=0.2), 0, rows):
        assert_partition(fold, np.arange(60))
        assert len(fold.valid) == 9
        assert not set((fold.valid // 3).tolist()) & set((fold.train // 3).tolist())


def test_folds_of_clusters_keep_them_whole_and_follow_the_seed() -> None:
    rows = random_rows("regression", 200, 1)
    assert rows.groups is not None
    rows.groups[:100] = 1000 + np.arange(100)
    folds = [make_folds(SplitConfig(kind="cluster", folds=4), seed, rows) for seed in (0, 0, 1)]
    for one, other in zip(folds[0], folds[1], strict=True):
        assert_same(one, other)
    assert not np.array_equal(folds[0][0].test, folds[2][0].test)
    for split in folds[2]:
        assert_partition(split, labelled(rows))
        owners = [set(rows.groups[part].tolist()) for part in split.parts().values()]
        assert len(set.union(*owners)) == sum(map(len, owners))
    np.testing.assert_array_equal(np.sort(np.concatenate([split.test for split in folds[2]])), labelled(rows))


def test_folds_follow_the_seed() -> None:
    rows = random_rows("binary", 50, 0)
    one, same, other = (make_folds(SplitConfig(folds=5), seed, rows) for seed in (1, 1, 2))
    for fold, again in zip(one, same, strict=True):
        assert_same(fold, again)
    assert not np.array_equal(one[0].test, other[0].test)


def test_leave_one_out_is_as_many_folds_as_rows() -> None:
    folds = make_folds(SplitConfig(folds=4, valid=0.3), 0, random_rows("binary", 4, 0))
    assert sorted(int(fold.test[0]) for fold in folds) == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------ predefined, refusals


def stored(**sizes: int) -> Split:
    numbers = np.arange(sum(sizes.values()))[::-1]
    return Split(**dict(zip(sizes, np.split(numbers, np.cumsum(list(sizes.values()))[:-1]), strict=True)))


FILE = {"planetoid": stored(train=3, valid=2, test=2), "scaffold": stored(train=4, valid=2, test=1)}


def predefined(name: str, splits: dict[str, Split], **config: Any) -> Split:
    return make_split(
        SplitConfig(kind="predefined", name=name, **config), 0, rows_of(np.zeros((7, 1), np.float32), splits=splits)
    )


def test_a_predefined_split_is_found_by_name_or_as_the_only_one() -> None:
    assert_partition(predefined("planetoid", FILE), np.arange(7))
    np.testing.assert_array_equal(predefined("planetoid", FILE).train, [4, 5, 6])
    assert_same(predefined("", {"only": FILE["planetoid"]}), predefined("planetoid", FILE))


def train_and_test(target: str, n: int, seed: int) -> tuple[SplitRows, Split]:
    """Rows with a stored split of two parts: of some labelled and unlabelled rows, others are in none."""
    rows = random_rows(target, n, seed)
    order = np.random.default_rng(seed).permutation(n)
    split = Split(train=order[: n // 2], valid=order[:0], test=order[n // 2 : n // 2 + n // 5])
    rows.splits["only"] = split
    return rows, split


@few
@given(shapes, st.sampled_from((0.1, 0.2, 0.4)), st.sampled_from(KINDS))
def test_validation_rows_of_a_stored_split_without_them_are_drawn_from_its_training_rows(shape, valid, kind) -> None:
    rows, known = train_and_test(*shape)
    assert rows.groups is not None
    rows.groups[:] = np.arange(len(rows.groups)) // 2
    config = SplitConfig(kind="predefined", valid=valid, valid_kind=kind)
    split = make_split(config, shape[2], rows)
    assert_same(split, make_split(config, shape[2], rows))
    np.testing.assert_array_equal(split.test, np.sort(known.test))
    np.testing.assert_array_equal(np.sort(np.concatenate([split.train, split.valid])), np.sort(known.train))
    candidates = np.intersect1d(known.train, labelled(rows))
    assert np.isin(split.valid, candidates).all()
    pairs = np.intersect1d(rows.groups[split.valid], rows.groups[np.intersect1d(split.train, candidates)])
    assert kind != "scaffold" or not len(pairs)
    assert abs(len(split.valid) - valid * len(candidates)) <= (1 if kind != "scaffold" else 3)


def test_drawn_validation_rows_follow_the_seed_and_the_strata() -> None:
    rows, known = train_and_test("multiclass", 200, 0)
    one, other = (make_split(SplitConfig(kind="predefined", valid=0.5), seed, rows).valid for seed in (1, 2))
    assert not np.array_equal(one, other)
    drawn = make_split(SplitConfig(kind="predefined", valid=0.5, valid_kind="stratified"), 0, rows).valid
    classes = np.intersect1d(known.train, labelled(rows))
    assert np.all(np.abs(np.bincount(rows.y[drawn, 0]) - np.bincount(rows.y[classes, 0]) / 2) <= 1)


def test_what_a_predefined_split_lacks_is_said() -> None:
    def said(**config: Any) -> list[str]:
        return notes(SplitConfig(kind="predefined", **config), rows)

    rows = rows_of(np.zeros((8, 1), np.float32), splits={"only": stored(train=5, valid=0, test=2)})
    (line,) = said(valid=0.2, valid_kind="stratified")
    assert line.startswith("split 'only' has no validation rows: the share 0.2 of its 5 training rows validates (strat")
    assert said(valid=0.0) == []
    rows = replace(rows, splits={"only": stored(train=5, valid=2, test=0)})
    assert said() == ["split 'only' has no test rows: nothing is tested"]
    assert len(make_split(SplitConfig(kind="predefined"), 0, rows).test) == 0
    (line,) = notes(SplitConfig(), rows)
    assert "set.h5 has a stored split ('only'), which this run does not use" in line
    assert notes(SplitConfig(kind="random"), rows) == []


def test_a_split_is_described_with_the_rule_of_drawn_validation_rows() -> None:
    config = SplitConfig(kind="predefined", valid=0.4)
    rows = rows_of(np.zeros((8, 1), np.float32), splits={"only": stored(train=5, valid=0, test=3)})
    about = describe(config, 7, rows, make_split(config, 7, rows))
    assert about == {"kind": "predefined", "name": "only", "valid_kind": "random", "seed": 7, "sizes": [3, 2, 3]}
    assert title(about) == "predefined split 'only', random validation rows, seed 7"
    rows = replace(rows, splits={"only": stored(train=5, valid=2, test=1)})
    assert title(describe(config, 7, rows, make_split(config, 7, rows))) == "predefined split 'only', seed 7"


@pytest.mark.parametrize("key", ["folds", "repeats"])
def test_folds_and_repeats_of_a_predefined_split_are_refused(key: str) -> None:
    rows = rows_of(np.zeros((8, 1), np.float32), splits={"only": stored(train=5, valid=0, test=3)})
    message = rf"^split\.{key}: 3 with a predefined split, whose test rows are fixed\. .* train\.ensemble"
    with pytest.raises(InputError, match=message):
        make_splits(SplitConfig(kind="predefined", **{key: 3}), 0, rows)


@pytest.mark.parametrize(
    ("name", "splits", "message"),
    [
        ("", {}, r"set\.h5: the file carries no split; .*split\.kind to random"),
        ("", FILE, r"set\.h5: the file carries 2 splits; expected split\.name .*Known: planetoid, scaffold\."),
        ("planetoyd", FILE, r"set\.h5: no split named 'planetoyd'.*Did you mean 'planetoid'\?"),
    ],
)
def test_a_predefined_split_that_is_not_there_is_refused(name: str, splits: dict[str, Split], message: str) -> None:
    with pytest.raises(InputError, match=message):
        predefined(name, splits)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_rows_name_the_empty_part_and_the_sizes(n: int) -> None:
    with pytest.raises(InputError, match=r"the train part of the split has no row \(train 0, valid \d, test \d\)"):
        make_split(SplitConfig(), 0, random_rows("binary", n, 0))


def test_one_group_cannot_fill_three_parts() -> None:
    rows = rows_of(np.zeros((9, 1), np.float32), groups=np.zeros(9, np.int32))
    with pytest.raises(InputError, match=r"all 9 rows are in one group \(a scaffold\), .*expected at least 3 groups"):
        make_split(SplitConfig(kind="scaffold"), 0, rows)
    rows = rows_of(np.zeros((9, 1), np.float32), groups=np.repeat(np.arange(2, dtype=np.int32), [5, 4]))
    with pytest.raises(InputError, match=r"set\.h5, fold 1 of 2: the train part .* \(train 0, valid 4, test 5\)"):
        make_folds(SplitConfig(kind="scaffold", folds=2), 0, rows)


@pytest.mark.parametrize("make", [make_split, make_folds])
def test_a_scaffold_split_without_groups_says_what_to_do(make: Any) -> None:
    with pytest.raises(InputError, match=r"set\.h5: the file has no groups; .*gcnbatch data import smiles"):
        make(SplitConfig(kind="scaffold", folds=3), 0, rows_of(np.zeros((9, 1), np.float32)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("random", r"split\.folds = 5 for 4 rows; .*one fold per row"),
        ("scaffold", r"2 groups \(scaffolds\) for 5 parts"),
    ],
)
def test_more_folds_than_rows_or_groups_are_refused(kind: str, message: str) -> None:
    rows = rows_of(np.zeros((4, 1), np.float32), groups=np.array([0, 0, 1, 1], np.int32))
    with pytest.raises(InputError, match=message):
        make_folds(SplitConfig(kind=kind, folds=5), 0, rows)


@pytest.mark.parametrize(("make", "parts"), [(make_split, 3), (make_folds, 4)])
def test_one_scaffold_of_all_rows_is_said_with_what_helps(make: Any, parts: int) -> None:
    rows = rows_of(np.zeros((9, 1), np.float32), groups=np.zeros(9, np.int32))
    message = rf"set\.h5: all 9 rows are in one group .*at least {parts} groups\. Set split\.kind to \"random\" or"
    with pytest.raises(InputError, match=message):
        make(SplitConfig(kind="scaffold", folds=4), 0, rows)
