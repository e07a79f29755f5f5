"""Points in a device's streams, and launches between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gcnbatch.backends.cuda.runtime.launch import Launch

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


class Event:
    """A point of a stream, by default the device's, marked when the event is made."""

    def __init__(self, device: Device, stream: Any = None) -> None:
        self._device, self.stream = device, device.stream if stream is None else stream
        with device.errors():
            self._event = device.driver.Event()
            self._event.record(self.stream)

    def precede(self, stream: Any) -> None:
        """Let what is asked of `stream` from now on wait until the device has come to this point; the host goes on."""
        with self._device.errors():
            stream.wait_for_event(self._event)

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
