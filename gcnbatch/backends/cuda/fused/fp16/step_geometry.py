"""Geometry of `fused_pass` (fused/fp16/step.cu), and the two tables that it reads.

Dimensions: `tiles`, the most tiles of rows that a batch may have; P columns of every layer, K those of a layer's U.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

TILE_ROWS, SLICE, THREADS, WORKERS = 144, 64, 480, 384  # of fused/fp16/tiles.cuh, fused/fp16/step.cuh
WIDTHS = (128, 256, 384, 512)
MAX_LAYERS, MAX_TILES, MAX_OUTPUTS = 8, 72, 160
SHARED_BYTES = 232_032  # PassShared
PAIR_BYTES, WORD_BYTES, NORM_BYTES, TAG_BYTES = 16, 8, 8, 128


def entry(P: int) -> str:
    """Return the name of the kernel for layers of P columns."""
    return f"fused_pass_{P}"


def launch(P: int, tiles: int) -> Launch:
    """Return the launch: a cluster of P / 64 blocks for each tile.

    >>> launch(512, 15)
    Launch(grid=(8, 15, 1), block=(480, 1, 1), shared=232032)
    """
    return Launch((P // SLICE, tiles, 1), (THREADS, 1, 1), SHARED_BYTES)


def most_tiles(at_once: int, P: int) -> int:
    """Return how many tiles a batch may have where so many clusters run at once.

    A worker reads one word of those that tell the largest gradient, of which each block of each tile has one.

    >>> most_tiles(15, 512), most_tiles(60, 512), most_tiles(100, 256)
    (15, 48, 72)
    """
    return min(at_once, MAX_TILES, WORKERS // (P // SLICE))


def exchange_bytes(n_layers: int, tiles: int, P: int) -> int:
    """Return the bytes of what blocks tell each other; 0 at first, and left to the kernel.

    >>> exchange_bytes(3, 15, 512)
    1846208
    """
    blocks = tiles * (P // SLICE)
    of_layer = 2 * tiles * P * PAIR_BYTES + blocks * (WORKERS * NORM_BYTES + WORD_BYTES)
    return TAG_BYTES + n_layers * of_layer


@dataclass(frozen=True)
class PassLayer:
    """A layer as fused/fp16/step.cuh has it; of the first one `w_backward` and `v` are None."""

    u: DeviceArray
    w_forward: DeviceArray
    w_backward: DeviceArray | None
    bias: DeviceArray
    gamma: DeviceArray
    beta: DeviceArray
    running_mean: DeviceArray
    running_var: DeviceArray
    y: DeviceArray
    dy: DeviceArray
    v: DeviceArray | None
    scale: DeviceArray
    dbias: DeviceArray
    dgamma: DeviceArray
    dbeta: DeviceArray
    K: int
    u_scale: float
    epsilon: float
    momentum: float

    def table(self) -> NDArray[np.int64]:
        """Return the struct, 8 bytes an entry."""
        return _table(self, "u_scale", (self.u_scale, self.epsilon, self.momentum, 0.0))


@dataclass(frozen=True)
class Pass:
    """Batch, readout and exchange, as fused/fp16/step.cuh has them; the transpose is None for a symmetric A."""

    size: DeviceArray
    shape: DeviceArray
    tile_ptr: DeviceArray
    tile_rows: DeviceArray
    node_ptr: DeviceArray
    n_nodes: DeviceArray
    rowsum: DeviceArray
    indptr: DeviceArray
    indices: DeviceArray
    values: DeviceArray
    t_indptr: DeviceArray | None
    t_indices: DeviceArray | None
    t_values: DeviceArray | None
    targets: DeviceArray
    progress: DeviceArray
    rates: DeviceArray
    loss_weight: DeviceArray
    head_weight: DeviceArray
    head_bias: DeviceArray
    input: DeviceArray
    gradient: DeviceArray
    losses: DeviceArray
    exchange: DeviceArray
    n_layers: int
    n_outputs: int
    readout: int
    loss: int
    tiles: int
    reach: float

    def table(self) -> NDArray[np.int64]:
        """Return the struct, 8 bytes an entry."""
        return _table(self, "reach", (self.reach, 0.0))


def _table(of: Any, first_float: str, floats: tuple[float, ...]) -> NDArray[np.int64]:
    """Return pointers and whole numbers up to the field `first_float`, then the floats, two to an entry."""
    names = [field.name for field in fields(of)]
    values = [getattr(of, name) for name in names[: names.index(first_float)]]
    numbers = [value.ptr if isinstance(value, DeviceArray) else value or 0 for value in values]
    return np.concatenate([np.array(numbers, np.int64), np.array(floats, np.float32).view(np.int64)])
