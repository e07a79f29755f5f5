"""Points in a device's stream, and launches between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gcnbatch.backends.cuda.launch import Launch

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.device import Device


class Event:
    """A point of the device's stream, marked when the event is made."""

    def __init__(self, device: Device) -> None:
        self._device = device
        with device.errors():
            self._event = device.driver.Event()
            self._event.record(device.stream)

    def synchronize(self) -> None:
        """Wait until the device has come to this point."""
        with self._device.errors():
            self._event.synchronize()

    def since(self, earlier: Event) -> float:
        """Return the microseconds from `earlier` to this point on the device's clock; waits for both."""
        with self._device.errors():
            self._event.synchronize()
            return float(self._event.time_since(earlier._event)) * 1e3


class Observation(NamedTuple):
    """One launch as an observer sees it."""

    entry: str
    launch: Launch
    start: Event
    stop: Event
