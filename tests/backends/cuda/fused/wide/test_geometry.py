"""Geometry of the wide kernels: blocks cover all rows and columns, workspaces are large enough."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcnbatch.backends.cuda.fused.wide import geometry

ROWS = st.one_of(st.sampled_from([0, 1, 33, 127, 128, 129, 1850]), st.integers(0, 5000))
COLUMNS = st.sampled_from([1, 3, 31, 64, 75, 100, 130, 256, 512, 1000])
CHANNELS = st.sampled_from([1, 2, 4])
CHIPS = st.sampled_from([1, 82, 132])
PRECISIONS = st.sampled_from(["tf32", "3xtf32"])
quickly = settings(max_examples=60)


def covers(blocks: int, each: int, n: int) -> bool:
    """Whether the blocks cover all n elements and every block has one."""
    return (blocks - 1) * each < n <= blocks * each


@pytest.mark.parametrize(("F", "C", "K"), [(1, 1, 8), (75, 1, 80), (512, 1, 520), (7, 1, 8), (75, 4, 304), (2, 4, 16)])
def test_columns_of_u_are_rounded_up(F: int, C: int, K: int) -> None:
    assert geometry.augmented_columns(F, C) == K


@quickly
@given(ROWS, COLUMNS, CHANNELS)
def test_propagation_covers_every_row_channel_and_column(rows: int, columns: int, C: int) -> None:
    launch = geometry.propagate(rows, columns, C)
    x, y, _ = launch.block
    assert launch.grid[0] * y >= geometry.PANEL * -(-rows // geometry.PANEL) * C
    assert covers(launch.grid[1], x * (4 if columns % 4 == 0 else 1), columns)
    backward = geometry.propagate_backward(rows, columns)
    assert covers(backward.grid[0], 32, rows) or (rows == 0 and backward.blocks == 0)
    assert covers(backward.grid[1], 32, columns)


@quickly
@given(COLUMNS, CHANNELS, COLUMNS)
def test_packed_weights_are_whole_panels(F: int, C: int, P: int) -> None:
    launch, forward, backward = geometry.weight_panels(F, C, P)
    assert covers(launch.grid[0], 32, C * F + C)
    assert covers(launch.grid[1], 32, P)
    assert forward == 2 * launch.grid[0] * 32 * P
    assert backward == 2 * launch.grid[1] * 32 * C * F


@quickly
@given(ROWS, COLUMNS, PRECISIONS)
def test_a_product_is_covered_by_its_tiles(rows: int, columns: int, precision: str) -> None:
    launch = geometry.product(rows, columns, precision)
    assert launch.block == (geometry.THREADS, 1, 1)
    assert launch.grid[1] == geometry.tiles(rows)
    assert covers(launch.grid[1], geometry.TILE_ROWS, rows) or (rows == 0 and launch.grid[1] == 1)
    assert covers(launch.grid[0], geometry.TILE_COLUMNS, columns)
    assert geometry.product_dx(rows, columns, precision).grid == launch.grid
    assert geometry.EPILOGUE_BYTES <= launch.shared <= 227 * 1024 - 2048  # 2 KB: the kernels' static shared memory


@quickly
@given(ROWS, COLUMNS, CHANNELS, COLUMNS, CHIPS, PRECISIONS)
def test_weight_gradient_covers_all_rows_with_its_splits(
    rows: int, F: int, C: int, P: int, chips: int, precision: str
) -> None:
    K = geometry.augmented_columns(F, C)
    launch, splits = geometry.product_dw(rows, K, P, chips, precision)
    assert covers(launch.grid[1], geometry.TILE_ROWS, K)
    assert covers(launch.grid[0], geometry.TILE_COLUMNS, P)
    assert launch.grid[2] == splits >= 1
    assert splits == 1 or rows > (splits - 1) * geometry.ROWS_PER_SPLIT
    assert splits == 1 or launch.blocks <= chips


def test_products_of_the_wide_example_are_one_wave() -> None:
    assert geometry.product(1850, 512, "tf32").blocks == 120
    assert geometry.product_dw(1850, 520, 512, 132, "tf32").launch.blocks == 120
    assert geometry.product_dw(1850, 80, 512, 132, "3xtf32").launch.grid == (8, 1, 16)
