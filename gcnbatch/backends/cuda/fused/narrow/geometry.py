"""Launch geometry of the narrow kernels (``cuda_src/fused/narrow``): pure arithmetic, tested without a GPU."""

from __future__ import annotations

from gcnbatch.backends.cuda.fused.shared.geometry import FLOAT_BYTES, THREADS, TILE, columns_of
from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div, next_power_of_two
from gcnbatch.backends.cuda.runtime.sources import declared

PARTIAL_FLOATS = declared("fused/narrow/tile.cuh").constant("PARTIAL_FLOATS")
FORWARD_CHUNK = declared("fused/narrow/forward.cuh").constant("FORWARD_CHUNK")
MOST_OUTPUTS = declared("fused/narrow/readout.cuh").constant("MOST_OUTPUTS")
MAX_LANES = declared("fused/narrow/update.cuh").constant("MAX_LANES")
SPECIALISED_COLUMNS = 64  # columns of the layers with specialised kernels
MANY_PARTS = 16  # from so many partial sums on, MAX_LANES threads add those of one element


def blocks(rows: int, multiprocessors: int) -> int:
    """Return the number of blocks for the tiles of `rows` rows: one per tile, at most one per multiprocessor."""
    return max(1, min(ceil_div(rows, TILE), multiprocessors))


def forward(blocks: int, n_in: int, n_out: int, k: int) -> Launch:
    """Return the launch of `fused_narrow_forward`."""
    floats = TILE * (k + 4) + PARTIAL_FLOATS + 2 * columns_of(n_out) + 4 * columns_of(n_in)
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def backward(dx_blocks: int, dw_blocks: int, n_in: int, channels: int, n_out: int, k: int) -> Launch:
    """Return the launch of `fused_narrow_backward`; the first layer has `dx_blocks` 0 and `n_in` 0."""
    fixed = PARTIAL_FLOATS + 6 * columns_of(n_out) + 6 * columns_of(n_in)
    dx = TILE * (channels * columns_of(n_out) + 4) if dx_blocks else 0
    dw = TILE * (k + 4 + columns_of(n_out) + 4)
    return Launch((dx_blocks + dw_blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * (fixed + max(dx, dw)))


def specialised_readout(blocks: int) -> Launch:
    """Return the launch of `fused_narrow_readout_64x1`; its shared memory is static."""
    return Launch((blocks, 1, 1), (THREADS, 1, 1))


def lanes(parts: int) -> int:
    """Return how many threads add the `parts` partial sums of one element of a gradient."""
    return MAX_LANES if parts >= MANY_PARTS else min(next_power_of_two(parts), MAX_LANES)
