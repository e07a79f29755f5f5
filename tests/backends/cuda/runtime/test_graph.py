"""CUDA graphs on stand-ins for PyCUDA and cuda-bindings: calls of the driver, and the errors of calls that fail."""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.graph import Call, NotCaptured, Recorder, capture
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.errors import DeviceLost, MachineError

OUT_OF_MEMORY = r"^device 0 \(Fake 90\): out of memory: 3 of 8 MiB free\. Lower train\.batch_size or "
LOST = r"^device 0 \(Fake 90\): CUDA_ERROR_LAUNCH_FAILED\. If it happens again, 'nvidia-smi' and the system log"


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


@pytest.fixture
def driver(opened: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake of NVIDIA's binding: it logs graph calls in `log`; a call returns its entry in `status`, or success."""
    made: Any = ModuleType("cuda.bindings.driver")
    made.CUresult, made.status, made.log = CUresult, {}, []
    made.CUstream = made.CUlaunchAttribute = lambda *given: SimpleNamespace(value=SimpleNamespace())
    made.CUlaunchConfig = SimpleNamespace
    made.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    made.CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)

    def offer(name: str, *given_back: str) -> None:
        def function(*arguments: Any) -> tuple[Any, ...]:
            status = made.status.get(name, CUresult.CUDA_SUCCESS)
            made.log += [name] if "Graph" in name or "Capture" in name else []
            return (status, *([None] * len(given_back) if status else given_back))

        setattr(made, name, function)

    offer("cuModuleLoadData", "module")
    offer("cuModuleGetFunction", "function")
    offer("cuStreamEndCapture", "graph")
    offer("cuGraphInstantiate", "ready")
    for name in ("cuStreamBeginCapture", "cuLaunchKernelEx", "cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy"):
        offer(name)
    opened.stream.handle = 7
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made)
    return made


def record(device: Device, branches: int = 1) -> Any:
    arguments = {"n": 1, "y": device.empty(1), "x": device.empty(1), "rows": device.empty(1, "i4")}
    calls = [Call("scale_forward", Launch((1, 1, 1), (32, 1, 1)), arguments)]
    return Recorder(device).record([calls] * branches, repeats=2)


def test_a_graph_counts_its_launches(opened: Device, driver: Any) -> None:
    record(opened).launch()
    assert opened.launches == 2


def test_the_driver_finds_every_argument_at_its_address(opened: Device, driver: Any, monkeypatch) -> None:
    def launch(config: Any, function: Any, addresses: np.ndarray, extra: int) -> tuple[int]:
        arguments.append([ctypes.c_int64.from_address(int(at)).value for at in addresses])
        return (0,)

    arguments: list[list[int]] = []
    monkeypatch.setattr(driver, "cuLaunchKernelEx", launch)
    record(opened)
    y, x, rows, n = arguments[0]
    assert (x - y, rows - x, n) == (256, 256, 1)
    assert arguments == [[y, x, rows, n]] * 2


def test_branches_of_a_graph_wait_for_its_begin_and_not_for_each_other(
    opened: Device, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[Any, ...]] = []
    made = iter(["side", "begin", "end"])

    def offer(name: str, say: Any, *given_back: Any) -> None:
        monkeypatch.setattr(
            driver, name, lambda *given: (log.append((name, *say(*given))), (0, *given_back))[1], raising=False
        )

    for name in ("cuStreamCreate", "cuEventCreate"):
        monkeypatch.setattr(driver, name, lambda flags: (0, next(made)), raising=False)
    offer("cuEventRecord", lambda event, stream: (event, stream))
    offer("cuStreamWaitEvent", lambda stream, event, flags: (stream, event))
    offer("cuLaunchKernelEx", lambda config, *rest: (config.hStream,))
    for name in ("cuEventDestroy", "cuStreamDestroy"):
        offer(name, lambda what: (what,))
    main = object()
    monkeypatch.setattr(driver, "CUstream", lambda handle: main)
    graph = record(opened, branches=2)
    assert log == [
        ("cuEventRecord", "begin", main),
        ("cuStreamWaitEvent", "side", "begin"),
        *[("cuLaunchKernelEx", main), ("cuLaunchKernelEx", "side")] * 2,
        ("cuEventRecord", "end", "side"),
        ("cuStreamWaitEvent", main, "end"),
        *[("cuEventDestroy", "begin"), ("cuEventDestroy", "end"), ("cuStreamDestroy", "side")],
    ]
    graph.launch()
    assert opened.launches == 4


@pytest.mark.parametrize("step", ["cuModuleLoadData", "cuLaunchKernelEx", "cuGraphInstantiate"])
def test_a_graph_without_room_says_what_is_free(opened: Device, driver: Any, step: str) -> None:
    driver.status[step] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(MachineError, match=OUT_OF_MEMORY) as caught:
        record(opened)
    assert not isinstance(caught.value, DeviceLost)
    driver.status[step] = CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(DeviceLost, match=LOST):
        record(opened)


def test_a_graph_that_does_not_start(opened: Device, driver: Any) -> None:
    graph = record(opened)
    driver.status["cuGraphLaunch"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(MachineError, match=OUT_OF_MEMORY):
        graph.launch()
    driver.status["cuGraphLaunch"] = CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(DeviceLost, match=LOST):
        graph.launch()
    assert opened.launches == 0


def test_work_is_captured_once_and_counts_its_launches_when_it_runs(opened: Device, driver: Any) -> None:
    ran = []

    def work() -> None:
        ran.append(1)
        opened.launches += 2

    opened.launches = 3
    graph = capture(opened, work)
    assert (ran, opened.launches) == ([1], 3)
    graph.launch()
    graph.launch()
    graph.close()
    assert (ran, opened.launches) == ([1], 3 + 2 * 2)
    capturing = ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphDestroy"]
    assert driver.log == [*capturing, "cuGraphLaunch", "cuGraphLaunch", "cuGraphExecDestroy"]


def test_work_that_fails_leaves_no_open_capture(opened: Device, driver: Any) -> None:
    def work() -> None:
        opened.launches += 5
        raise ValueError("it waits")

    with pytest.raises(NotCaptured) as caught:
        capture(opened, work)
    assert str(caught.value) == "CUDA graph: the work cannot be captured (it waits)"
    assert driver.log == ["cuStreamBeginCapture", "cuStreamEndCapture"]
    assert opened.launches == 0


@pytest.mark.parametrize("step", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"])
def test_work_that_the_driver_refuses_is_not_captured(opened: Device, driver: Any, step: str) -> None:
    driver.status[step] = CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    with pytest.raises(NotCaptured) as caught:
        capture(opened, lambda: None)
    assert str(caught.value) == "CUDA graph: the work cannot be captured (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)"
