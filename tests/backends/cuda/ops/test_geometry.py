"""Geometry of the dense kernels: every element has its thread, partial sums have room, and small work is spread."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.backends.cuda.ops import geometry
from gcnbatch.backends.cuda.ops.geometry import TILES, WGRAD_TILES, Tile
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.resources import cuda_sources

H200 = 132
ALL_TILES = [tile for tiles in TILES.values() for tile in tiles]
NARROW = st.sampled_from([1, 2, 3, 12, 31, 32, 33, 64, 75, 130, 512, 602])
ROWS = st.one_of(st.sampled_from([0, 1, 33, 257, 950, 1850, 232_965]), st.integers(0, 5000))
CHIPS = st.sampled_from([1, 16, 82, H200])
PRECISIONS = st.sampled_from(["fp32", "tf32"])
quickly = settings(deadline=None, max_examples=60)


def covers(blocks: int, each: int, n: int) -> bool:
    """No element is left out, and no block has nothing to do."""
    return (blocks - 1) * each < n <= blocks * each or (n == 0 and blocks == 0)


def tile_named(name: str) -> Tile:
    return next(tile for tile in ALL_TILES if tile.name == name)


# ---- products


@pytest.mark.parametrize("tile", ALL_TILES, ids=lambda tile: tile.name)
def test_kernels_of_a_tile_have_its_threads(tile: Tile) -> None:
    source = Sources(cuda_sources())["dense/matmul.cu"].text
    products = ["forward", "dgrad"] + ["wgrad"] * any(tile in tiles for tiles in WGRAD_TILES.values())
    for name in products:
        found = re.search(rf"__launch_bounds__\((\d+), \d+\)\s+matmul_{tile.name}_{name}\(", source)
        assert found is not None, name
        assert int(found[1]) == tile.threads
    assert tile.name.removeprefix("tf32_") == f"{tile.rows}x{tile.columns}"


@quickly
@given(ROWS, NARROW, NARROW, CHIPS, PRECISIONS)
def test_a_product_is_covered_by_its_tiles(N: int, F: int, P: int, chips: int, precision: str) -> None:
    name, launch = geometry.matmul(N, P, F, chips, precision)
    tile = tile_named(name)
    assert tile in TILES[precision]
    assert launch.block == (tile.threads, 1, 1)
    assert covers(launch.grid[0], tile.rows, N)
    assert covers(launch.grid[1], tile.columns, P)


def test_a_small_product_is_spread_and_a_wide_one_uses_large_tiles() -> None:
    small = geometry.matmul(950, 64, 64, H200).launch
    assert 100 <= small.blocks <= H200
    wide = geometry.matmul(1850, 512, 512, H200)
    assert (wide.tile, wide.launch.blocks) == ("128x64", 120)
    assert geometry.matmul(3800, 64, 64, H200).tile == "32x32"
    assert geometry.matmul(100_000, 64, 64, H200).tile == "128x64"


@quickly
@given(ROWS, NARROW, NARROW, CHIPS, PRECISIONS)
def test_a_weight_gradient_has_every_row_in_one_part(N: int, F: int, P: int, chips: int, precision: str) -> None:
    plan = geometry.matmul_wgrad(N, F, P, chips, precision)
    tile = tile_named(plan.tile)
    rows, columns, parts = plan.launch.grid
    assert tile in WGRAD_TILES[precision]
    assert plan.launch.block == (tile.threads, 1, 1)
    assert covers(rows, tile.rows, F)
    assert covers(columns, tile.columns, P)
    assert covers(parts, plan.rows_per_part, N) or (N == 0 and parts == 1)  # without rows it writes zeros
    assert plan.rows_per_part % tile.depth == 0
    assert plan.counters_bytes == 4 * rows * columns
    assert plan.partials_bytes == (4 * plan.launch.blocks * tile.rows * tile.columns if parts > 1 else 0)
    assert parts == 1 or plan.launch.blocks <= chips


def test_a_weight_gradient_keeps_the_device_busy() -> None:
    assert geometry.matmul_wgrad(950, 64, 64, H200).launch.blocks == 60
    assert geometry.matmul_wgrad(1850, 512, 512, H200)[:3] == ("128x64", Launch((4, 8, 4), (256, 1, 1)), 464)


@quickly
@given(ROWS, NARROW, NARROW, CHIPS, st.booleans())
def test_all_gradients_at_once_have_blocks_for_each(N: int, F: int, P: int, chips: int, need_dx: bool) -> None:
    plan = geometry.matmul_backward(N, F, P, chips, need_dx)
    tile = tile_named("32x32")
    dx_tiles = -(-N // 32) * -(-F // 32) if need_dx else 0
    dw_tiles = -(-(F + 1) // 32) * -(-P // 32)  # a row of dW more: the gradient by the bias
    if plan is None:
        shares = max(chips // dw_tiles, 1)
        assert dx_tiles + dw_tiles * shares > geometry.BLOCKS_AT_ONCE * chips or geometry.ROWS_AT_ONCE * shares / 2 < N
        return
    assert plan.rows_per_part <= geometry.ROWS_AT_ONCE
    assert plan.launch.block == (tile.threads, 1, 1)
    assert plan.launch.blocks == plan.dw_blocks + dx_tiles <= geometry.BLOCKS_AT_ONCE * chips
    parts, rest = divmod(plan.dw_blocks, dw_tiles)
    assert rest == 0
    assert covers(parts, plan.rows_per_part, N) or (N == 0 and parts == 1)
    assert plan.rows_per_part % tile.depth == 0
    assert plan.counters_bytes == 4 * dw_tiles
    assert plan.partials_bytes == (4 * plan.dw_blocks * 32 * 32 if parts > 1 else 0)


def test_gradients_are_taken_one_by_one_where_each_is_large_and_on_tensor_cores() -> None:
    assert geometry.matmul_backward(1850, 512, 512, H200, need_dx=True) is None
    assert geometry.matmul_backward(950, 64, 64, H200, need_dx=True, precision="tf32") is None


# ---- rows and columns


@quickly
@given(ROWS, NARROW, CHIPS)
def test_a_column_reduction_has_every_row_in_one_chunk(N: int, P: int, chips: int) -> None:
    launch, rows_per_chunk = geometry.column_reduction(N, P, chips)
    grid, block = launch.grid, launch.block
    assert launch.threads == geometry.THREADS
    assert block[0].bit_count() == 1
    assert covers(grid[1], block[0], P)
    assert covers(grid[0], rows_per_chunk, N) or (N == 0 and grid[0] == 1)
    assert grid[0] == 1 or launch.blocks <= 2 * chips


@quickly
@given(ROWS, NARROW)
def test_row_tiles_have_every_element(N: int, P: int) -> None:
    launch = geometry.row_tiles(N, P)
    assert launch.threads == geometry.THREADS
    assert covers(launch.grid[0], launch.block[1], N)
    assert covers(launch.grid[1], 4 * launch.block[0], P)


@pytest.mark.parametrize(("B", "P"), list(product([0, 1, 11, 10_000], [1, 31, 64, 130])))
def test_a_readout_has_a_block_per_graph(B: int, P: int) -> None:
    launch = geometry.readout(B, P)
    assert launch.grid[0] == B
    assert launch.threads == geometry.THREADS
    assert covers(launch.grid[1], launch.block[0], P)


# ---- losses and norms


@quickly
@given(st.integers(0, 10**7), st.integers(0, 10**7), CHIPS)
def test_a_loss_runs_in_whole_warps(entries: int, threads: int, chips: int) -> None:
    launch = geometry.loss(entries, threads, chips)
    assert launch.block[0] % 32 == 0
    if entries <= geometry.ENTRIES_OF_ONE_BLOCK:
        assert launch.blocks == 1
        assert launch.threads >= min(threads, 1024)
    else:
        assert launch.blocks <= 8 * chips


@pytest.mark.parametrize("n", [0, 1, 1024, 1025, 10**8])
def test_a_norm_has_a_block_and_no_more_than_can_be_folded(n: int) -> None:
    launch = geometry.norm(n)
    assert 1 <= launch.blocks <= geometry.MAX_NORM_BLOCKS <= launch.threads
