"""Arrays on the device: an address, a shape and a type. Nothing here calls CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Move = Callable[[Any], Any]  # returns a copy of an array elsewhere, such as a `DeviceArray` of a NumPy array


@dataclass(slots=True, eq=False)  # not frozen: a step creates dozens, and a frozen one takes three times as long
class DeviceArray:
    """A row-major array in device memory. Its fields never change.

    Parameters
    ----------
    ptr : int
        Address of the first element; 0 for an array without elements.
    shape : tuple of int
    dtype : numpy.dtype
    owner : object
        Frees the memory when the last array that refers to it is gone. Views share the owner.
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
        """Size of the elements in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def view(self, start: int, shape: int | tuple[int, ...]) -> DeviceArray:
        """Return an array of `shape` that shares memory with this one, from element `start` on.

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
        """Return an array of `shape`, in which one entry may be -1, that shares memory with this one.

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
        """Return a flat array of `dtype` over the same bytes, such as counters in a workspace.

        Raises
        ------
        ValueError
            When the bytes do not divide into elements of `dtype`.
        """
        wanted = np.dtype(dtype)
        if self.nbytes % wanted.itemsize:
            raise ValueError(f"{self.nbytes} bytes do not divide into elements of {wanted}")
        return DeviceArray(self.ptr, (self.nbytes // wanted.itemsize,), wanted, self.owner)
