"""The device clock on a stand-in device: repetitions, cache flushes, time per call."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from gcnbatch.backends.cuda.runtime.graph import NotCaptured
from gcnbatch.lab.bench import clock


class Standing:
    """A backend whose calls take a microsecond each; no other time passes."""

    def __init__(self) -> None:
        self.now, self.log = 0.0, []
        self.device = self
        self.meter = SimpleNamespace(
            mark=lambda: self.now, microseconds=lambda start, stop: stop - start, queued=nullcontext
        )
        self.launches = 0

    def empty(self, shape: Any, dtype: Any) -> str:
        return "flushed"

    def clear(self, array: Any) -> None:
        self.log.append("clear")
        self.now += 100

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def call(self, launches: int = 1) -> None:
        self.log.append("call")
        self.launches += launches
        self.now += 1


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Standing:
    def capture(device: Any, work: Any) -> Any:
        work()
        return SimpleNamespace(launch=work, close=lambda: device.log.append("close"))

    monkeypatch.setattr(clock, "capture", capture)
    return Standing()


def test_a_time_is_that_of_one_call(standing: Standing) -> None:
    timed = clock.DeviceClock(standing, repeats=4)  # type: ignore[arg-type]
    for state in (timed.warm, timed.cold, timed.host):
        assert state(standing.call) == [1.0] * 4
    assert standing.log.count("clear") == clock.WARM_UP + 4, "cold alone fills the cache, before every call"
    assert standing.log.count("close") == 2


def test_a_call_of_many_launches_is_captured_fewer_times(standing: Standing) -> None:
    timed = clock.DeviceClock(standing, repeats=1)  # type: ignore[arg-type]
    assert timed.warm(lambda: standing.call(launches=150)) == [1.0]
    once, captured_and_replayed = 1, 2 * (1 + clock.WARM_UP + 1)
    assert standing.log.count("call") == once + captured_and_replayed


def test_a_call_that_no_graph_captures_is_never_the_fastest(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = clock.DeviceClock(standing, repeats=1)  # type: ignore[arg-type]

    def slow() -> None:
        standing.now += 5

    def refused() -> None:
        raise NotCaptured("CUDA graph", "no")

    assert timed.fastest({"slow": slow, "quick": standing.call}) == "quick"
    monkeypatch.setattr(timed, "_calls", lambda call: 1)
    assert timed.fastest({"refused": refused, "slow": slow}) == "slow"


def test_host_times_stop_after_enough_seconds() -> None:
    ran = []
    assert len(clock.host_times(lambda: ran.append(1), repeats=7)) == 7
    assert len(ran) == 8
    assert len(clock.host_times(lambda: None, repeats=50, enough=0.0)) == 3


def test_summary() -> None:
    assert clock.summary([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == {"us": 3.5, "us_p20": 2.0, "us_p80": 5.0}
