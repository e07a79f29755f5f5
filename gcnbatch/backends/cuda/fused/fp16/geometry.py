"""Geometry of the fp16 form's kernels (cuda_src/fused/fp16): pure arithmetic, tested without a GPU.

Dimensions: F / P columns of a layer's input / output; K columns of its U, F rounded up to whole panels; `tiles`, the
most tiles of rows that a batch may have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gcnbatch.backends.cuda.fused.shared.geometry import UPDATE_THREADS
from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div
from gcnbatch.backends.cuda.runtime.sources import declared, kernels_of

_STEP = declared("fused/fp16/step.cuh")
TILE_ROWS, PANEL, WEIGHT_SCALE = (_STEP.constant(name) for name in ("TILE_ROWS", "FP16_PANEL", "WEIGHT_SCALE"))
THREADS, WORKERS, SHARED_BYTES = (_STEP.constant(name) for name in ("STEP_THREADS", "WORKERS", "STEP_SHARED_BYTES"))
MAX_LAYERS, MAX_TILES, MAX_OUTPUTS = (_STEP.constant(name) for name in ("MAX_LAYERS", "MAX_TILES", "MAX_OUTPUTS"))
TAG_BYTES, PAIR_BYTES, WORD_BYTES, NORM_BYTES = (  # of the exchange
    _STEP.constant(f"{name}_BYTES") for name in ("TAG", "PAIR", "WORD", "NORM")
)
MAX_COLUMNS = PANEL * _STEP.constant("MAX_PANELS")  # of U
WIDTHS = tuple(int(kernel.name.rpartition("_")[2]) for kernel in kernels_of("fused/fp16/step.cu"))  # P of each

_GRADIENT = declared("fused/fp16/weight_gradient.cu")
DW_THREADS, DW_PANELS, DW_SHARED = (_GRADIENT.constant(f"DW_{name}") for name in ("THREADS", "PANELS", "SHARED_BYTES"))
HEAD_TILE = _GRADIENT.constant("HEAD_TILE")
MAX_SPLITS = 8  # that the update adds

_UPDATE = declared("fused/fp16/update.cuh")
CHUNK_ROWS, CHUNK_COLUMNS, MAX_JOBS = (_UPDATE.constant(name) for name in ("CHUNK_ROWS", "CHUNK_COLUMNS", "MAX_JOBS"))

INNER_SCALE = 128.0  # of U after the first layer, where the rows of |A| sum up to 1 at most
LARGEST = 49_152.0  # that a scaled number may reach; fp16 ends at 65,504
MAX_EXPONENT = 100  # of scales, either way


def columns_of_u(F: int) -> int:
    """Return K.

    >>> columns_of_u(75), columns_of_u(512)
    (128, 512)
    """
    return PANEL * ceil_div(F, PANEL)


def scale_of(largest: float) -> float:
    """Return the power of two that scales numbers up to `largest` into the range of fp16; 1 where there is none.

    >>> scale_of(1.0), scale_of(1e9), scale_of(0.0), scale_of(math.inf)
    (32768.0, 3.0517578125e-05, 1.0, 1.0)
    """
    if not 0 < largest < math.inf:
        return 1.0
    return 2.0 ** max(min(math.floor(math.log2(LARGEST / largest)), MAX_EXPONENT), -MAX_EXPONENT)


def inner_scale(reach: float) -> float:
    """Return the power of two that scales U = A Z, where the rows of |A| sum up to `reach` at most.

    It leaves room for |Z| up to 511: a normed number is at most sqrt(N), times batch norm's gamma, which may reach 11.

    >>> inner_scale(0.0), inner_scale(1.0), inner_scale(5.0)
    (128.0, 128.0, 16.0)
    """
    if not 1 < reach < math.inf:
        return INNER_SCALE
    return INNER_SCALE / 2.0 ** min(math.ceil(math.log2(reach)), MAX_EXPONENT)


# ---- the step


def entry(P: int) -> str:
    """Return the name of the step's kernel for layers of P columns."""
    return f"fused_fp16_step_{P}"


def launch(P: int, tiles: int) -> Launch:
    """Return the launch of the step: a cluster of P / 64 blocks for each tile.

    >>> launch(512, 15).grid, launch(512, 15).block
    ((8, 15, 1), (480, 1, 1))
    """
    return Launch((P // PANEL, tiles, 1), (THREADS, 1, 1), SHARED_BYTES)


def most_tiles(at_once: int, P: int) -> int:
    """Return how many tiles a batch may have where so many clusters run at once.

    Each block of each tile publishes its largest gradient; a compute thread reads one of these words.

    >>> most_tiles(15, 512), most_tiles(60, 512), most_tiles(100, 256)
    (15, 48, 72)
    """
    return min(at_once, MAX_TILES, WORKERS // (P // PANEL))


def exchange_bytes(n_layers: int, tiles: int, P: int) -> int:
    """Return the bytes through which blocks exchange sums; zeros at first, then left to the kernel.

    >>> exchange_bytes(3, 15, 512)
    1846208
    """
    blocks = tiles * (P // PANEL)
    of_layer = 2 * tiles * P * PAIR_BYTES + blocks * (WORKERS * NORM_BYTES + WORD_BYTES)
    return TAG_BYTES + n_layers * of_layer


# ---- the other kernels


class GradientTile(NamedTuple):
    """A block's tile of dW: the product, the first panels of U and dY."""

    product: int
    first_u: int
    first_dy: int


class WeightGradientGeometry(NamedTuple):
    """The launch of `fused_fp16_weight_gradient`, whose partial sums are (splits, F, P)."""

    launch: Launch
    splits: int
    places: tuple[GradientTile, ...]


@lru_cache(maxsize=4096)
def weight_gradient(
    shapes: Sequence[tuple[int, int]], head: tuple[int, int], multiprocessors: int
) -> WeightGradientGeometry:
    """Return the launch for layers of these K and P and a head of F and P: at best one block a multiprocessor.

    >>> weight_gradient(((128, 512), (512, 512), (512, 512)), (512, 100), 132).launch
    Launch(grid=(129, 1, 1), block=(288, 1, 1), shared=221184)
    """
    places = tuple(
        GradientTile(product, u, dy)
        for product, (K, P) in enumerate(shapes)
        for u in range(0, K // PANEL, DW_PANELS)
        for dy in range(0, P // PANEL, DW_PANELS)
    )
    splits = min(max((multiprocessors - 1) // len(places), 1), MAX_SPLITS)
    small = ceil_div(head[0] + 1, HEAD_TILE) * ceil_div(head[1], HEAD_TILE) + len(shapes)
    blocks = len(places) * splits
    others = max(min(small, multiprocessors - blocks), 1)
    return WeightGradientGeometry(Launch((blocks + others, 1, 1), (DW_THREADS, 1, 1), DW_SHARED), splits, places)


def weights(P: int, K: int) -> Launch:
    """Return the launch of `fused_fp16_weights`."""
    return Launch((P // CHUNK_COLUMNS, K // CHUNK_COLUMNS, 1), (UPDATE_THREADS, 1, 1))


def stage(graphs: int, tiles: int, multiprocessors: int) -> Launch:
    """Return the launch of `fused_fp16_stage`: a graph or tile per block, up to four blocks a multiprocessor."""
    return Launch((max(1, min(graphs + tiles, 4 * multiprocessors)), 1, 1), (UPDATE_THREADS, 1, 1))
