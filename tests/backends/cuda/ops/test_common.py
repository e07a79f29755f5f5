"""Geometry that operations share: every row and column has its thread."""

from __future__ import annotations

from hypothesis import given

from gcnbatch.backends.cuda.ops.common import THREADS, column_reduction, row_tiles
from tests.backends.cuda.ops.recorder import CHIPS, NARROW, ROWS, covers, quickly


@quickly
@given(ROWS, NARROW, CHIPS)
def test_a_column_reduction_has_every_row_in_one_chunk(N: int, P: int, chips: int) -> None:
    launch, rows_per_chunk = column_reduction(N, P, chips)
    grid, block = launch.grid, launch.block
    assert launch.threads == THREADS
    assert block[0].bit_count() == 1
    assert covers(grid[1], block[0], P)
    assert covers(grid[0], rows_per_chunk, N) or (N == 0 and grid[0] == 1)
    assert grid[0] == 1 or launch.blocks <= 2 * chips


@quickly
@given(ROWS, NARROW)
def test_row_tiles_have_every_element(N: int, P: int) -> None:
    launch = row_tiles(N, P)
    assert launch.threads == THREADS
    assert covers(launch.grid[0], launch.block[1], N)
    assert covers(launch.grid[1], 4 * launch.block[0], P)
