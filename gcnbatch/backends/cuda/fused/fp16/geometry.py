"""Geometry of a fused step in halves (cuda_src/fused/fp16/tiles.cuh): pure arithmetic, tested without a GPU.

Dimensions: F / P columns of a layer's input / output, K the columns of its U, F rounded up to whole panels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div

TILE_ROWS, PANEL = 144, 64
WIDTHS = (128, 256, 384, 512)
MOST_COLUMNS = 512  # of U
WEIGHT_SCALE, INNER_SCALE = 128.0, 128.0  # of weights; of U but for the first layer, where rows of A sum up to 1
LARGEST = 49_152.0  # that a scaled number is to reach: a half goes to 65,504
EXPONENTS = 100  # of scales, at most, either way
DW_THREADS, DW_PANELS = 288, 2  # panels of either matrix in a block
MOST_SPLITS = 8  # that the update adds up
HEAD_TILE = 64
DW_STAGES, DW_ROWS = 9, 48  # of the ring; of a stage, in each of two panels of either matrix
DW_SHARED = DW_STAGES * 2 * DW_PANELS * DW_ROWS * PANEL * 2
UPDATE_THREADS, UPDATE_TILE, UPDATE_ROWS = 256, 32, 64  # columns and rows of a block


def columns_of_u(F: int) -> int:
    """Return K.

    >>> columns_of_u(75), columns_of_u(512)
    (128, 512)
    """
    return PANEL * ceil_div(F, PANEL)


def scale_of(largest: float) -> float:
    """Return the power of two by which numbers up to `largest` are multiplied, so that they are halves; else 1.

    >>> scale_of(1.0), scale_of(1e9), scale_of(0.0), scale_of(math.inf)
    (32768.0, 3.0517578125e-05, 1.0, 1.0)
    """
    if not 0 < largest < math.inf:
        return 1.0
    return 2.0 ** max(min(math.floor(math.log2(LARGEST / largest)), EXPONENTS), -EXPONENTS)


def inner_scale(reach: float) -> float:
    """Return the power of two that U = A Z is multiplied by, where |A| sums up to `reach` over a row.

    Z may be 511 then: batch norm's gamma, unless it exceeds 11, times the most that a normed number can be, sqrt(N).

    >>> inner_scale(0.0), inner_scale(1.0), inner_scale(5.0)
    (128.0, 128.0, 16.0)
    """
    if not 1 < reach < math.inf:
        return INNER_SCALE
    return INNER_SCALE / 2.0 ** min(math.ceil(math.log2(reach)), EXPONENTS)


class DwGeometry(NamedTuple):
    """Of `fused_half_dw`: a layer's parts are (splits, F, P); `places` are its blocks' layers and first panels."""

    launch: Launch
    splits: int
    places: tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=4096)
def dw(shapes: Sequence[tuple[int, int]], head: tuple[int, int], multiprocessors: int) -> DwGeometry:
    """Return the launch for layers of these K and P and a dense layer of F and P: a block a multiprocessor, if it goes.

    >>> dw(((128, 512), (512, 512), (512, 512)), (512, 100), 132).launch
    Launch(grid=(129, 1, 1), block=(288, 1, 1), shared=221184)
    """
    places = tuple(
        (job, k, p)
        for job, (K, P) in enumerate(shapes)
        for k in range(0, K // PANEL, DW_PANELS)
        for p in range(0, P // PANEL, DW_PANELS)
    )
    splits = min(max((multiprocessors - 1) // len(places), 1), MOST_SPLITS)
    small = ceil_div(head[0] + 1, HEAD_TILE) * ceil_div(head[1], HEAD_TILE) + len(shapes)
    blocks = len(places) * splits
    others = max(min(small, multiprocessors - blocks), 1)
    return DwGeometry(Launch((blocks + others, 1, 1), (DW_THREADS, 1, 1), DW_SHARED), splits, places)


def weights(P: int, K: int) -> Launch:
    """Return the launch of `fused_half_weights`."""
    return Launch((P // UPDATE_TILE, K // UPDATE_TILE, 1), (UPDATE_THREADS, 1, 1))


def stage(graphs: int, tiles: int, multiprocessors: int) -> Launch:
    """Return the launch of `fused_half_stage`: a graph or tile per block, as far as four blocks a multiprocessor go."""
    return Launch((max(1, min(graphs + tiles, 4 * multiprocessors)), 1, 1), (UPDATE_THREADS, 1, 1))
