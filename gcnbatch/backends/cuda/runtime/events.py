"""Events on a device's streams, and launches timed by two events."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from gcnbatch.backends.cuda.runtime.launch import Launch


class StreamDevice(Protocol):
    """The part of `Device` that an event needs."""

    driver: Any
    stream: Any

    def errors(self) -> AbstractContextManager[None]:
        """Turn the driver's errors inside the block into MachineError."""


class Event:
    """A CUDA event, recorded on a stream (default: the device's) when it is created."""

    def __init__(self, device: StreamDevice, stream: Any = None) -> None:
        self._device, self.stream = device, device.stream if stream is None else stream
        with device.errors():
            self._event = device.driver.Event()
            self._event.record(self.stream)

    def precede(self, stream: Any) -> None:
        """Make all later work of `stream` wait for this event; the host does not wait."""
        with self._device.errors():
            stream.wait_for_event(self._event)

    def synchronize(self) -> None:
        """Wait until the device has passed this event."""
        with self._device.errors():
            self._event.synchronize()

    def since(self, earlier: Event) -> float:
        """Return the microseconds from `earlier` to this event on the device's clock; wait for both."""
        with self._device.errors():
            self._event.synchronize()
            return float(self._event.time_since(earlier._event)) * 1e3


class Timed(Protocol):
    """An event with a time, on some stream."""

    def since(self, earlier: Any) -> float:
        """Return the microseconds from an event on the same stream to this one; wait for both."""


class Observation(NamedTuple):
    """One launch, with events right before and after it."""

    entry: str
    launch: Launch
    start: Timed
    stop: Timed
