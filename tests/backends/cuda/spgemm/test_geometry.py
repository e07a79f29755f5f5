"""Geometry of SpGEMM: every row is in one launch, tables have room for their rows, limits hold everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.backends.cuda.spgemm import geometry
from gcnbatch.backends.cuda.spgemm.geometry import LONG, Method, Stats

H200 = 132
quickly = settings(max_examples=80)


def stats(rows: list[int], squares: int | None = None, long_products: int = 0) -> Stats:
    """Return the stats of rows by group, each with the largest bound of its group."""
    filled = rows + [0] * (LONG + 1 - len(rows))
    products = sum(count << group for group, count in enumerate(filled[:LONG]))
    spread = sum(count << 2 * group for group, count in enumerate(filled[:LONG]))
    return Stats(products, spread if squares is None else squares, 0, long_products, 0, tuple(filled))


def test_stats_are_read_by_name() -> None:
    found = geometry.read_stats([100, 2000, 5000, 9000, 11, *range(LONG + 1)])
    assert (found.products, found.long_rows, found.rows_of_group[3]) == (9100, LONG, 3)


@quickly
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=LONG), st.integers(0, 50), st.floats(1.0, 30.0))
def test_every_row_is_in_exactly_one_launch_that_has_room_for_it(rows: list[int], empty: int, ratio: float) -> None:
    found = stats(rows)
    n_rows = sum(rows) + empty
    runs = geometry.plan(found, n_rows, 1000, H200, ratio)
    counts = found.rows_of_group
    if len(runs) == 1 and runs[0].n_rows == n_rows:
        covered = {group for group in range(LONG) if counts[group]}
        assert runs[0].first == 0
    else:
        places = sorted((run.first, run.first + run.n_rows) for run in runs)
        assert [start for start, _ in places] == [0, *(stop for _, stop in places[:-1])] or not runs
        assert (places[-1][1] if places else 0) == sum(rows)
        covered = set()
    starts = [sum(counts[:group]) for group in range(LONG)]
    for run in runs:
        inside = covered or {g for g in range(LONG) if counts[g] and run.first <= starts[g] < run.first + run.n_rows}
        largest = 1 << max(inside)
        if run.method.name == "sort":
            assert largest <= 8 << run.method.bits
        elif run.method.name == "expand":
            assert largest <= 1 << run.method.bits
        else:
            assert run.guessed or largest <= 1 << (run.method.bits - 1)


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (12, 0)])
def test_rows_that_overflow_fit_the_largest_table_of_the_device(capability: tuple[int, int]) -> None:
    limit = {(7, 0): 96, (7, 5): 64}.get(capability, 99) * 1024
    bits = geometry.overflow_table_bits(capability)
    assert Method("hash", bits).nbytes <= limit
    assert geometry.long_limit(bits) * 2 == 1 << bits
    for group in range(LONG):
        if 1 << group <= geometry.long_limit(bits):
            for ratio in (1.0, 2.0, 100.0):
                assert geometry.method_of(group, ratio, 1000).nbytes <= limit


@quickly
@given(st.integers(0, 10**6), st.integers(0, 10**7))
def test_launches_cover_their_rows(n_rows: int, n: int) -> None:
    for bits in (9, 11, 13):
        launch = geometry.hash_rows(n_rows, bits)
        assert n_rows <= launch.grid[0] * (launch.block[0] // 32) < n_rows + 8
        assert launch.shared == launch.block[0] // 32 * Method("hash", bits).nbytes
        assert geometry.hash_rows(n_rows, bits, 7).blocks <= 7
    for bits in (2, 3, 5):
        assert geometry.sort_rows(n_rows, bits).blocks * (256 >> bits) >= n_rows
    launch, lane_bits = geometry.compact(n_rows, n)
    assert n_rows <= launch.grid[0] * (256 >> lane_bits) < n_rows + 256
    launch, lane_bits = geometry.bound(n_rows, n)
    assert lane_bits <= 5
    assert n_rows <= launch.grid[0] * 256 < n_rows + 256
    assert geometry.indptr(n_rows).grid[0] * 1024 >= n_rows
    assert geometry.merge_tiles(n) * 8192 >= n


def test_equal_rows_and_rows_with_little_waste_are_balanced() -> None:
    methods = [geometry.method_of(group, 1.0, 1000) for group in range(LONG)]
    assert geometry.is_balanced(stats([0, 0, 0, 0, 0, 0, 100]), 100, methods)
    assert geometry.is_balanced(stats([10, 10, 10, 100]), 130, methods)
    assert not geometry.is_balanced(stats([1000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10]), 1010, methods)
    with_long = Stats(1, 1, 9999, 9999, 20, (1, *[0] * (LONG - 1), 1))
    assert not geometry.is_balanced(with_long, 2, methods)


def test_the_papers_rule_looks_at_the_variance() -> None:
    methods = [geometry.method_of(group, 1.0, 1000) for group in range(LONG)]
    rows = stats([1000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10], squares=0)
    assert geometry.is_balanced(rows, 1010, methods)


def test_the_ratio_chooses_between_hash_and_expand() -> None:
    assert [geometry.method_of(10, ratio, 1000) for ratio in (1.0, 2.0, 5.8, 30.0)] == [
        Method("expand", 10),
        Method("hash", 11),
        Method("hash", 9),
        Method("hash", 9),
    ]
    assert geometry.method_of(3, 1.0, 1 << 25).name == "expand"


def test_a_group_of_few_rows_joins_the_next_larger_one() -> None:
    runs = geometry.plan(stats([0, 0, 50, 0, 0, 0, 0, 0, 0, 100_000, 0, 0, 3]), 200_000, 1000, H200, 6.0)
    assert [(run.first, run.n_rows) for run in runs] == [(100_050, 3), (0, 100_050)]
    assert all(run.guessed for run in runs if run.method.bits <= 12)


def test_long_rows_alone_need_no_launch_for_short_rows() -> None:
    assert geometry.plan(Stats(0, 0, 9999, 9999, 20, (*[0] * LONG, 1)), 5, 10, H200) == ()


def test_rows_are_sampled_from_the_smaller_groups_if_there_are_any() -> None:
    assert stats([5, *[0] * 8, 10, 20, 30]).sampled == (5, 30, 10)
    assert stats([5, *[0] * 10, 30]).sampled == (5, 30, 12)
