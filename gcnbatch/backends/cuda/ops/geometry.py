"""Geometry of the dense kernels: pure arithmetic, tested without a GPU.

Dimensions: N rows (nodes), F / P columns of a product's input / output, B graphs, R x K entries of a loss.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div, next_power_of_two
from gcnbatch.backends.cuda.runtime.sources import declared

Precision = Literal["fp32", "tf32"]

THREADS = 256
FLOAT_BYTES, DOUBLE_BYTES, COUNTER_BYTES = 4, 8, 4
ROWS_PER_THREAD: int = declared("dense/batch_norm.cu").constant("STRIP")  # that a thread reduces at least
ROWS_PER_PART = 64  # of a weight gradient, at least
BLOCKS_AT_ONCE, ROWS_AT_ONCE = 3, 256  # per multiprocessor, of a part: up to these all gradients are one launch
FOLD_COST = 8  # of folding one partial sum, in multiply-adds
ENTRIES_OF_ONE_BLOCK = 16_384  # up to which a loss is one launch of one block
MAX_NORM_BLOCKS = THREADS  # `clip_norm_factor` adds up a sum of each with one block


class Tile(NamedTuple):
    """A strategy of dense/matmul.cu: the tile of the product that a block computes.

    `speed` is the share of a multiprocessor's multiply-adds that the strategy reaches beside the others: what the
    instructions of its inner loop leave, and what its few warps cannot hide.
    """

    name: str
    rows: int
    columns: int
    depth: int
    threads: int
    speed: float


def _tile(name: str, speed: float) -> Tile:
    """Return a tile with the sizes that the source gives to the type of its name."""
    source, type_ = declared("dense/matmul.cu"), f"Tile{name.replace('tf32_', 'Tf32')}"
    rows, columns, depth, threads = (source.constant(f"{type_}::{size}") for size in ("BM", "BN", "DEPTH", "THREADS"))
    return Tile(name, rows, columns, depth, threads, speed)


TILES: dict[Precision, tuple[Tile, ...]] = {
    "fp32": (_tile("128x64", 1.0), _tile("64x64", 0.9), _tile("32x32", 0.55), _tile("16x32", 0.4)),
    "tf32": (_tile("tf32_128x64", 1.0), _tile("tf32_32x32", 0.4)),
}
WGRAD_TILES: dict[Precision, tuple[Tile, ...]] = {
    "fp32": (TILES["fp32"][0], TILES["fp32"][2]),
    "tf32": TILES["tf32"],
}


class MatmulGeometry(NamedTuple):
    """Of `matmul_{tile}_forward` and `matmul_{tile}_dgrad`."""

    tile: str
    launch: Launch


class WgradGeometry(NamedTuple):
    """Of `matmul_{tile}_wgrad`: the rows of a part, and the bytes of its workspaces."""

    tile: str
    launch: Launch
    rows_per_part: int
    partials_bytes: int
    counters_bytes: int


class BackwardGeometry(NamedTuple):
    """Of `matmul_32x32_backward`: as `WgradGeometry`, and how many blocks work on dW."""

    launch: Launch
    rows_per_part: int
    dw_blocks: int
    partials_bytes: int
    counters_bytes: int


class ColumnsGeometry(NamedTuple):
    """Of a reduction over rows: each grid column has its columns, each grid row its chunk of the rows."""

    launch: Launch
    rows_per_chunk: int


@lru_cache(maxsize=4096)
def matmul(rows: int, columns: int, depth: int, multiprocessors: int, precision: Precision = "fp32") -> MatmulGeometry:
    """Return the tile and launch of a product (rows, depth) x (depth, columns).

    The tile is the one whose rounds over the multiprocessors take least time: a large one saves reads where there is
    work for all, a small one spreads a small product.

    >>> matmul(950, 64, 64, 132).tile, matmul(950, 64, 64, 132).launch.grid
    ('16x32', (60, 2, 1))
    >>> matmul(1850, 512, 512, 132).tile, matmul(1850, 512, 512, 132).launch.grid
    ('128x64', (15, 8, 1))
    """

    def cost(tile: Tile) -> float:
        blocks = ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)
        return ceil_div(blocks, multiprocessors) * tile.rows * tile.columns * depth / tile.speed

    tile = min(TILES[precision], key=cost)
    grid = (ceil_div(rows, tile.rows), ceil_div(columns, tile.columns), 1)
    return MatmulGeometry(tile.name, Launch(grid, (tile.threads, 1, 1)))


@lru_cache(maxsize=4096)
def matmul_wgrad(N: int, F: int, P: int, multiprocessors: int, precision: Precision = "fp32") -> WgradGeometry:
    """Return tile, launch and parts of the gradient (F, N) x (N, P): its depth N is cut to busy every multiprocessor.

    >>> matmul_wgrad(950, 64, 64, 132)[:3]
    ('32x32', Launch(grid=(2, 2, 15), block=(128, 1, 1), shared=0), 64)
    """
    plans = [_wgrad_plan(tile, N, F, P, multiprocessors) for tile in WGRAD_TILES[precision]]
    return min(plans, key=lambda plan: plan[0])[1]


def _wgrad_plan(tile: Tile, N: int, F: int, P: int, multiprocessors: int) -> tuple[float, WgradGeometry]:
    grid = ceil_div(F, tile.rows), ceil_div(P, tile.columns)
    tiles, sums = grid[0] * grid[1], tile.rows * tile.columns
    wanted = max(min(multiprocessors // max(tiles, 1), ceil_div(N, ROWS_PER_PART)), 1)
    rows_per_part = max(ceil_div(ceil_div(N, wanted), tile.depth), 1) * tile.depth
    parts = max(ceil_div(N, rows_per_part), 1)
    fold = parts * FOLD_COST if parts > 1 else 0
    cost = ceil_div(tiles * parts, multiprocessors) * sums * (rows_per_part / tile.speed + fold)
    launch = Launch((*grid, parts), (tile.threads, 1, 1))
    partials = tiles * parts * sums * FLOAT_BYTES if parts > 1 else 0
    return cost, WgradGeometry(tile.name, launch, rows_per_part, partials, tiles * COUNTER_BYTES)


@lru_cache(maxsize=4096)
def matmul_backward(
    N: int, F: int, P: int, multiprocessors: int, need_dx: bool, precision: Precision = "fp32"
) -> BackwardGeometry | None:
    """Return the launch of all gradients at once; None where they busy the device one by one, or on tensor cores.

    >>> matmul_backward(950, 64, 64, 132, True)[:3]
    (Launch(grid=(150, 1, 1), block=(128, 1, 1), shared=0), 64, 90)
    >>> matmul_backward(1850, 512, 512, 132, True) is None
    True
    """
    if precision != "fp32":
        return None
    tile = WGRAD_TILES["fp32"][1]
    _, plan = _wgrad_plan(tile, N, F + 1, P, multiprocessors)  # the row of ones: the gradient by the bias
    dw_blocks = plan.launch.blocks
    dx_blocks = ceil_div(N, tile.rows) * ceil_div(F, tile.columns) if need_dx else 0
    if dw_blocks + dx_blocks > BLOCKS_AT_ONCE * multiprocessors or plan.rows_per_part > ROWS_AT_ONCE:
        return None
    launch = Launch((dw_blocks + dx_blocks, 1, 1), (tile.threads, 1, 1))
    return BackwardGeometry(launch, plan.rows_per_part, dw_blocks, plan.partials_bytes, plan.counters_bytes)


@lru_cache(maxsize=4096)
def column_reduction(N: int, P: int, multiprocessors: int) -> ColumnsGeometry:
    """Return the launch of a sum over the rows of an (N, P) matrix, and the rows of a chunk; N = 0 is one empty chunk.

    >>> column_reduction(950, 64, 132)
    ColumnsGeometry(launch=Launch(grid=(30, 2, 1), block=(32, 8, 1), shared=0), rows_per_chunk=32)
    """
    x, y = _columns_by_rows(P)
    columns = ceil_div(P, x)
    chunks = max(min(ceil_div(N, y * ROWS_PER_THREAD), 2 * multiprocessors // max(columns, 1)), 1)
    rows_per_chunk = max(ceil_div(N, chunks), 1)
    return ColumnsGeometry(Launch((max(ceil_div(N, rows_per_chunk), 1), columns, 1), (x, y, 1)), rows_per_chunk)


@lru_cache(maxsize=4096)
def row_tiles(N: int, P: int) -> Launch:
    """Return the launch of an operation on every element of an (N, P) matrix, 4 columns of a row per thread.

    >>> row_tiles(950, 64)
    Launch(grid=(60, 1, 1), block=(16, 16, 1), shared=0)
    """
    vectors = ceil_div(P, 4)
    x = min(next_power_of_two(vectors), THREADS)
    y = THREADS // x
    return Launch((ceil_div(N, y), ceil_div(vectors, x), 1), (x, y, 1))


@lru_cache(maxsize=4096)
def readout(B: int, P: int) -> Launch:
    """Return the launch of the readout of B graphs: a block per graph and up to 32 columns."""
    x, y = _columns_by_rows(P)
    return Launch((B, ceil_div(P, x), 1), (x, y, 1))


@lru_cache(maxsize=4096)
def loss(n_entries: int, n_threads: int, multiprocessors: int) -> Launch:
    """Return the launch of a loss over `n_entries` that keeps `n_threads` busy; 1 block: the weight is found in it.

    >>> loss(50 * 12, 50 * 12, 132).block, loss(232_965 * 41, 232_965 * 32, 132).grid
    ((608, 1, 1), (1056, 1, 1))
    """
    if n_entries <= ENTRIES_OF_ONE_BLOCK:
        return Launch((1, 1, 1), (min(max(ceil_div(n_threads, 32), 1) * 32, 1024), 1, 1))
    return Launch((min(ceil_div(n_threads, THREADS), 8 * multiprocessors), 1, 1), (THREADS, 1, 1))


def norm(n: int) -> Launch:
    """Return the launch of `clip_norm_factor` over `n` gradients; at least one block, which yields the factor 1."""
    return Launch((min(max(ceil_div(n, 4 * THREADS), 1), MAX_NORM_BLOCKS), 1, 1), (THREADS, 1, 1))


def _columns_by_rows(P: int) -> tuple[int, int]:
    """Spread a block over up to a warp of columns, and rows."""
    x = min(next_power_of_two(P), 32)
    return x, THREADS // x
