"""Copies to a device that overlap with its kernels, on a separate stream and from two pinned buffers.

Three rules order copies and kernels, which run on the device's stream:

- A copy waits for all kernels queued before its buffer was allocated (`CopyBuffer`). The pool reuses memory at once,
  although queued kernels may still read it; these kernels were queued before the allocation.
- Kernels queued after `Sent.arrive` wait for the copy. The pinned buffer keeps the copied object until then, or until
  the host has seen the end of the copy, so its device memory is not reused too early.
- The host refills a pinned buffer only after the last copy from it has ended, `SLOTS` copies ago.

Only the last rule makes the host wait. If the host is far ahead, that copy may itself wait for kernels queued before
its buffer was allocated. So the host is at most `SLOTS` + 1 steps ahead of the device, and the device always has
`SLOTS` whole steps to run. Nothing waits for the results of those steps.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gcnbatch.backends.cuda.runtime.events import Event, StreamDevice
from gcnbatch.backends.cuda.runtime.memory import DeviceArray, Move

SLOTS = 2  # pinned buffers: the host fills one during the copy from the other
ALIGNMENT = 256


class CopyDevice(StreamDevice, Protocol):
    """The part of `Device` that copies need."""

    def empty(self, shape: int, dtype: DTypeLike) -> DeviceArray:
        """Allocate an array."""

    def pinned(self, shape: int, dtype: DTypeLike) -> NDArray[Any]:
        """Allocate a host array in page-locked memory."""

    def upload_async(self, host: NDArray[Any], out: DeviceArray, stream: Any) -> DeviceArray:
        """Queue a copy from pinned memory on a stream."""


class Movable(Protocol):
    """An object with arrays, such as a batch."""

    def map(self, move: Move) -> Self:
        """Return the same object with every array moved."""


T = TypeVar("T", bound=Movable)


class CopyBuffer:
    """Device memory for a copy, and an event after which no queued kernel reads it."""

    def __init__(self, device: CopyDevice, nbytes: int) -> None:
        self.memory = device.empty(nbytes, np.uint8)
        self.free = Event(device)  # after the allocation: all kernels that read this memory before are queued


class Sent(Generic[T]):
    """An object on its way to the device."""

    def __init__(self, device: CopyDevice, content: T, nbytes: int, copied: Event) -> None:
        self._device, self._content, self.nbytes, self.copied = device, content, nbytes, copied

    def arrive(self) -> T:
        """Return the object, once: kernels launched from now on wait for its copy, the host does not."""
        self.copied.precede(self._device.stream)
        content = self._content
        del self._content
        return content


class Copies:
    """The copy stream and the pinned buffers of a device, shared by all streamed data sets.

    `Device.copies` creates it once, because PyCUDA never frees pinned memory.
    """

    def __init__(self, device: CopyDevice) -> None:
        self._device = device
        with device.errors():
            self.stream = device.driver.Stream()
        self._slots = [Pinned(device) for _ in range(SLOTS)]
        self._turn = 0

    def buffer(self, nbytes: int) -> CopyBuffer:
        """Allocate memory for a later copy, which then waits only for kernels queued before this call.

        Raises
        ------
        MachineError
            When the device runs out of memory.
        """
        return CopyBuffer(self._device, nbytes)

    def send(self, host: T, buffer: CopyBuffer | None = None) -> Sent[T]:
        """Start one copy of all NumPy arrays of `host`, to `buffer` or, if that is too small, to new memory.

        Raises
        ------
        MachineError
            When the device runs out of memory, or fails.
        """
        arrays: list[NDArray[Any]] = []
        host.map(arrays.append)
        needed = sum(aligned(array.nbytes) for array in arrays)
        if buffer is None or buffer.memory.nbytes < needed:
            buffer = self.buffer(needed)
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % SLOTS
        staged, start, placed = slot.take(needed), 0, []
        for array in arrays:
            np.copyto(staged[start : start + array.nbytes].view(array.dtype).reshape(array.shape), array)
            address = buffer.memory.ptr + start if array.nbytes else 0
            placed.append(DeviceArray(address, array.shape, array.dtype, buffer.memory.owner))
            start += aligned(array.nbytes)
        buffer.free.precede(self.stream)
        self._device.upload_async(staged, buffer.memory.view(0, needed), self.stream)
        moved = iter(placed)
        sent = Sent(self._device, host.map(lambda _: next(moved)), needed, Event(self._device, self.stream))
        slot.sent(sent.copied, sent)
        return sent


class Pinned:
    """A pinned buffer. It is refilled only after the last copy from it, on any stream, has ended."""

    def __init__(self, device: CopyDevice) -> None:
        self._device = device
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._copied: tuple[Event, object] | None = None

    def sent(self, copied: Event, kept: object = None) -> None:
        """Set the event after the last copy from the buffer; `kept` stays alive until the host has seen the event."""
        self._copied = copied, kept

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Wait for the last copy from the buffer and return `nbytes` of it. If too small, it grows by at least half."""
        if self._copied is not None:
            self._copied[0].synchronize()
            self._copied = None
        if nbytes > self._buffer.nbytes:
            self._buffer = self._device.pinned(max(nbytes, self._buffer.nbytes * 3 // 2), np.uint8)
        return self._buffer[:nbytes]


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment of arrays that share a copy."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
