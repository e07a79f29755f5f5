"""Launch geometry of the kernels that several forms share: pure arithmetic, tested without a GPU.

Dimensions as in ``cuda_src/fused/shared/fused.cuh``: a layer takes F columns in C channels to P columns; K is
C F + C, rounded up to 8.
"""

from __future__ import annotations

from gcnbatch.backends.cuda.runtime.launch import FLOAT_BYTES, Launch, ceil_div
from gcnbatch.backends.cuda.runtime.sources import declared

_COLUMNS = declared("fused/shared/columns.cuh")
THREADS, TILE, GROUP = (_COLUMNS.constant(name) for name in ("THREADS", "TILE", "GROUP"))
REDUCTION_FLOATS = _COLUMNS.constant("REDUCTION_FLOATS")
UPDATE_THREADS = declared("fused/shared/optimizer.cuh").constant("UPDATE_THREADS")
WEIGHTS_IN_SHARED = 16 * 1024  # up to so many weights of dense layers on graphs, a block copies them to shared memory
_LOGITS = declared("fused/shared/logits.cu")
LOGITS_THREADS, LOGITS_GRAPHS = (_LOGITS.constant(name) for name in ("LOGITS_THREADS", "LOGITS_GRAPHS"))
JOIN_FEATURES, JOIN_GRAPHS, JOIN_FLOATS = (
    declared("fused/shared/join.cuh").constant(name) for name in ("JOIN_FEATURES", "JOIN_GRAPHS", "JOIN_FLOATS")
)
MANY_FEATURES = 128  # of whole graphs, from which a launch of their own multiplies them
PROPAGATE_THREADS = declared("fused/shared/propagate.cu").constant("PROPAGATE_THREADS")
MOST_WAVES = 16  # of blocks of a launch that only copies
_READOUT = declared("fused/shared/readout.cuh")
READOUT_BLOCKS, HELD_PADDING = (_READOUT.constant(name) for name in ("READOUT_BLOCKS", "HELD_PADDING"))
RESERVED = 1024  # bytes of shared memory that CUDA takes of each block
HEAD_FLOATS = _READOUT.layout("Head").size // FLOAT_BYTES


def shared_limit(capability: tuple[int, int]) -> int:
    """Return the maximum bytes of shared memory of a block (CUDA programming guide, technical specifications).

    >>> shared_limit((9, 0)) // 1024, shared_limit((8, 9)) // 1024
    (227, 99)
    """
    large = {(7, 0): 96, (7, 2): 96, (7, 5): 64, (8, 0): 163, (8, 7): 163, (9, 0): 227}
    return 1024 * large.get(capability, 227 if capability[0] in (10, 11) else 99)


def columns_of_u(n_in: int, channels: int) -> int:
    """Return K, the columns of U: C F sums over neighbours and C row sums, rounded up to 8.

    >>> columns_of_u(75, 1), columns_of_u(64, 5)
    (80, 328)
    """
    return ceil_div(channels * (n_in + 1), 8) * 8


def columns_of(n_out: int) -> int:
    """Return the columns of packed weights: P, rounded up to 4."""
    return ceil_div(n_out, 4) * 4


def propagate(graphs: int, multiprocessors: int) -> Launch:
    """Return the launch of `fused_propagate_…`: a block per graph, up to `MOST_WAVES` waves."""
    return Launch((min(graphs, 8 * MOST_WAVES * multiprocessors), 1, 1), (PROPAGATE_THREADS, 1, 1))


def rows_at(n_out: int, heads: int, n_outputs: int, head_floats: int, weight_floats: int) -> int:
    """Return where a block of `fused_readout` holds rows of Y in its shared memory, in floats.

    Parameters
    ----------
    heads : int
        Dense layers on graphs.
    n_outputs : int
        Logits per graph.
    head_floats : int
        Length of R and of the outputs of all dense layers on graphs together, and of features that no launch joined.
    weight_floats : int
        Weights and biases of these layers; 0: they stay in global memory.
    """
    floats = REDUCTION_FLOATS + HEAD_FLOATS * heads + 6 * columns_of(n_out) + n_out
    return columns_of(floats + 2 * head_floats + 2 * n_outputs + weight_floats)


def held_rows(largest: int, n_out: int, first: int, limit: int) -> int:
    """Return how many rows of Y a block of `fused_readout` holds, so that READOUT_BLOCKS share a multiprocessor.

    Parameters
    ----------
    largest : int
        Rows of the largest graph.
    first : int
        Result of `rows_at`.
    limit : int
        Bytes of a block's shared memory; a multiprocessor has RESERVED more.

    >>> [held_rows(largest, 64, 11_480, 227 * 1024) for largest in (35, 224, 400)], held_rows(35, 64, 11_480, 64 * 1024)
    ([35, 224, 249], 0)
    """
    room = ((limit + RESERVED) // READOUT_BLOCKS - RESERVED) // FLOAT_BYTES - first - 1
    return max(0, min(largest, room // (columns_of(n_out) + HELD_PADDING + ceil_div(n_out, 32))))


def readout(blocks: int, n_out: int, first: int, rows: int = 0) -> Launch:
    """Return the launch of `fused_readout`; its blocks hold `rows` rows of Y from float `first` on (`rows_at`)."""
    bits = ceil_div(rows * n_out, 32) + 1  # they may begin within a word
    floats = first + rows * (columns_of(n_out) + HELD_PADDING) + bits
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * floats)


def join(graphs: int, splits: int) -> Launch:
    """Return the launch of `fused_join`.

    >>> join(33, join_splits(2265)).grid
    (36, 2, 1)
    """
    return Launch((splits, max(1, ceil_div(graphs, JOIN_GRAPHS)), 1), (THREADS, 1, 1))


def join_splits(n_features: int) -> int:
    """Return in how many ranges a training step multiplies the features of graphs."""
    return ceil_div(n_features, JOIN_FEATURES)


def blocks(parts: int, members: int, slots: int) -> int:
    """Return the blocks of a member that share `parts` equal parts of its work, of which `slots` run at once.

    Each takes as many parts as all members need to run in one wave, and all take nearly the same number.

    >>> [blocks(60, members, 132) for members in (1, 2, 4, 16, 64, 500)]
    [60, 60, 30, 8, 2, 1]
    """
    at_once = max(1, slots // members)
    return ceil_div(parts, ceil_div(parts, at_once))


def logits(graphs: int, n_out: int, head_floats: int, multiprocessors: int, members: int = 1) -> Launch:
    """Return the launch of `fused_logits`: a warp per graph, at most 8 blocks per multiprocessor."""
    shared = FLOAT_BYTES * (columns_of(n_out) + LOGITS_GRAPHS * head_floats)
    wanted = max(1, ceil_div(graphs, LOGITS_GRAPHS))
    return Launch((blocks(wanted, members, 8 * multiprocessors), 1, 1), (LOGITS_THREADS, 1, 1), shared)


def update(blocks: int) -> Launch:
    """Return the launch of a form's update: blocks that stage, and blocks that update."""
    return Launch((blocks, 1, 1), (UPDATE_THREADS, 1, 1), 4 * FLOAT_BYTES * UPDATE_THREADS)


def stagers(graphs: int, is_alone: bool) -> int:
    """Return how many blocks share the staging of a member's graphs: a graph has a block, in a cohort a warp.

    >>> stagers(50, is_alone=True), stagers(50, is_alone=False)
    (50, 7)
    """
    return graphs if is_alone else ceil_div(graphs, UPDATE_THREADS // 32)


def stage(stagers: int, multiprocessors: int, members: int = 1) -> Launch:
    """Return the launch of `fused_stage`: at most 4 blocks per multiprocessor."""
    wanted = max(1, min(stagers, 4 * multiprocessors))
    return Launch((blocks(wanted, members, MOST_WAVES * 4 * multiprocessors), 1, 1), (UPDATE_THREADS, 1, 1))
