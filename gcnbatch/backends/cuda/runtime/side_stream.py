"""A stream beside the device's, for exchanges between ranks that run while the device computes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.events import Observation
from gcnbatch.backends.cuda.runtime.graph import NON_BLOCKING, WITHOUT_TIMES, Call, Driver, Functions, config_of
from gcnbatch.backends.cuda.runtime.launch import Launch

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.backends.cuda.runtime.memory import DeviceArray

HIGHEST = -(1 << 16)  # the driver takes the highest priority that it knows


class SideStream:
    """A stream of the highest priority: its kernels start as soon as blocks of others end, not after their last one.

    The pool gives memory to new arrays as soon as the old ones are gone, for work of the device's stream. So an array
    that this stream reads or writes must be allocated before `follow` and kept until `precede`.

    Parameters
    ----------
    device : Device

    Raises
    ------
    BackendUnavailable
        When cuda-bindings is not installed.
    MachineError
        When the device fails or has no memory for a stream.
    """

    def __init__(self, device: Device) -> None:
        self._driver = driver = Driver(device)
        create = driver.calls.cuStreamCreateWithPriority
        self._stream = driver.check(create(NON_BLOCKING, HIGHEST))
        self._before, self._after = (driver.check(driver.calls.cuEventCreate(WITHOUT_TIMES)) for _ in range(2))

    @property
    def handle(self) -> int:
        """The stream as the driver's number."""
        return int(self._stream)

    def follow(self) -> None:
        """Let later work of this stream wait for what is queued on the device's."""
        self._order(self._before, self._driver.stream, self._stream)

    def precede(self) -> None:
        """Let later work of the device's stream wait for what is queued on this one."""
        self._order(self._after, self._stream, self._driver.stream)

    def launch(self, entry: str, launch: Launch, /, **arguments: Any) -> None:
        """Launch a kernel on this stream, as `Device.launch` does on the device's."""
        if not launch.blocks:
            return
        driver, observer = self._driver, self._driver.device.observer
        config = config_of(driver, launch)
        config.hStream = self._stream
        call = self._functions.prepare(Call(entry, launch, arguments), config)
        begun = None if observer is None else self.mark()
        driver.check(driver.calls.cuLaunchKernelEx(call.config, call.function, call.addresses, 0))
        driver.device.launches += 1
        if observer is not None and begun is not None:
            observer.append(Observation(entry, launch, begun, self.mark()))

    @cached_property
    def _functions(self) -> Functions:
        return Functions(self._driver)

    def close(self) -> None:
        """Destroy the stream after its last work. On a lost device this fails silently."""
        for event in (self._before, self._after):
            self._driver.calls.cuEventDestroy(event)
        self._driver.calls.cuStreamDestroy(self._stream)

    def download(self, array: DeviceArray, pinned: NDArray[Any]) -> None:
        """Queue a copy of an array to page-locked memory, which `synchronize` waits for."""
        driver = self._driver
        driver.check(driver.calls.cuMemcpyDtoHAsync(pinned.ctypes.data, array.ptr, array.nbytes, self._stream))

    def synchronize(self) -> None:
        """Wait for all work on this stream."""
        self._driver.check(self._driver.calls.cuStreamSynchronize(self._stream))

    def mark(self) -> Mark:
        """Return an event with a time, recorded now."""
        return Mark(self._driver, self._stream)

    def _order(self, event: Any, first: Any, then: Any) -> None:
        check, calls = self._driver.check, self._driver.calls
        check(calls.cuEventRecord(event, first))
        check(calls.cuStreamWaitEvent(then, event, 0))


class Mark:
    """A time on a side stream, as `gcnbatch.backends.cuda.runtime.events.Event`."""

    def __init__(self, driver: Driver, stream: Any) -> None:
        self._driver = driver
        self._event = driver.check(driver.calls.cuEventCreate(0))
        driver.check(driver.calls.cuEventRecord(self._event, stream))

    def since(self, earlier: Mark) -> float:
        """Return the microseconds from `earlier` to this event; wait for both."""
        check, calls = self._driver.check, self._driver.calls
        check(calls.cuEventSynchronize(self._event))
        return float(check(calls.cuEventElapsedTime(earlier._event, self._event))) * 1e3
