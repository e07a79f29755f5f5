"""Arrays on the device as the operations see them: an address, a shape and a type. Nothing here calls CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Move = Callable[[Any], Any]  # from an array to its copy elsewhere, such as from a NumPy array to a `DeviceArray`


@dataclass(slots=True, eq=False)  # not frozen: a step makes dozens, and a frozen one takes three times as long
class DeviceArray:
    """A row-major array in device memory. Its fields are never changed.

    Parameters
    ----------
    ptr : int
        Address of the first element; 0 for an array without elements.
    shape : tuple of int
    dtype : numpy.dtype
    owner : object
        What gives the memory back when the last array on it is gone; views share their parent's.
    """

    ptr: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def view(self, start: int, shape: int | tuple[int, ...]) -> DeviceArray:
        """Return the array of `shape` that begins `start` elements from this one's start; it shares the memory.

        Raises
        ------
        ValueError
            When it would reach beyond this array.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        if start < 0 or start + math.prod(shape) > math.prod(self.shape):
            raise ValueError(f"view of {shape} at {start} reaches beyond an array of {self.shape}")
        return DeviceArray(self.ptr + start * self.dtype.itemsize, shape, self.dtype, self.owner)

    def reshape(self, *shape: int) -> DeviceArray:
        """Return the same elements under another shape, of which one entry may be -1; it shares the memory.

        Raises
        ------
        ValueError
            When the number of elements differs.
        """
        if -1 in shape:
            known = -math.prod(shape)
            shape = tuple(self.size // max(known, 1) if entry == -1 else entry for entry in shape)
        if math.prod(shape) != self.size:
            raise ValueError(f"an array of {self.shape} cannot take the shape {shape}")
        return DeviceArray(self.ptr, shape, self.dtype, self.owner)

    def astype_view(self, dtype: Any) -> DeviceArray:
        """Return the same bytes read as `dtype`, flat: how a workspace of bytes becomes counters and partial sums.

        Raises
        ------
        ValueError
            When the bytes do not divide into elements of `dtype`.
        """
        wanted = np.dtype(dtype)
        if self.nbytes % wanted.itemsize:
            raise ValueError(f"{self.nbytes} bytes do not divide into elements of {wanted}")
        return DeviceArray(self.ptr, (self.nbytes // wanted.itemsize,), wanted, self.owner)
