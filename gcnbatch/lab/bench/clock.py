"""Timing of calls on a device: CUDA events, warm-up, repetitions, warm or cold L2."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from gcnbatch import environment
from gcnbatch.backends.cuda.runtime.graph import NotCaptured, capture
from gcnbatch.lab.statistics import spread

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.backend import CudaBackend

WARM_UP, BRIEF = 3, 5
CALLS = 10  # back-to-back calls of a warm measurement, as in the papers
MAX_NODES = 400  # most nodes of a captured graph; a call with many launches is captured fewer times
FLUSHED = 256 << 20  # bytes written before a cold call: more than any L2 holds
COPIED = 512 << 20  # bytes of the copy that measures the memory's speed

TimedCall = Callable[[], object]
Times = list[float]


class DeviceClock:
    """Times calls on a backend's device in microseconds; each list has one value per repetition.

    Parameters
    ----------
    backend : CudaBackend
    repeats : int
    """

    def __init__(self, backend: CudaBackend, repeats: int) -> None:
        self._device, self._meter, self.repeats = backend.device, backend.meter, repeats
        self._flushed = self._device.empty(FLUSHED, np.uint8)

    def launches(self, call: TimedCall) -> int:
        """Return the number of our kernels that a call launches; 0 if a library launches its own."""
        before = self._device.launches
        call()
        return self._device.launches - before

    def warm(self, call: TimedCall) -> Times:
        """Time a replayed CUDA graph of several calls: no launch overhead on the host, operands in L2."""
        return self._warm(call, self.repeats)

    def cold(self, call: TimedCall) -> Times:
        """Time a replayed CUDA graph of one call, each time after L2 was filled with other data."""
        return self._replayed(call, lambda: self._device.clear(self._flushed), 1, self.repeats)

    def host(self, call: TimedCall) -> Times:
        """Time several calls launched one by one by the host: with launch overhead, operands in L2."""
        calls, times = self._calls(call), []
        for _ in range(WARM_UP + self.repeats):
            self._device.synchronize()
            start = self._meter.mark()
            for _ in range(calls):
                call()
            times.append(self._meter.microseconds(start, self._meter.mark()) / calls)
        return times[WARM_UP:]

    def fastest(self, calls: Mapping[str, TimedCall]) -> str:
        """Return the name of the fastest call on warm operands; calls that no graph can capture come last."""

        def time_of(name: str) -> float:
            try:
                return float(np.median(self._warm(calls[name], BRIEF)))
            except NotCaptured:
                return inf

        return min(calls, key=time_of)

    def copy_speed(self) -> float:
        """Return the speed of a copy within the device's memory in GB/s, bytes read plus bytes written."""
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
        """Return the number of calls in a warm measurement; runs `call` once."""
        return max(1, min(CALLS, MAX_NODES // max(self.launches(call), 1)))

    def _replayed(self, work: TimedCall, before: TimedCall, calls: int, repeats: int) -> Times:
        graph, times = capture(self._device, work), []
        try:
            for _ in range(WARM_UP + repeats):
                with self._meter.queued():
                    before()
                    start = self._meter.mark()
                    graph.launch()
                    stop = self._meter.mark()
                times.append(self._meter.microseconds(start, stop) / calls)
        finally:
            self._device.synchronize()
            graph.close()
        return times[WARM_UP:]


def machine(backend: CudaBackend) -> dict[str, Any]:
    """Return the fields of a record about a backend's device: commit, gpu, driver, cuda."""
    listed = environment.gpus()[0]
    return {
        "commit": environment.commit(),
        "gpu": backend.device.name,
        "driver": listed[0]["driver"] if listed else None,
        "cuda": backend.meter.about()["driver"].removeprefix("CUDA "),
    }


def host_times(call: TimedCall, repeats: int, enough: float = 0.2) -> Times:
    """Time a call on the host in microseconds: after one warm-up, `repeats` times or for `enough` seconds."""
    call()
    times: Times = []
    while len(times) < repeats and (len(times) < 3 or sum(times) < enough * 1e6):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def summary(times: Sequence[float]) -> dict[str, Any]:
    """Return median and percentiles as fields of a record: us, us_p20, us_p80."""
    median, p20, p80 = map(short, spread(times).values())
    return {"us": median, "us_p20": p20, "us_p80": p80}


def rates(flops: int, nbytes: int, us: float) -> dict[str, Any]:
    """Return the rates of a median time as fields of a record: gflops, gb_per_s."""
    return {"gflops": short(flops / us * 1e-3), "gb_per_s": short(nbytes / us * 1e-3)}


def short(value: float) -> float:
    """Return a measured number rounded to four significant digits."""
    return float(f"{value:.4g}")
