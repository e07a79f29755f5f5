"""Launch geometry of the kernels in `cuda_src/fused/kipf/step.cu`: pure arithmetic, tested without a GPU.

Dimensions as there: P columns of the hidden layer, K logits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.launch import FLOAT_BYTES, Launch, ceil_div, next_power_of_two
from gcnbatch.backends.cuda.runtime.sources import declared

_KERNELS = declared("fused/kipf/phases.cuh")
THREADS, WARPS = _KERNELS.constant("THREADS"), _KERNELS.constant("WARPS")
SHORT_TASKS = _KERNELS.constant("SHORT_TASKS")  # short tasks that share a block
COLUMNS = _KERNELS.constant("COLUMNS")  # columns of a row that a thread sums
MAX_LANES = _KERNELS.constant("MAX_LANES")  # threads that share a row
THREAD_PRODUCTS: int = _KERNELS.constant("THREAD_PRODUCTS")  # most products of an entry of U that a thread sums
PRODUCT = _KERNELS.layout("Product").dtype
MAX_OUTPUTS: int = COLUMNS * MAX_LANES
SHORT_ROWS = 8  # most rows per thread of a short task, which loads them in two rounds


class Order(NamedTuple):
    """Tasks in descending length, int32. Each of the first `n_long` has a block; the others share blocks."""

    tasks: NDArray[np.int32]
    n_long: int

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.n_long + ceil_div(len(self.tasks) - self.n_long, SHORT_TASKS)


def longest_first(lengths: NDArray[np.integer[Any]], columns: NDArray[np.integer[Any]] | int) -> Order:
    """Return the order of tasks that sum `lengths` rows of `columns` columns each.

    A task is long if it has more than SHORT_ROWS rows per thread, or more columns than a quarter of a block has
    threads.
    """
    widths, which = np.unique(np.broadcast_to(columns, lengths.shape), return_inverse=True)
    bits = np.array([lane_bits(int(width)) for width in widths], dtype=np.int64)[which]
    short = (THREADS // SHORT_TASKS >> bits) * SHORT_ROWS
    is_long = (lengths > short) | (COLUMNS << bits > THREADS // SHORT_TASKS)
    order = np.lexsort((-lengths, ~is_long)).astype(np.int32)
    return Order(order, int(is_long.sum()))


def padded(columns: int) -> int:
    """Return the floats of a padded row.

    >>> padded(7), padded(16)
    (8, 16)
    """
    return ceil_div(columns, COLUMNS) * COLUMNS


def lane_bits(columns: int) -> int:
    """Return b where 2^b threads share a row, at most MAX_LANES; a thread has COLUMNS columns.

    >>> lane_bits(7), lane_bits(16), lane_bits(1000)
    (1, 2, 5)
    """
    return min(next_power_of_two(ceil_div(columns, COLUMNS)), MAX_LANES).bit_length() - 1


def forward(row_blocks: int, drawn: int, hidden: int, n_out: int) -> Launch:
    """Return the launch of `kipf_forward`: blocks that compute rows, and blocks that draw `drawn` bytes of bits."""
    blocks = max(1, row_blocks + ceil_div(drawn, THREADS))  # the first block counts the step
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * (hidden * padded(n_out) + SHORT_TASKS * hidden))


def logits(rows: int) -> Launch:
    """Return the launch of `kipf_logits`."""
    return Launch((ceil_div(rows, WARPS), 1, 1), (THREADS, 1, 1))


def loss(labels: int, long_entries: int, entries: int) -> Launch:
    """Return the launch of `kipf_loss`: blocks for the labelled rows, and blocks that sum `entries` entries of U."""
    blocks = ceil_div(labels, WARPS) + ceil_div(long_entries, WARPS) + ceil_div(entries, THREADS)
    return Launch((blocks, 1, 1), (THREADS, 1, 1))


def backward(rows: int, hidden: int, n_out: int) -> Launch:
    """Return the launch of `kipf_backward`."""
    shared = FLOAT_BYTES * (hidden * n_out + WARPS * padded(n_out))
    return Launch((ceil_div(rows, WARPS), 1, 1), (THREADS, 1, 1), shared)


def update(task_blocks: int, hidden: int) -> Launch:
    """Return the launch of `kipf_update`; its last block adds the losses."""
    return Launch((task_blocks + 1, ceil_div(hidden, COLUMNS << lane_bits(hidden)), 1), (THREADS, 1, 1))
