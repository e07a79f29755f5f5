"""A stream beside the device's on a stand-in for cuda-bindings: its order among the device's work, and its times."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.side_stream import HIGHEST, SideStream


@pytest.fixture
def log(opened: Device, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of a driver whose streams and events are named by their number."""
    made: Any = ModuleType("cuda.bindings.driver")
    made.CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    made.CUstream = lambda handle: handle
    calls: list[tuple[Any, ...]] = []
    numbers = iter(range(100, 200))

    def offer(name: str, give: Any = None) -> None:
        def function(*given: Any) -> tuple[Any, ...]:
            calls.append((name, *given))
            return (0,) if give is None else (0, give())

        setattr(made, name, function)

    for name in ("cuStreamCreateWithPriority", "cuEventCreate"):
        offer(name, lambda: next(numbers))
    for name in (
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventSynchronize",
        "cuStreamSynchronize",
        "cuMemcpyDtoHAsync",
    ):
        offer(name)
    offer("cuEventElapsedTime", lambda: 1.5)
    opened.stream.handle = 7
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made)
    return calls


def test_a_side_stream_waits_for_the_devices_and_the_devices_for_it(opened: Device, log: list[tuple[Any, ...]]) -> None:
    side = SideStream(opened)
    assert log[0] == ("cuStreamCreateWithPriority", 1, HIGHEST)
    assert side.handle == 100
    log.clear()
    side.follow()
    assert log == [("cuEventRecord", 101, 7), ("cuStreamWaitEvent", 100, 101, 0)]
    log.clear()
    side.precede()
    assert log == [("cuEventRecord", 102, 100), ("cuStreamWaitEvent", 7, 102, 0)]


def test_the_host_waits_for_a_download_on_the_side_stream(opened: Device, log: list[tuple[Any, ...]]) -> None:
    side, array, pinned = SideStream(opened), opened.empty(3), np.zeros(3, np.float32)
    log.clear()
    side.download(array, pinned)
    side.synchronize()
    assert log == [("cuMemcpyDtoHAsync", pinned.ctypes.data, array.ptr, 12, 100), ("cuStreamSynchronize", 100)]


def test_times_of_a_side_stream_are_in_microseconds(opened: Device, log: list[tuple[Any, ...]]) -> None:
    side = SideStream(opened)
    start, stop = side.mark(), side.mark()
    log.clear()
    assert stop.since(start) == 1500.0
    assert log == [("cuEventSynchronize", 104), ("cuEventElapsedTime", 103, 104)]
