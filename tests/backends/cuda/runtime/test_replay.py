"""Capturing and replaying on a stand-in for cuda-bindings: what is asked of the driver, and what failures become."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gcnbatch.backends.cuda.runtime.replay import NotCaptured, Replay
from gcnbatch.errors import MachineError


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The driver's functions, which note their names; those in `failing` fail."""
    made: Any = ModuleType("cuda.bindings.driver")
    made.CUresult, made.CUstream = CUresult, lambda handle: f"stream {handle}"
    made.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    made.asked, made.failing = [], set()

    def offer(name: str, *given_back: str) -> None:
        def function(*arguments: Any) -> tuple[Any, ...]:
            made.asked.append((name, *arguments))
            failed = name in made.failing
            return (CUresult(901 if failed else 0), *([None] * len(given_back) if failed else given_back))

        setattr(made, name, function)

    offer("cuStreamBeginCapture")
    offer("cuStreamEndCapture", "graph")
    offer("cuGraphInstantiate", "ready")
    for name in ("cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy"):
        offer(name)
    bindings = ModuleType("cuda.bindings")
    bindings.driver = made  # type: ignore[attr-defined]
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings), ("cuda.bindings.driver", made)):
        monkeypatch.setitem(sys.modules, name, module)
    return made


def a_device() -> Any:
    return SimpleNamespace(stream=SimpleNamespace(handle=7), launches=3)


def test_work_is_captured_once_and_replayed(driver: Any) -> None:
    device, ran = a_device(), []

    def work() -> None:
        ran.append(1)
        device.launches += 1

    replay = Replay(device, work)
    replay.launch()
    replay.launch()
    replay.close()
    assert (ran, device.launches) == ([1], 3), "what is captured is not launched"
    assert driver.asked == [
        ("cuStreamBeginCapture", "stream 7", 2),
        ("cuStreamEndCapture", "stream 7"),
        ("cuGraphInstantiate", "graph", 0),
        ("cuGraphDestroy", "graph"),
        ("cuGraphLaunch", "ready", "stream 7"),
        ("cuGraphLaunch", "ready", "stream 7"),
        ("cuGraphExecDestroy", "ready"),
    ]


def test_work_that_fails_leaves_no_open_capture(driver: Any) -> None:
    device = a_device()

    def work() -> None:
        device.launches += 5
        raise ValueError("it waits")

    with pytest.raises(NotCaptured) as caught:
        Replay(device, work)
    assert str(caught.value) == "CUDA graph: the work cannot be captured (it waits)"
    assert [name for name, *_ in driver.asked] == ["cuStreamBeginCapture", "cuStreamEndCapture"]
    assert device.launches == 3


@pytest.mark.parametrize("step", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"])
def test_what_the_driver_refuses_is_not_captured(driver: Any, step: str) -> None:
    driver.failing.add(step)
    with pytest.raises(NotCaptured) as caught:
        Replay(a_device(), lambda: None)
    assert str(caught.value) == "CUDA graph: the driver refuses it (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)"


def test_a_failing_launch_is_the_machines(driver: Any) -> None:
    replay = Replay(a_device(), lambda: None)
    driver.failing.add("cuGraphLaunch")
    with pytest.raises(MachineError) as caught:
        replay.launch()
    assert not isinstance(caught.value, NotCaptured)
