"""Geometry of the kernels for wide layers (cuda_src/fused/wide): pure arithmetic.

Dimensions: `rows`, the most nodes that a batch may have; F / P columns of a layer's input / output; C channels; K = C F
+ C, rounded up to 8, the columns of U.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gcnbatch.backends.cuda.runtime.launch import FLOAT_BYTES, Launch, ceil_div, next_power_of_two
from gcnbatch.backends.cuda.runtime.sources import declared

_GEMM = declared("fused/wide/gemm.cuh")
TILE_ROWS, TILE_COLUMNS, PANEL, THREADS = (_GEMM.constant(name) for name in ("BM", "BN", "PANEL", "GEMM_THREADS"))
STAGE_BYTES = {name: _GEMM.constant(f"STAGE_BYTES_{name.upper()}") for name in ("tf32", "3xtf32")}
STAGES = {"tf32": 6, "3xtf32": 6}  # of the ring of a product forward
# … and backward; in TF32 two blocks fit a multiprocessor, so both products of a layer run side by side
STAGES_BACKWARD = {"tf32": 4, "3xtf32": 6}
EPILOGUE_BYTES = _GEMM.constant("EPILOGUE_BYTES")
ROW_THREADS = declared("fused/wide/rows.cuh").constant("ROW_THREADS")
ROW_LANES = 128  # of a sparse row, at most
MOST_ROWS = TILE_ROWS * 65_535  # of a grid's second dimension
ROWS_PER_SPLIT = 64  # of a weight gradient, at least
CAPABILITIES = ((9, 0),)  # that the products are compiled for
WIDE_ENOUGH = 8_192  # weights of a layer, on average, from which these kernels train faster than the narrow ones
# … where no layer has more columns than these: narrow ones are up to 14 % slower alone, but train cohorts
FEW_COLUMNS, WIDE_ENOUGH_IN_FEW_COLUMNS = 64, 65_536
_READOUT = declared("fused/wide/readout.cuh")
CLUSTER = _READOUT.constant("WideReadout::SLICES")  # blocks, and graphs, of a cluster of the readout
READOUT_THREADS = _READOUT.constant("READOUT_THREADS")
DROPOUT_THREADS = declared("fused/wide/step.cu").constant("DROPOUT_THREADS")
DROPOUT_BLOCKS = 66  # of a layer


@lru_cache(maxsize=4096)
def dropout(rows: int, columns: int, layers: int) -> Launch:
    """Return the launch of `fused_wide_dropout` for layers of up to `columns` columns.

    >>> dropout(1850, 512, 2)
    Launch(grid=(66, 2, 1), block=(256, 1, 1), shared=0)
    """
    blocks = ceil_div(ceil_div(rows * columns, 8), DROPOUT_THREADS)
    return Launch((max(1, min(blocks, DROPOUT_BLOCKS)), layers, 1), (DROPOUT_THREADS, 1, 1))


@lru_cache(maxsize=4096)
def readout(graphs: int, P: int, K: int) -> Launch:
    """Return the launch of `fused_wide_readout` for up to `graphs` graphs and K outputs.

    >>> readout(100, 512, 100)
    Launch(grid=(8, 13, 1), block=(512, 1, 1), shared=54208)
    """
    slice_, classes = 4 * ceil_div(ceil_div(P, CLUSTER), 4), 4 * ceil_div(K, 4)
    of_columns, of_classes = 3 * CLUSTER + 4, CLUSTER + 4
    floats = slice_ * (of_columns + (K | 1)) + classes * of_classes + CLUSTER * max(classes, READOUT_THREADS)
    return Launch((CLUSTER, max(ceil_div(graphs, CLUSTER), 1), 1), (READOUT_THREADS, 1, 1), FLOAT_BYTES * floats)


class ProductDwGeometry(NamedTuple):
    """The launch of `fused_wide_product_dw_…`, whose partial sums are (splits, K, P)."""

    launch: Launch
    splits: int


@lru_cache(maxsize=4096)
def augmented_columns(F: int, C: int) -> int:
    """Return K, the columns of U: C products, C row sums, rounded up to 8.

    >>> augmented_columns(512, 1), augmented_columns(75, 4)
    (520, 304)
    """
    return 8 * ceil_div(C * F + C, 8)


@lru_cache(maxsize=4096)
def panels(rows: int, columns: int) -> tuple[int, int]:
    """Return the rows of a panel and the floats of all panels of a (rows, columns) matrix, such as U or V.

    The transpose of dY has as many floats in panels of P rows.

    >>> panels(1850, 520)
    (1920, 1044480)
    """
    capacity = TILE_ROWS * max(ceil_div(rows, TILE_ROWS), 1)
    return capacity, capacity * PANEL * ceil_div(columns, PANEL)


@lru_cache(maxsize=4096)
def v_columns(C: int, P: int) -> int:
    """Return the columns of V, whose channels begin with a panel.

    >>> v_columns(1, 512), v_columns(4, 100)
    (512, 512)
    """
    return C * PANEL * ceil_div(P, PANEL)


class WeightGeometry(NamedTuple):
    """The launch of `fused_wide_weights`, and the floats of its two outputs."""

    launch: Launch
    forward_floats: int
    backward_floats: int


@lru_cache(maxsize=4096)
def weight_panels(F: int, C: int, P: int, k: int = 0) -> WeightGeometry:
    """Return the launch that writes a layer's weights as the products read them; U has k columns, 0: C F + C.

    >>> weight_panels(512, 1, 512)[1:]
    (557056, 524288)
    """
    deep, columns = ceil_div(k or C * F + C, PANEL), ceil_div(P, PANEL)
    return WeightGeometry(Launch((deep, columns, 1), (PANEL, 8, 1)), 2 * deep * PANEL * P, 2 * C * columns * PANEL * F)


@lru_cache(maxsize=4096)
def propagate(rows: int, F: int, C: int) -> Launch:
    """Return the launch of `fused_wide_propagate`: a group of lanes for each row and channel.

    >>> propagate(1850, 512, 1)
    Launch(grid=(928, 1, 1), block=(128, 2, 1), shared=0)
    """
    vectors = F // 4 if F % 4 == 0 else F
    x = min(next_power_of_two(vectors), ROW_LANES)
    y = ROW_THREADS // x
    return Launch((ceil_div(PANEL * ceil_div(rows, PANEL) * C, y), ceil_div(vectors, x), 1), (x, y, 1))


@lru_cache(maxsize=4096)
def propagate_backward(rows: int, P: int) -> Launch:
    """Return the launch of `fused_wide_propagate_backward`: a block for 32 rows and columns.

    >>> propagate_backward(1850, 512)
    Launch(grid=(58, 16, 1), block=(256, 1, 1), shared=0)
    """
    return Launch((ceil_div(rows, PANEL), ceil_div(P, PANEL), 1), (ROW_THREADS, 1, 1))


def shared_bytes(precision: str, stages: int) -> int:
    """Return the shared memory of a product with a ring of so many stages.

    >>> shared_bytes("tf32", 6), shared_bytes("3xtf32", 6)
    (147456, 196608)
    """
    return max(stages * STAGE_BYTES[precision], EPILOGUE_BYTES)


def tiles(rows: int) -> int:
    """Return the tiles of rows of a product; each leaves partial sums of its columns.

    >>> tiles(1850)
    15
    """
    return max(ceil_div(rows, TILE_ROWS), 1)


@lru_cache(maxsize=4096)
def product(rows: int, columns: int, precision: str) -> Launch:
    """Return the launch of `fused_wide_product_…`.

    >>> product(1850, 512, "tf32")
    Launch(grid=(8, 15, 1), block=(288, 1, 1), shared=147456)
    """
    shared = shared_bytes(precision, STAGES[precision])
    return Launch((ceil_div(columns, TILE_COLUMNS), tiles(rows), 1), (THREADS, 1, 1), shared)


@lru_cache(maxsize=4096)
def product_dx(rows: int, columns: int, precision: str) -> Launch:
    """Return the launch of `fused_wide_product_dx_…`, of F columns.

    >>> product_dx(1850, 512, "tf32")
    Launch(grid=(8, 15, 1), block=(288, 1, 1), shared=98304)
    """
    shared = shared_bytes(precision, STAGES_BACKWARD[precision])
    return Launch((ceil_div(columns, TILE_COLUMNS), tiles(rows), 1), (THREADS, 1, 1), shared)


@lru_cache(maxsize=4096)
def product_dw(rows: int, K: int, P: int, multiprocessors: int, precision: str) -> ProductDwGeometry:
    """Return the launch of `fused_wide_product_dw_…`, whose splits give every multiprocessor one block.

    >>> product_dw(1850, 520, 512, 132, "tf32").launch
    Launch(grid=(8, 5, 3), block=(288, 1, 1), shared=98304)
    """
    grid = ceil_div(P, TILE_COLUMNS), ceil_div(K, TILE_ROWS)
    splits = max(min(multiprocessors // (grid[0] * grid[1]), ceil_div(rows, ROWS_PER_SPLIT)), 1)
    return ProductDwGeometry(
        Launch((*grid, splits), (THREADS, 1, 1), shared_bytes(precision, STAGES_BACKWARD[precision])), splits
    )
