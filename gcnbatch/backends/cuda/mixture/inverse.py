"""The inverse of a positive definite matrix on a device: launches of mixture/inverse.cu."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.ops.common import DOUBLE_BYTES
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.errors import MachineError

_SOURCE = declared("mixture/inverse.cu")
TILE: int = _SOURCE.constant("TILE")
_THREADS: int = _SOURCE.constant("THREADS")
BLOCK = (_THREADS, 1, 1)
SHARE = 0.25  # of the device's memory, beside another process that trains networks
Float64 = NDArray[np.float64]


def steps(tiles: int) -> Iterator[tuple[str, int, Launch]]:
    """Yield the launches that factor and invert a matrix of so many rows of tiles: kernel, step, geometry."""
    for step in range(tiles):
        below = tiles - step - 1
        yield "inverse_diagonal", step, Launch((1, 1, 1), BLOCK)
        yield "inverse_panel", step, Launch((below, 1, 1), BLOCK)
        yield "inverse_trailing", step, Launch((below, below, 1), BLOCK)
    for step in range(tiles):
        yield "inverse_row", step, Launch((step, 1, 1), BLOCK)


def products(tiles: int, columns: int) -> Launch:
    """Return the launch of a product of Z with so many columns.

    >>> products(185, 70).grid
    (185, 2, 1)
    """
    return Launch((tiles, ceil_div(columns, TILE), 1), BLOCK)


def block(rows: int) -> Launch:
    """Return the launch for a block of so many rows; those above the diagonal end at once.

    >>> block(1182).grid
    (19, 19, 1)
    """
    return Launch((ceil_div(rows, TILE), ceil_div(rows, TILE), 1), BLOCK)


class DeviceInverse:
    """`gcnbatch.backends.mixtures.Inverse` on a device.

    Parameters
    ----------
    device : Device
    blocks : iterator of (slice, DeviceArray)
        Consecutive rows (count, n), float32, of the matrix without `diagonal`.
    diagonal : float64, (n,)
        Added to its diagonal.

    Raises
    ------
    numpy.linalg.LinAlgError
        When the matrix is not positive definite.
    MachineError
        When it would take more than SHARE of the device's memory.
    """

    def __init__(self, device: Device, blocks: Iterator[tuple[slice, DeviceArray]], diagonal: Float64) -> None:
        self._device, self._n = device, len(diagonal)
        tiles = ceil_div(self._n, TILE)
        self._stride = stride = TILE * tiles
        needed, available = 2 * DOUBLE_BYTES * stride**2, int(device.memory().total * SHARE)
        if needed > available:
            got = f"{needed / 1e9:.1f} GB for {self._n:,} rows"
            expected = f"at most {available / 1e9:.1f} GB, {SHARE:.0%} of it"
            raise MachineError(f"memory of {device.name}", got, expected, "Take a GPU with more memory, or fewer rows.")
        a = device.empty((stride, stride), np.float64)
        added = device.upload(diagonal)
        for rows, similar in blocks:
            last = rows.stop == self._n
            count = (stride if last else rows.stop) - rows.start
            about = {"first": rows.start, "n": self._n, "stride": stride}
            device.launch("inverse_rows", Launch((count, 1, 1), BLOCK), a=a, rows=similar, diagonal=added, **about)
        self._z = device.zeros((stride, stride), np.float64)
        for kernel, step, launch in steps(tiles):
            device.launch(kernel, launch, a=a, z=self._z, step=step, stride=stride)
        corner = device.download(self._z.view(self._z.size - 1, (1,)))  # every diagonal tile decides it
        if not np.isfinite(corner).all():
            raise np.linalg.LinAlgError("the matrix is not positive definite")

    def sums(self) -> Float64:
        """Return the sum of each row of G, (n,)."""
        return self.products(np.ones((self._n, 1)))[:, 0]

    def products(self, x: Float64) -> Float64:
        """Return G x, (n, C)."""
        device, C = self._device, x.shape[1]
        padded = np.zeros((self._stride, C))
        padded[: self._n] = x
        launch = products(self._stride // TILE, C)
        y = device.upload(padded)
        for kernel in ("inverse_multiply_lower", "inverse_multiply_upper"):
            found = device.empty((self._stride, C), np.float64)
            device.launch(kernel, launch, y=found, z=self._z, x=y, C=C, stride=self._stride)
            y = found
        return device.download(y)[: self._n]

    def block(self, rows: NDArray[np.int64]) -> Float64:
        """Return the rows and columns of G with these numbers, which ascend."""
        device, count = self._device, len(rows)
        y = device.empty((count, count), np.float64)
        about = {"rows": device.upload(rows.astype(np.int32)), "count": count, "stride": self._stride}
        device.launch("inverse_block", block(count), y=y, z=self._z, **about)
        return device.download(y)
