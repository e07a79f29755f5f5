"""Copies to a device while it computes: a stream of their own, and two pinned buffers from which they go.

What keeps them apart from the kernels, which run on the device's stream:

- A copy begins when the kernels are done that were asked for before its memory was taken (`Room`). Memory that Python
  has given back is taken again at once, while kernels that read it may still be queued; all of them came before.
- What is asked of the device's stream behind `Sent.arrive` begins when the copy is done. Until then, or until the host
  has seen the copy's end, its buffer keeps the batch: memory of one that nobody asks for is not taken too early.
- A pinned buffer is filled again when the host has seen the end of the copy from it, `SLOTS` copies ago.

Only in the last does the host wait. Where it is far ahead, that copy may itself be waiting for the kernels asked for
before its room was taken. So the host comes no more than `SLOTS` + 1 steps ahead of the device, which has `SLOTS` whole
steps to run while it is waited for; the results of those steps nobody waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import DeviceBatch
from gcnbatch.backends.cuda.runtime.events import Event
from gcnbatch.backends.cuda.runtime.memory import DeviceArray

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

SLOTS = 2  # pinned buffers: one is filled while the copy from the other is under way
ALIGNMENT = 256


class Room:
    """Device memory for a copy, and the point of the device's stream from which on nothing older reads it."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.memory = device.empty(nbytes, np.uint8)
        self.free = device.event()  # made behind the memory: who had it before has asked for everything by now


class Sent:
    """A batch on its way to the device."""

    def __init__(self, device: Device, batch: DeviceBatch, nbytes: int, copied: Event) -> None:
        self._device, self._batch, self.nbytes, self.copied = device, batch, nbytes, copied

    def arrive(self) -> DeviceBatch:
        """Return the batch, once: kernels launched from now on wait for its copy, the host does not."""
        self.copied.precede(self._device.stream)
        batch = self._batch
        del self._batch
        return batch


class Copies:
    """The stream and the pinned buffers of a device; those who stream to it share them.

    `Device.copies` makes it, once: PyCUDA never gives pinned memory back.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        with device.errors():
            self.stream = device.driver.Stream()
        self._slots = [Pinned(device) for _ in range(SLOTS)]
        self._turn = 0

    def room(self, nbytes: int) -> Room:
        """Take memory for a copy to come, which then waits only for kernels asked for before this call.

        Raises
        ------
        MachineError
            When the device has no room for it.
        """
        return Room(self._device, nbytes)

    def send(self, host: DeviceBatch, room: Room | None = None) -> Sent:
        """Start the copy of a batch of NumPy arrays, in one piece, to `room` or, where that is too small, another.

        Raises
        ------
        MachineError
            When the device has no room for it, or fails.
        """
        arrays: list[NDArray[Any]] = []
        host.map(arrays.append)
        needed = sum(aligned(array.nbytes) for array in arrays)
        if room is None or room.memory.nbytes < needed:
            room = self.room(needed)
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % SLOTS
        staged, start, placed = slot.take(needed), 0, []
        for array in arrays:
            np.copyto(staged[start : start + array.nbytes].view(array.dtype).reshape(array.shape), array)
            address = room.memory.ptr + start if array.nbytes else 0
            placed.append(DeviceArray(address, array.shape, array.dtype, room.memory.owner))
            start += aligned(array.nbytes)
        room.free.precede(self.stream)
        self._device.upload_async(staged, room.memory.view(0, needed), self.stream)
        moved = iter(placed)
        sent = Sent(self._device, host.map(lambda _: next(moved)), needed, Event(self._device, self.stream))
        slot.sent(sent.copied, sent)
        return sent


class Pinned:
    """A pinned buffer, which is filled again when the copy from it is done, on any stream; `Device` has one, too."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._copied: tuple[Event, object] | None = None

    def sent(self, copied: Event, kept: object = None) -> None:
        """Take note of the end of the copy from it; `kept` is, until the host has seen that."""
        self._copied = copied, kept

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return so much of the buffer, when the copy from it is done; grows by half at least."""
        if self._copied is not None:
            self._copied[0].synchronize()
            self._copied = None
        if nbytes > self._buffer.nbytes:
            self._buffer = self._device.pinned(max(nbytes, self._buffer.nbytes * 3 // 2), np.uint8)
        return self._buffer[:nbytes]


def aligned(nbytes: int) -> int:
    """Return the bytes between the starts of two arrays that are copied in one piece."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
