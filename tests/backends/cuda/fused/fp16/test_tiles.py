"""Batches in tiles, without a GPU: each graph has its rows, no tile overflows, an existing plan is found."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.backends.cuda.fused.fp16.tiles import TILE_ROWS, TiledPlan, plan_tiles, tiles_of
from gcnbatch.backends.cuda.fused.wide.form import to_tf32
from tests.backends.cuda.fused.fp16.workspaces import rounded_to_fp16

Int64 = NDArray[np.int64]
quickly = settings(max_examples=60)
SIZES = st.lists(st.one_of(st.just(0), st.integers(0, 50), st.integers(0, TILE_ROWS)), min_size=1, max_size=60)


def counted(sizes: list[int]) -> dict[str, Int64]:
    nodes = np.array([*sizes, 0], np.int64)
    return {"nodes": nodes, "edges": 3 * nodes}


def dealt(sizes: list[int], lengths: list[int]) -> list[Int64]:
    """Return consecutive batches of these numbers of graphs."""
    order = np.random.default_rng(len(sizes)).permutation(len(sizes))
    starts = np.cumsum([0, *lengths])
    return [order[np.arange(a, b) % len(order)] for a, b in pairwise(starts)]


@quickly
@given(SIZES, st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 20))
def test_a_plan_gives_every_graph_its_rows(sizes: list[int], lengths: list[int], tiles: int) -> None:
    counts, batches = counted(sizes), dealt(sizes, lengths)
    plan = plan_tiles(batches, counts, tiles)
    if plan is None:
        assert not all(first_fit_decreasing([max(sizes[graph], 1) for graph in batch], tiles) for batch in batches)
        return
    assert isinstance(plan, TiledPlan)
    for number, batch in enumerate(batches):
        graphs = plan.graphs[plan.batch_ptr[number] : plan.batch_ptr[number + 1]]
        assert sorted(graphs) == sorted(batch)
        nodes, edges = plan.pointer("nodes", number), plan.pointer("edges", number)
        own = np.array([sizes[graph] for graph in graphs])
        np.testing.assert_array_equal(edges, 3 * np.concatenate([[0], np.cumsum(own)]))
        assert nodes[-1] == own.sum()
        starts, used = plan.tile_starts[number], plan.tile_counts[number]
        assert 0 < used <= tiles
        assert (starts[0], starts[used], starts[-1]) == (0, len(batch), len(batch))
        for tile in range(used):
            there = slice(starts[tile], starts[tile + 1])
            ends = np.cumsum(own[there])
            np.testing.assert_array_equal(nodes[:-1][there], tile * TILE_ROWS + ends - own[there])
            assert ends.max(initial=0) <= TILE_ROWS
            assert len(ends) <= TILE_ROWS
    wider = plan.in_tiles(tiles + 3)
    assert wider.tile_starts.shape == (len(batches), tiles + 4)
    assert (wider.tile_starts[:, tiles:] == plan.tile_starts[:, -1:]).all()


def first_fit_decreasing(sizes: list[int], tiles: int) -> bool:
    """Whether first-fit decreasing finds a tile for every graph."""
    free = [TILE_ROWS] * tiles
    for size in sorted(sizes, reverse=True):
        place = next((tile for tile, rows in enumerate(free) if rows >= size), None)
        if place is None:
            return False
        free[place] -= size
    return True


def test_tiles_of_a_batch_have_similar_numbers_of_graphs() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, 34, 500)
    plan = plan_tiles([rng.permutation(500)[:100] for _ in range(20)], counted(sizes.tolist()), 15)
    assert plan is not None
    assert (plan.tile_counts == 15).all()
    graphs = np.diff(plan.tile_starts, axis=1)
    assert graphs.min() >= 4
    assert graphs.max() <= 9


def test_a_small_batch_uses_few_tiles() -> None:
    plan = plan_tiles([np.arange(30), np.arange(5)], counted([20] * 30), 15)
    assert plan is not None
    assert plan.tile_counts.tolist() == [tiles_of(600, 15), 5] == [5, 5]


def test_a_batch_that_does_not_fit_has_no_plan() -> None:
    assert plan_tiles([np.arange(2)], counted([TILE_ROWS, 1]), 1) is None
    assert plan_tiles([np.arange(2)], counted([TILE_ROWS, 1]), 2) is not None
    assert plan_tiles([np.arange(TILE_ROWS)], counted([0] * TILE_ROWS), 1) is not None
    assert plan_tiles([np.arange(TILE_ROWS + 1)], counted([0] * (TILE_ROWS + 1)), 1) is None


# ---- launches


@quickly
@given(st.lists(st.sampled_from([(64, 128), (192, 384), (512, 512)]), min_size=1, max_size=8), st.integers(1, 150))
def test_every_tile_of_a_weight_gradient_has_a_block(shapes: list[tuple[int, int]], chip: int) -> None:
    plan = geometry.weight_gradient(tuple(shapes), (512, 100), chip)
    for number, (K, P) in enumerate(shapes):
        found = [(k, p) for job, k, p in plan.places if job == number]
        assert sorted(found) == [(k, p) for k in range(0, K // 64, 2) for p in range(0, P // 64, 2)]
    products = len(plan.places) * plan.splits
    assert products < plan.launch.blocks <= products + 18 + len(shapes)
    assert plan.splits == 1 or plan.launch.blocks <= chip


@quickly
@given(st.floats(1e-25, 1e34))
def test_scales_use_the_range_of_fp16_without_overflow(largest: float) -> None:
    scale = geometry.scale_of(largest)
    assert geometry.LARGEST / 2 < largest * scale <= geometry.LARGEST
    assert np.log2(scale) % 1 == 0
    inner = geometry.inner_scale(largest)
    assert inner * min(largest, 1e30) <= geometry.INNER_SCALE
    assert inner == geometry.INNER_SCALE or inner * min(largest, 1e30) > geometry.INNER_SCALE / 2 or largest > 1e30


# ---- precision: fp16 times a power of two is TF32


@quickly
@given(st.integers(-22, 10), st.integers(0, 2**32 - 1))
def test_scaled_fp16_rounds_like_tf32(exponent: int, seed: int) -> None:
    """Normal numbers have equal bits; subnormal ones differ by at most the rounding of the largest."""
    values = np.random.default_rng(seed).standard_normal(2000).astype(np.float32)
    values *= np.float32(10.0**exponent) * 10.0 ** np.random.default_rng(seed + 1).uniform(-9, 0, 2000).astype(
        np.float32
    )
    largest = float(np.abs(values).max())
    scale = np.float32(geometry.scale_of(largest))
    found = rounded_to_fp16(values, scale)
    normal = np.abs(values) * scale >= 2.0**-14
    assert normal.mean() > 0.5
    np.testing.assert_array_equal(found[normal], to_tf32(values)[normal])
    np.testing.assert_array_less(np.abs(found - values)[~normal], largest * 2.0**-39)
