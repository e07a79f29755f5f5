"""Adjacency products of one large graph: rows in pieces of equal work, columns in slices that stay in L2.

`large_product` computes the launches of a product without a GPU. `multiply` runs them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.ops.relu_dropout import Kept, drawing
from gcnbatch.backends.cuda.runtime.launch import (
    BLOCK_THREADS,
    WARP_BITS,
    Launch,
    ceil_div,
    elementwise,
    log2,
    next_power_of_two,
)
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.cuda.spmm.kernels import SpmmOperands
from gcnbatch.backends.cuda.spmm.pieces import STEP, Large, Pieces, Scales

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.batches.batch import DeviceCsr
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray
    from gcnbatch.backends.ops import DropoutKey

THREADS: int = declared("spmm/large.cu").constant("LARGE_THREADS")
COMPRESSED_THREADS: int = declared("spmm/compressed.cu").constant("COMPRESSED_THREADS")
CAPACITY: int = declared("spmm/compressed.cu").constant("CAPACITY")  # elements of a row that one copy fetches
CHUNK: int = declared("spmm/compressed.cu").constant("CHUNK")  # bytes of that copy
ROW_BYTES: int = declared("spmm/compressed.cuh").constant("ROW_BYTES")
THREADS_PER_MULTIPROCESSOR, ROUNDS = 2048, 4
MOST_COLUMNS = 128  # of one product; wider operands are multiplied in several products
NARROWEST_SLICE = 16  # columns: 64 bytes of a row


class CompressedRows(NamedTuple):
    """A dense operand (n_rows, width) without its zeros, scaled by the columns of the matrix that multiplies it.

    Parameters
    ----------
    rows : uint8, (n_rows, ROW_BYTES), or packed rows and `CHUNK` bytes after them
    unfit : int32, (1,)
        Number of sampled rows that are too long for a narrow copy.
    shape : (n_rows, width)
    places : int32, (n_rows,), or None
        Of packed rows: the first sector of each. `unfit` may be that of other rows; it changes the speed alone.
    """

    rows: DeviceArray
    unfit: DeviceArray
    shape: tuple[int, int]
    places: DeviceArray | None = None


class LargeGeometry(NamedTuple):
    """Geometry of a product: 2^lane_bits threads with 4 columns each, 2^group_bits over the entries of a piece."""

    product: Launch
    slices: Launch
    n_slices: int
    slice_width: int
    lane_bits: int
    group_bits: int


def slice_columns(width: int, n_columns: int, cache_bytes: int) -> tuple[int, int]:
    """Return the number of slices of a product of `width` columns, and the columns per slice, a multiple of 8.

    A slice of the dense operand (`n_columns` rows) should fill at most half of L2, because an H200 has two L2
    partitions, each serving half of the multiprocessors. If even narrow slices do not fit, there is one slice.

    >>> slice_columns(128, 232_965, 60 << 20), slice_columns(41, 232_965, 60 << 20), slice_columns(128, 10**7, 60 << 20)
    ((4, 32), (2, 24), (1, 128))
    """
    fitting = cache_bytes // 2 // (4 * max(n_columns, 1))
    if fitting < min(NARROWEST_SLICE, width):
        return 1, 8 * ceil_div(width, 8)
    most = min(1 << (max(fitting, 8).bit_length() - 1), MOST_COLUMNS)
    n_slices = ceil_div(width, most)
    return n_slices, 8 * ceil_div(ceil_div(width, n_slices), 8)


@lru_cache(maxsize=1024)
def large_product(
    n_pieces: int,
    n_entries: int,
    longest: int,
    n_columns: int,
    width: int,
    cache_bytes: int,
    multiprocessors: int,
) -> LargeGeometry:
    """Return the launches of a product of `width` columns with a matrix of `n_columns` columns, cut into pieces.

    The number of groups that share a piece gives each about `STEP` entries: of a piece of mean length or, if the device
    can run all pieces at once, of the longest piece.

    >>> large_product(300_000, 112_700_000, 512, 232_965, 16, 60 << 20, 132)[2:]
    (1, 16, 2, 3)
    """
    n_slices, slice_width = slice_columns(width, n_columns, cache_bytes)
    lane_bits = log2(next_power_of_two(slice_width // 4))
    all_at_once = n_pieces << WARP_BITS <= ROUNDS * THREADS_PER_MULTIPROCESSOR * multiprocessors
    shared = longest if all_at_once else n_entries // n_pieces + 1
    group_bits = min(WARP_BITS - lane_bits, log2(next_power_of_two(ceil_div(shared, STEP))))
    product = Launch((ceil_div(n_pieces, THREADS >> (lane_bits + group_bits)), n_slices, 1), (THREADS, 1, 1))
    slices = Launch((ceil_div(n_columns * slice_width // 4, BLOCK_THREADS), n_slices, 1), (BLOCK_THREADS, 1, 1))
    return LargeGeometry(product, slices, n_slices, slice_width, lane_bits, group_bits)


@lru_cache(maxsize=1024)
def reduction_geometry(n_split: int, width: int) -> tuple[Launch, int]:
    """Return the launch that reduces the partial sums of `n_split` rows, and its lane_bits.

    >>> reduction_geometry(30_000, 16)
    (Launch(grid=(7500, 1, 1), block=(128, 1, 1), shared=0), 2)
    """
    lane_bits = min(log2(next_power_of_two(ceil_div(width, 4))), WARP_BITS)
    grid = (ceil_div(n_split, THREADS // 32), ceil_div(width, 4 << lane_bits), 1)
    return Launch(grid, (THREADS, 1, 1)), lane_bits


def is_compressed(width: int, zeros: float, scales: Scales | None) -> bool:
    """Return whether a product reads compressed rows: an unweighted matrix, wide rows, and few elements in them.

    `zeros` is the expected share of zeros in the dense operand. A row must be half again as long as a chunk, and its
    expected elements fill at most three quarters of it, because elements that do not fit cost much.

    >>> scales = Scales(None, None)
    >>> is_compressed(128, 0.75, scales), is_compressed(128, 0.5, scales), is_compressed(128, 0.75, None)
    (True, False, False)
    """
    return scales is not None and 2 * 4 * width >= 3 * CHUNK and 4 * (1 - zeros) * width <= 3 * CAPACITY


def reads_activations(large: Large, width: int, zeros: float, first: int) -> bool:
    """Return whether a matrix reads the compressed output of ReLU and dropout, whose first element has this number."""
    return width <= MOST_COLUMNS and width % 8 == first % 8 == 0 and is_compressed(width, zeros, large.scales)


def much_read(uses: NDArray[Any], cache_bytes: int) -> NDArray[np.uint8] | None:
    """Return which rows of a dense operand L2 should keep, by the entries that read each; None if slices fit L2.

    A row has 128 floats. Those that most entries read fill L2.

    >>> much_read(np.array([3, 1, 2] * 40), 1024).nonzero()[0].size, much_read(np.array([3, 1, 2]), 1024)
    (2, None)
    """
    kept = cache_bytes // (4 * MOST_COLUMNS)
    n_slices, _ = slice_columns(MOST_COLUMNS, len(uses), cache_bytes)
    if n_slices > 1 or kept >= len(uses):
        return None
    found = np.zeros(len(uses), dtype=np.uint8)
    found[np.argpartition(uses, len(uses) - kept)[len(uses) - kept :]] = 1
    return found


def mark(device: Device, matrix: DeviceCsr, uses: NDArray[Any]) -> DeviceCsr:
    """Return the matrix with marked indices, in place on the device; unchanged where that is of no use.

    Parameters
    ----------
    matrix : DeviceCsr
        On the device.
    uses : (n_cols,) integers
        Number of entries of each column, on the host.
    """
    large = matrix.large
    found = None if large is None or large.scales is None else much_read(uses, device.l2_bytes)
    if large is None or found is None:
        return matrix
    n_entries = matrix.indices.size
    device.launch(
        "spmm_mark", elementwise(n_entries), indices=matrix.indices, much_read=device.upload(found), n_entries=n_entries
    )
    return replace(matrix, large=large._replace(marked=True))


def multiply(device: Device, operands: SpmmOperands, large: Large, zeros: float = 0.0) -> None:
    """Launch ``out = A dense``, or ``out += A dense``, for a matrix in pieces.

    An unweighted matrix has scales instead of values. `zeros` is the expected share of zeros in the dense operand. It
    changes the speed, and results by rounding.
    """
    for start in range(0, operands.width, MOST_COLUMNS):
        part = operands._replace(
            out_first=operands.out_first + start,
            dense_first=operands.dense_first + start,
            width=min(operands.width - start, MOST_COLUMNS),
        )
        if large.scales is not None and is_compressed(part.width, zeros, large.scales):
            place = part.dense_first, part.dense_stride
            shape = part.matrix.n_cols, part.width
            compressed = compress(device, part.dense, large.scales.columns, shape, *place)
            multiply_compressed(device, part, compressed, large)
        else:
            _multiply(device, part, *large)


def _multiply(device: Device, operands: SpmmOperands, pieces: Pieces, scales: Scales | None, marked: bool) -> None:
    matrix, width = operands.matrix, operands.width
    sizes = (pieces.target.size, operands.n_entries, pieces.longest, matrix.n_cols, width)
    shape = large_product(*sizes, device.l2_bytes, device.multiprocessors)
    dense, dense_first, stride = operands.dense, operands.dense_first, operands.dense_stride
    slice_step = shape.slice_width
    has_scales = scales is not None and scales.columns is not None
    if has_scales or 4 * ceil_div(width, 4) > stride or stride % 4 or dense_first % 4 or dense.ptr % 16:
        sliced = device.empty((shape.n_slices * matrix.n_cols, shape.slice_width))
        device.launch(
            "spmm_large_slices",
            shape.slices,
            slices=sliced,
            x=dense,
            scale=scales and scales.columns,
            x_first=dense_first,
            x_stride=stride,
            n_rows=matrix.n_cols,
            width=width,
            slice_width=shape.slice_width,
        )
        dense, dense_first, stride = sliced, 0, shape.slice_width
        slice_step = matrix.n_cols * shape.slice_width
    results = _results(device, operands, pieces, scales, shape.n_slices * shape.slice_width)
    arguments = {
        "results": results,
        "pieces": _pieces(operands, pieces),
        "dense": dense.view(dense_first, (dense.size - dense_first,)) if dense_first else dense,
        "data": matrix.data,
        "slice_step": slice_step,
        "dense_stride": stride,
        "slice_width": shape.slice_width,
        "lane_bits": shape.lane_bits,
        "group_bits": shape.group_bits,
    }
    kernel = "spmm_large_marked" if marked else f"spmm_large_{'un' if scales else ''}weighted"
    device.launch(_entry(kernel, operands), shape.product, **arguments)
    _reduce(device, operands, pieces, results)


def compress_relu_dropout(
    device: Device,
    x: DeviceArray,
    kept: Kept,
    column_scale: DeviceArray | None,
    rate: float,
    key: DropoutKey,
    rows: DeviceArray | None = None,
    into: CompressedRows | None = None,
) -> CompressedRows:
    """Compress dropout of ReLU of X as the operand of a matrix, and write the bits of `kept`.

    The result lies in `rows`, or is `into` with more unfit rows, or is new. X has at most `MOST_COLUMNS` columns, and
    `key.first` is, like their number, a multiple of 8.
    """
    n_rows, width = x.shape
    found = into or _no_rows(device, (n_rows, width), rows)
    device.launch(
        "spmm_compress_relu_dropout",
        Launch((ceil_div(n_rows, 2 * COMPRESSED_THREADS // 32), 1, 1), (COMPRESSED_THREADS, 1, 1)),
        rows=found.rows,
        unfit=found.unfit,
        kept=kept.bits,
        x=x,
        column_scale=column_scale,
        n_rows=n_rows,
        width=width,
        **drawing(rate, key),
    )
    return found


def compress(
    device: Device,
    x: DeviceArray,
    column_scale: DeviceArray | None,
    shape: tuple[int, int],
    first: int = 0,
    stride: int | None = None,
    rows: DeviceArray | None = None,
    into: CompressedRows | None = None,
) -> CompressedRows:
    """Compress X of this shape as the operand of a matrix, in `rows` or `into` as `compress_relu_dropout` does.

    Its rows begin `stride` elements apart, from element `first` on.
    """
    n_rows, width = shape
    found = into or _no_rows(device, shape, rows)
    device.launch(
        "spmm_compress",
        Launch((ceil_div(n_rows, COMPRESSED_THREADS // 32), 1, 1), (COMPRESSED_THREADS, 1, 1)),
        rows=found.rows,
        unfit=found.unfit,
        x=x,
        column_scale=column_scale,
        x_first=first,
        x_stride=width if stride is None else stride,
        n_rows=n_rows,
        width=width,
    )
    return found


def _no_rows(device: Device, shape: tuple[int, int], rows: DeviceArray | None) -> CompressedRows:
    """Return compressed rows that are not written yet."""
    rows = device.empty((shape[0], ROW_BYTES), np.uint8) if rows is None else rows
    return CompressedRows(rows, device.zeros(1, np.int32), shape)


def multiply_compressed(device: Device, operands: SpmmOperands, dense: CompressedRows, large: Large) -> None:
    """Launch ``out = A dense``, or ``out += A dense``, for an unweighted matrix; `operands.dense` is not read."""
    pieces = large.pieces
    results = _results(device, operands, pieces, large.scales, MOST_COLUMNS)
    launch = Launch((ceil_div(pieces.target.size, COMPRESSED_THREADS // 32), 1, 1), (COMPRESSED_THREADS, 1, 1))
    arguments = {
        "results": results,
        "pieces": _pieces(operands, pieces),
        "rows": dense.rows,
        "unfit": dense.unfit,
        "n_operand_rows": dense.shape[0],
        "places": dense.places,
    }
    kernel = "spmm_compressed" if dense.places is None else "spmm_compressed_packed"
    device.launch(_entry(kernel, operands), launch, **arguments)
    _reduce(device, operands, pieces, results)


def _entry(kernel: str, operands: SpmmOperands) -> str:
    """Return the form of a kernel that overwrites the result, or adds to it."""
    return f"{kernel}_add" if operands.accumulate else kernel


def _pieces(operands: SpmmOperands, pieces: Pieces) -> dict[str, Any]:
    """Return the fields of `Pieces` in spmm/pieces.cuh."""
    return {
        "first": pieces.first,
        "target": pieces.target,
        "indices": operands.matrix.indices,
        "count": pieces.target.size,
    }


def _results(
    device: Device, operands: SpmmOperands, pieces: Pieces, scales: Scales | None, partial_stride: int
) -> dict[str, Any]:
    """Return the fields of `Results` in spmm/pieces.cuh, with memory for the partial sums of rows of several pieces."""
    n_split = pieces.split_row.size
    slots = pieces.target.size - (operands.n_rows - n_split) if n_split else 0
    return {
        "out": operands.out,
        "partials": device.empty((slots, partial_stride)),
        "row_scale": scales and scales.rows,
        "out_first": operands.out_first,
        "out_stride": operands.out_stride,
        "partial_stride": partial_stride,
        "width": operands.width,
        "out_aligned": not (operands.out_first % 4 or operands.out_stride % 4 or operands.out.ptr % 16),
    }


def _reduce(device: Device, operands: SpmmOperands, pieces: Pieces, results: dict[str, Any]) -> None:
    """Reduce the partial sums of rows of several pieces."""
    if not (n_split := pieces.split_row.size):
        return
    launch, lane_bits = reduction_geometry(n_split, results["width"])
    reduction = {
        "results": results,
        "split_row": pieces.split_row,
        "split_first": pieces.split_first,
        "n_split": n_split,
        "lane_bits": lane_bits,
    }
    device.launch(_entry("spmm_reduce_pieces", operands), launch, **reduction)
