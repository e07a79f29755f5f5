"""Geometry of the fused kernels: pure arithmetic, tested without a GPU.

Dimensions as in ``cuda_src/fused/shared/fused.cuh``: a layer takes F columns in C channels to P columns; K is
C F + C, rounded up to 8.
"""

from __future__ import annotations

from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div, next_power_of_two

THREADS, TILE, GROUP, SLICES, USUAL = 512, 16, 64, 8, 64  # as in fused/shared/tile.cuh
CHUNK = 96  # rows of weights that a block of fused_forward has in registers
USUAL_OUTPUTS = 16  # as in fused/narrow/specialised_readout.cuh
PARTIAL_FLOATS = SLICES * TILE * (GROUP + 4)
FOLD_FLOATS = 2 * TILE * (GROUP + 4)
WEIGHTS_IN_SHARED = 16 * 1024  # floats of dense layers on graphs that a block copies to its shared memory
FLOAT_BYTES = 4
UPDATE_THREADS = 256
MANY_PARTS = 16  # from so many parts on, several threads share an element of a gradient
UPDATE_LANES = 8


def shared_limit(capability: tuple[int, int]) -> int:
    """Return the bytes of shared memory that a block may have; CUDA programming guide, technical specifications.

    >>> shared_limit((9, 0)) // 1024, shared_limit((8, 9)) // 1024
    (227, 99)
    """
    large = {(7, 0): 96, (7, 2): 96, (7, 5): 64, (8, 0): 163, (8, 7): 163, (9, 0): 227}
    return 1024 * large.get(capability, 227 if capability[0] in (10, 11) else 99)


def columns_of_u(n_in: int, channels: int) -> int:
    """Return K: the columns of U, of which ``channels`` are row sums and some round up.

    >>> columns_of_u(75, 1), columns_of_u(64, 5)
    (80, 328)
    """
    return ceil_div(channels * (n_in + 1), 8) * 8


def columns_of(n_out: int) -> int:
    """Return the columns of packed weights: P, rounded up to 4."""
    return ceil_div(n_out, 4) * 4


def blocks(rows: int, multiprocessors: int) -> int:
    """Return how many blocks share the tiles of so many rows: one each, as far as a block a multiprocessor goes."""
    return max(1, min(ceil_div(rows, TILE), multiprocessors))


def forward(blocks: int, n_in: int, n_out: int, k: int) -> Launch:
    """Return the launch of `fused_forward`."""
    floats = TILE * (k + 4) + PARTIAL_FLOATS + 2 * columns_of(n_out) + 4 * columns_of(n_in)
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def backward(dx_blocks: int, dw_blocks: int, n_in: int, channels: int, n_out: int, k: int) -> Launch:
    """Return the launch of `fused_backward`; without a layer before (`dx_blocks` 0) `n_in` is 0."""
    fixed = PARTIAL_FLOATS + 6 * columns_of(n_out) + 6 * columns_of(n_in)
    dx = TILE * (channels * columns_of(n_out) + 4) if dx_blocks else 0
    dw = TILE * (k + 4 + columns_of(n_out) + 4)
    return Launch((dx_blocks + dw_blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * (fixed + max(dx, dw)))


def readout(blocks: int, n_out: int, heads: int, n_outputs: int, head_floats: int, weight_floats: int) -> Launch:
    """Return the launch of `fused_readout`.

    Parameters
    ----------
    heads : int
        Dense layers on graphs.
    n_outputs : int
        Logits of a graph.
    head_floats : int
        Length of R and of the outputs of all dense layers on graphs.
    weight_floats : int
        Of these layers' weights and biases; 0: they stay in global memory.
    """
    floats = FOLD_FLOATS + 16 * heads + 6 * columns_of(n_out) + n_out + 2 * head_floats + 2 * n_outputs + weight_floats
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def usual_readout(blocks: int) -> Launch:
    """Return the launch of `fused_readout_usual`."""
    return Launch((blocks, 1, 1), (THREADS, 1, 1))


def logits(graphs: int, n_out: int, head_floats: int, multiprocessors: int) -> Launch:
    """Return the launch of `fused_logits`: eight graphs a block, at most eight blocks a multiprocessor."""
    shared = FLOAT_BYTES * (columns_of(n_out) + 8 * head_floats)
    return Launch((max(1, min(ceil_div(graphs, 8), 8 * multiprocessors)), 1, 1), (256, 1, 1), shared)


def lanes(parts: int) -> int:
    """Return how many threads share an element of a gradient that has `parts` parts."""
    return UPDATE_LANES if parts >= MANY_PARTS else min(next_power_of_two(parts), UPDATE_LANES)


def update(chunks: int, stage_blocks: int) -> Launch:
    """Return the launch of `fused_update`."""
    return Launch((chunks + stage_blocks, 1, 1), (UPDATE_THREADS, 1, 1), FLOAT_BYTES * UPDATE_THREADS)


def stage(graphs: int, multiprocessors: int) -> Launch:
    """Return the launch of `fused_stage`: a graph per block, as far as four blocks a multiprocessor go."""
    return Launch((max(1, min(graphs, 4 * multiprocessors)), 1, 1), (UPDATE_THREADS, 1, 1))
