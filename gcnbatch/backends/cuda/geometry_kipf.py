"""Geometry of the kernels of `cuda_src/fused_kipf.cu`: pure arithmetic, tested without a GPU.

Dimensions as there: P columns of the hidden layer, K logits.
"""

from __future__ import annotations

from gcnbatch.backends.cuda.launch import Launch, ceil_div, next_power_of_two

THREADS = 128
WARPS = THREADS // 32
MAX_LANES = 32
MAX_OUTPUTS = 4 * MAX_LANES
FLOAT_BYTES = 4


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


def forward(rows: int, drawn: int, hidden: int, n_out: int) -> Launch:
    """Return the launch of `kipf_forward`, of which some blocks draw `drawn` bytes of bits."""
    blocks = max(1, rows + ceil_div(drawn, THREADS))  # the first one counts the step
    return Launch((blocks, 1, 1), (THREADS, 1, 1), FLOAT_BYTES * (hidden * n_out + hidden))


def logits(rows: int) -> Launch:
    """Return the launch of `kipf_logits`."""
    return Launch((ceil_div(rows, WARPS), 1, 1), (THREADS, 1, 1))


def loss(labels: int, entries: int) -> Launch:
    """Return the launch of `kipf_loss`, of which some blocks sum up `entries` entries of U."""
    return Launch((ceil_div(labels, WARPS) + ceil_div(entries, THREADS), 1, 1), (THREADS, 1, 1))


def backward(rows: int, hidden: int, n_out: int) -> Launch:
    """Return the launch of `kipf_backward`."""
    shared = FLOAT_BYTES * (hidden * n_out + WARPS * padded(n_out))
    return Launch((ceil_div(rows, WARPS), 1, 1), (THREADS, 1, 1), shared)


def update(n_in: int, hidden: int) -> Launch:
    """Return the launch of `kipf_update`."""
    return Launch((n_in + hidden + 1, ceil_div(hidden, 4 << lane_bits(hidden)), 1), (THREADS, 1, 1))
