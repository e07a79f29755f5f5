"""Device memory of the members of a cohort: equal regions, in each of which an array has the same place.

Kernels move the first member's pointers by whole regions (`Members` in ``cuda_src/fused/shared/fused.cuh``).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gcnbatch.backends.cuda.runtime.copies import aligned
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

T = TypeVar("T")


class Memory(Protocol):
    """Allocates an array for every member and returns the first member's.

    Attributes
    ----------
    members : int
    stride : int
        Bytes from a member's arrays to those of the next.
    """

    members: int
    stride: int

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> DeviceArray:
        """Return an array; a fresh arena is filled with zeros."""

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> DeviceArray:
        """Return an array of zeros."""

    def upload(self, host: ArrayLike) -> DeviceArray:
        """Copy `host` to a new array of every member."""

    def upload_each(self, rows: NDArray[Any]) -> DeviceArray:
        """Copy row k of `rows` (members, n) to a new array (n,) of member k."""


class Arena:
    """One block of device memory, filled with zeros, with a region for each member.

    Parameters
    ----------
    device : Device
    members : int
    nbytes : int
        Of a region; `ByteCounter` counts them.
    """

    def __init__(self, device: Device, members: int, nbytes: int) -> None:
        self.members, self.stride, self._device = members, nbytes, device
        self._block = device.zeros(members * nbytes, np.uint8)
        self._used = 0

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> DeviceArray:
        array = self.place(self._used, shape, dtype)
        self._used += aligned(array.nbytes)
        assert self._used <= self.stride, "an array of the arena was not measured"
        return array

    def place(self, start: int, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Return an array that begins `start` bytes after the block."""
        shape, kind = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
        if not prod(shape):
            return DeviceArray(0, shape, kind)
        return DeviceArray(self._block.ptr + start, shape, kind, self)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> DeviceArray:
        return self.empty(shape, dtype)

    def upload(self, host: ArrayLike) -> DeviceArray:
        values = np.asarray(host)
        array = self.empty(values.shape, values.dtype)
        self.fill(array, np.broadcast_to(values, (self.members, *values.shape)))
        return array

    def upload_each(self, rows: NDArray[Any]) -> DeviceArray:
        array = self.empty(rows.shape[1:], rows.dtype)
        self.fill(array, rows)
        return array

    def fill(self, array: DeviceArray, rows: NDArray[Any], ahead: bool = False) -> None:
        """Queue the copy of `rows` (members, …) to `array` of each member; `rows` may change after this call.

        `ahead`: as for `Device.send_rows`.
        """
        if array.nbytes:
            self._device.send_rows(rows, array, self.stride, ahead)

    def fetch(self, array: DeviceArray, clears: bool = False) -> NDArray[Any]:
        """Return a host copy of `array` of every member, (members, …); `clears`: set them to 0."""
        return self._device.fetch_rows(array, self.stride, self.members, clears)

    def fetch_of(self, member: int, array: DeviceArray) -> NDArray[Any]:
        """Return a host copy of a member's array; `array` is the first member's."""
        return self._device.fetch(of_member(array, member))


class Region:
    """Allocates arrays in one member's region. Regions agree if all allocate the same arrays in order."""

    def __init__(self, arena: Arena, member: int) -> None:
        self._arena, self._start, self._used = arena, member * arena.stride, 0

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> DeviceArray:
        """Return an array of zeros."""
        array = self._arena.place(self._start + self._used, shape, dtype)
        self._used += aligned(array.nbytes)
        assert self._used <= self._arena.stride, "more arrays than the region was made for"
        return array


class ByteCounter:
    """Counts the bytes that arrays take in a region. Its arrays have addresses, but no memory."""

    stride = 0

    def __init__(self, members: int) -> None:
        self.members, self.nbytes = members, 0

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> DeviceArray:
        shape, kind = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
        array = DeviceArray(1 + self.nbytes, shape, kind, self)
        self.nbytes += aligned(array.nbytes)
        return array

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> DeviceArray:
        return self.empty(shape, dtype)

    def upload(self, host: ArrayLike) -> DeviceArray:
        values = np.asarray(host)
        return self.empty(values.shape, values.dtype)

    def upload_each(self, rows: NDArray[Any]) -> DeviceArray:
        return self.empty(rows.shape[1:], rows.dtype)


def in_arena(device: Device, members: int, make: Callable[[Memory], T]) -> T:
    """Return what `make` builds in an arena. It is called twice: first its arrays are only counted."""
    counter = ByteCounter(members)
    make(counter)
    return make(Arena(device, members, counter.nbytes))


def of_member(value: Any, member: int) -> Any:
    """Return the same array of a member, for an array of an arena's first member; any other value as it is."""
    if isinstance(value, DeviceArray) and isinstance(value.owner, Arena):
        return DeviceArray(value.ptr + member * value.owner.stride, value.shape, value.dtype, value.owner)
    return value


def arena_of(array: DeviceArray) -> Arena:
    """Return the arena of an array."""
    assert isinstance(array.owner, Arena)
    return array.owner
