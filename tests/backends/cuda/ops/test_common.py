"""Geometry that operations share: threads cover every row and column."""

from __future__ import annotations

from hypothesis import given

from gcnbatch.backends.cuda.ops.common import column_reduction, row_tiles
from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS
from tests.backends.cuda.ops.recorder import CHIPS, NARROW, ROWS, covers, quickly


@quickly
@given(ROWS, NARROW, CHIPS)
def test_column_reduction_chunks_cover_every_row_once(N: int, P: int, chips: int) -> None:
    launch, rows_per_chunk = column_reduction(N, P, chips)
    grid, block = launch.grid, launch.block
    assert launch.threads == BLOCK_THREADS
    assert block[0].bit_count() == 1
    assert covers(grid[1], block[0], P)
    assert covers(grid[0], rows_per_chunk, N) or (N == 0 and grid[0] == 1)
    assert grid[0] == 1 or launch.blocks <= 2 * chips


@quickly
@given(ROWS, NARROW)
def test_row_tiles_cover_every_element(N: int, P: int) -> None:
    launch = row_tiles(N, P)
    assert launch.threads == BLOCK_THREADS
    assert covers(launch.grid[0], launch.block[1], N)
    assert covers(launch.grid[1], 4 * launch.block[0], P)
