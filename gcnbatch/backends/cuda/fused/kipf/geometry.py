"""Geometry of the kernels of `cuda_src/fused/kipf/step.cu`: pure arithmetic, tested without a GPU.

Dimensions as there: P columns of the hidden layer, K logits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div, next_power_of_two

THREADS, PARTS = 256, 4
WARPS = THREADS // 32
SHORT_ROWS = 8  # per thread: what a part of a block sums up in two rounds
SHORT_PATH = 8
MAX_LANES = 32
MAX_OUTPUTS = 4 * MAX_LANES
FLOAT_BYTES = 4


class Order(NamedTuple):
    """Tasks with the longest first, int32, of which the first `n_long` have a block each, the others a part of one."""

    tasks: NDArray[np.int32]
    n_long: int

    @property
    def blocks(self) -> int:
        """Blocks that it takes."""
        return self.n_long + ceil_div(len(self.tasks) - self.n_long, PARTS)


def longest_first(lengths: NDArray[np.integer[Any]], columns: NDArray[np.integer[Any]] | int) -> Order:
    """Return the order of tasks that sum up so many rows each, of so many columns.

    A task is long when it has more rows than suit the threads of a part, or more columns than they are.
    """
    widths, which = np.unique(np.broadcast_to(columns, lengths.shape), return_inverse=True)
    bits = np.array([lane_bits(int(width)) for width in widths], dtype=np.int64)[which]
    short = (THREADS // PARTS >> bits) * SHORT_ROWS
    is_long = (lengths > short) | (4 << bits > THREADS // PARTS)
    order = np.lexsort((-lengths, ~is_long)).astype(np.int32)
    return Order(order, int(is_long.sum()))


def padded(columns: int) -> int:
    """Return the floats of a padded row.

    >>> padded(7), padded(16)
    (8, 16)
    """
    return ceil_div(columns, 4) * 4


def lane_bits(columns: int) -> int:
    """Return b where 2^b threads of four columns each share a row, 32 of them at most.

    >>> lane_bits(7), lane_bits(16), lane_bits(1000)
    (1, 2, 5)
    """
    return min(next_power_of_two(ceil_div(columns, 4)), MAX_LANES).bit_length() - 1


def forward(row_blocks: int, drawn: int, hidden: int, n_out: int) -> Launch:
    """Return the launch of `kipf_forward`, of which some blocks draw `drawn` bytes of bits."""
    blocks = max(1, row_blocks + ceil_div(drawn, THREADS))  # the first one counts the step
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * (hidden * padded(n_out) + PARTS * hidden))


def logits(rows: int) -> Launch:
    """Return the launch of `kipf_logits`."""
    return Launch((ceil_div(rows, WARPS), 1, 1), (THREADS, 1, 1))


def loss(labels: int, long_entries: int, entries: int) -> Launch:
    """Return the launch of `kipf_loss`, of which some blocks sum up `entries` entries of U."""
    blocks = ceil_div(labels, WARPS) + ceil_div(long_entries, WARPS) + ceil_div(entries, THREADS)
    return Launch((blocks, 1, 1), (THREADS, 1, 1))


def backward(rows: int, hidden: int, n_out: int) -> Launch:
    """Return the launch of `kipf_backward`."""
    shared = FLOAT_BYTES * (hidden * n_out + WARPS * padded(n_out))
    return Launch((ceil_div(rows, WARPS), 1, 1), (THREADS, 1, 1), shared)


def update(task_blocks: int, hidden: int) -> Launch:
    """Return the launch of `kipf_update`; one more block adds the losses up."""
    return Launch((task_blocks + 1, ceil_div(hidden, 4 << lane_bits(hidden)), 1), (THREADS, 1, 1))
