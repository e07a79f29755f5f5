"""How long a call takes on a device: CUDA events, warm-up, repetitions, the second-level cache warm or cold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from gcnbatch.backends.cuda.replay import NotCaptured, Replay

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.backend import CudaBackend

WARM_UP, BRIEF = 3, 5
CALLS = 10  # of a warm measurement, back to back, as in the papers
MAX_NODES = 400  # of a captured graph: a call of many launches is captured fewer times
FLUSHED = 256 << 20  # bytes written before a cold call: more than any second-level cache holds
COPIED = 512 << 20

TimedCall = Callable[[], object]
Times = list[float]


class DeviceClock:
    """Times calls on a backend's device, in microseconds; every list holds one value per repetition.

    Parameters
    ----------
    backend : CudaBackend
    repeats : int
    """

    def __init__(self, backend: CudaBackend, repeats: int) -> None:
        self._device, self._meter, self.repeats = backend.device, backend.meter, repeats
        self._flushed = self._device.empty(FLUSHED, np.uint8)

    def launches(self, call: TimedCall) -> int:
        """Return how many of our kernels a call launches; 0 where a library launches its own."""
        before = self._device.launches
        call()
        return self._device.launches - before

    def warm(self, call: TimedCall) -> Times:
        """Time `call` inside a replayed CUDA graph of several calls: no launch cost of the host, operands in cache."""
        return self._warm(call, self.repeats)

    def cold(self, call: TimedCall) -> Times:
        """Time a replayed CUDA graph of one call, each time after the second-level cache was filled with other data."""
        return self._replayed(call, lambda: self._device.clear(self._flushed), 1, self.repeats)

    def host(self, call: TimedCall) -> Times:
        """Time several calls asked for by the host one by one: launch cost in it, operands in cache."""
        calls, times = self._calls(call), []
        for _ in range(WARM_UP + self.repeats):
            self._device.synchronize()
            start = self._meter.mark()
            for _ in range(calls):
                call()
            times.append(self._meter.microseconds(start, self._meter.mark()) / calls)
        return times[WARM_UP:]

    def fastest(self, calls: Mapping[str, TimedCall]) -> str:
        """Return the name of the call that is fastest on warm operands; one that no graph can hold only for want."""

        def time_of(name: str) -> float:
            try:
                return float(np.median(self._warm(calls[name], BRIEF)))
            except NotCaptured:
                return inf

        return min(calls, key=time_of)

    def copy_speed(self) -> float:
        """Return the bytes read and written per second, in GB/s, of a copy inside the device's memory."""
        source, target = (self._device.empty(COPIED, np.uint8) for _ in range(2))
        self._device.clear(source)
        driver, stream = self._device.driver, self._device.stream

        def copy() -> None:
            with self._device.errors():
                driver.memcpy_dtod_async(target.ptr, source.ptr, COPIED, stream)

        return 2e-3 * COPIED / float(np.median(self.host(copy)))

    def _warm(self, call: TimedCall, repeats: int) -> Times:
        calls = self._calls(call)

        def work() -> None:
            for _ in range(calls):
                call()

        return self._replayed(work, lambda: None, calls, repeats)

    def _calls(self, call: TimedCall) -> int:
        """Return how often a warm measurement runs `call`; runs it once."""
        return max(1, min(CALLS, MAX_NODES // max(self.launches(call), 1)))

    def _replayed(self, work: TimedCall, before: TimedCall, calls: int, repeats: int) -> Times:
        replay, times = Replay(self._device, work), []
        try:
            for _ in range(WARM_UP + repeats):
                with self._meter.queued():
                    before()
                    start = self._meter.mark()
                    replay.launch()
                    stop = self._meter.mark()
                times.append(self._meter.microseconds(start, stop) / calls)
        finally:
            self._device.synchronize()
            replay.close()
        return times[WARM_UP:]


def host_times(call: TimedCall, repeats: int, enough: float = 0.2) -> Times:
    """Time a call on the host, in microseconds: `repeats` times after one to warm up, or until `enough` seconds."""
    call()
    times: Times = []
    while len(times) < repeats and (len(times) < 3 or sum(times) < enough * 1e6):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def summary(times: Sequence[float]) -> dict[str, Any]:
    """Return median and spread as the fields of a record: us, us_p20, us_p80."""
    low, middle, high = np.percentile(times, (20, 50, 80))
    return {"us": short(middle), "us_p20": short(low), "us_p80": short(high)}


def rates(flops: int, nbytes: int, us: float) -> dict[str, Any]:
    """Return a median time's rates as the fields of a record: gflops, gb_per_s."""
    return {"gflops": short(flops / us * 1e-3), "gb_per_s": short(nbytes / us * 1e-3)}


def short(value: float) -> float:
    """Return a measured number with the four digits that it is worth."""
    return float(f"{value:.4g}")
