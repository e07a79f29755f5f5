"""The base class of the dense operations: device, workspaces, and launch geometry over rows and columns.

Dimensions in this folder: N rows (nodes), F / P columns of an input / output, B graphs, R x K entries of a loss.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS, Launch, ceil_div, next_power_of_two
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


DOUBLE_BYTES, COUNTER_BYTES = 8, 4
ROWS_PER_THREAD: int = declared("dense/batch_norm.cu").constant("STRIP")  # fewest rows that a thread reduces


class ColumnsGeometry(NamedTuple):
    """Geometry of a reduction over rows: grid x selects a chunk of rows, grid y a group of columns."""

    launch: Launch
    rows_per_chunk: int


@lru_cache(maxsize=4096)
def column_reduction(N: int, P: int, multiprocessors: int) -> ColumnsGeometry:
    """Return the launch of a sum over the rows of an (N, P) matrix, and the rows per chunk; N = 0: one empty chunk.

    >>> column_reduction(950, 64, 132)
    ColumnsGeometry(launch=Launch(grid=(30, 2, 1), block=(32, 8, 1), shared=0), rows_per_chunk=32)
    """
    x, y = columns_by_rows(P)
    columns = ceil_div(P, x)
    chunks = max(min(ceil_div(N, y * ROWS_PER_THREAD), 2 * multiprocessors // max(columns, 1)), 1)
    rows_per_chunk = max(ceil_div(N, chunks), 1)
    return ColumnsGeometry(Launch((max(ceil_div(N, rows_per_chunk), 1), columns, 1), (x, y, 1)), rows_per_chunk)


@lru_cache(maxsize=4096)
def row_tiles(N: int, P: int) -> Launch:
    """Return the launch of an elementwise operation on an (N, P) matrix: 4 columns of a row per thread.

    >>> row_tiles(950, 64)
    Launch(grid=(60, 1, 1), block=(16, 16, 1), shared=0)
    """
    vectors = ceil_div(P, 4)
    x = min(next_power_of_two(vectors), BLOCK_THREADS)
    y = BLOCK_THREADS // x
    return Launch((ceil_div(N, y), ceil_div(vectors, x), 1), (x, y, 1))


def columns_by_rows(P: int) -> tuple[int, int]:
    """Return the block shape (columns, rows): up to 32 columns, and as many rows as threads allow."""
    x = min(next_power_of_two(P), 32)
    return x, BLOCK_THREADS // x


class KernelOps:
    """Base class of operations: a device, and workspaces for reductions over blocks."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._partials = self._counters = DeviceArray(0, (0,), np.dtype(np.uint8))
        self._partials_bytes = self._counters_bytes = 0

    def or_empty(self, out: DeviceArray | None, shape: tuple[int, ...]) -> DeviceArray:
        """Return `out`, or a new array if it is None."""
        return self.device.empty(shape) if out is None else out

    def workspaces(self, partials_bytes: int, counters_bytes: int) -> tuple[DeviceArray, DeviceArray]:
        """Return memory for partial sums, and counters of value 0. Every kernel resets the counters to 0.

        All kernels share both; this is safe because kernels of one stream run one after the other.
        """
        if partials_bytes > self._partials_bytes:
            self._partials = self.device.workspace("partials", partials_bytes)
            self._partials_bytes = self._partials.nbytes
        if counters_bytes > self._counters_bytes:
            self._counters = self.device.workspace("counters", counters_bytes)
            self._counters_bytes = self._counters.nbytes
        return self._partials, self._counters

    def column_sums(self, N: int, P: int, bytes_per_value: int) -> tuple[ColumnsGeometry, DeviceArray, DeviceArray]:
        """Return the geometry, partial sums and counters of a sum over the rows of an (N, P) matrix."""
        plan = column_reduction(N, P, self.device.multiprocessors)
        chunks, columns, _ = plan.launch.grid
        return plan, *self.workspaces(chunks * P * bytes_per_value, columns * COUNTER_BYTES)
