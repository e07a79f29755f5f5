"""Work captured once as a CUDA graph and replayed: the host then pays one launch for all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gcnbatch.errors import MachineError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


class NotCaptured(MachineError):
    """Work that a CUDA graph cannot hold."""


class Replay:
    """A CUDA graph of what `work` asks of the device's stream.

    Parameters
    ----------
    device : Device
    work : callable
        Launches kernels on arrays that outlive the graph; it has run before, so that everything is loaded. What it
        asks of the host is done once, now.

    Raises
    ------
    NotCaptured
        When the work cannot be captured: it waits for the device, say.
    """

    def __init__(self, device: Device, work: Callable[[], object]) -> None:
        from cuda.bindings import driver

        self._driver, self._stream = driver, driver.CUstream(device.stream.handle)
        launches = device.launches
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._checked(driver.cuStreamBeginCapture(self._stream, mode))
        try:
            work()
        except Exception as error:
            driver.cuStreamEndCapture(self._stream)
            raise NotCaptured("CUDA graph", f"the work cannot be captured ({error})") from error
        finally:
            device.launches = launches
        graph = self._checked(driver.cuStreamEndCapture(self._stream))
        self._graph = self._checked(driver.cuGraphInstantiate(graph, 0))
        self._checked(driver.cuGraphDestroy(graph))

    def launch(self) -> None:
        """Run the work once more, in the stream's order; returns at once."""
        self._checked(self._driver.cuGraphLaunch(self._graph, self._stream), MachineError)

    def close(self) -> None:
        """Give the graph back, when what was launched is done."""
        self._checked(self._driver.cuGraphExecDestroy(self._graph), MachineError)

    def _checked(self, result: tuple[Any, ...], failure: type[MachineError] = NotCaptured) -> Any:
        state, *values = result
        if state != self._driver.CUresult.CUDA_SUCCESS:
            raise failure("CUDA graph", f"the driver refuses it ({state.name})")
        return values[0] if values else None
