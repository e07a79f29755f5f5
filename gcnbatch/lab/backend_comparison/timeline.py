"""Trace of one training step per backend: calls on the host and kernels on the device (papers: figure 11).

The device's kernels are measured in two runs of the same step. In the first, each operation's launches are queued
before they run, so that a kernel's time excludes the host. In the second, the step runs as in training, which gives the
end of each kernel. The trace has the shorter of a kernel's two times, and its end in the second run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend
from gcnbatch.lab.backend_comparison.operations import ROWS, RecordingBackend, Row, recorded_runner
from gcnbatch.lab.backend_comparison.workload import Workload
from gcnbatch.outputs import Kind, begins_with
from gcnbatch.runners.choice import make_runner

TRACE = Kind("a timeline", begins_with(rb"\s*\{\s*\"traceEvents\""))
STEP = 1  # index of the traced step
HOST, DEVICE = 1, 2
OTHER = Row("Other", "")


@dataclass(frozen=True)
class Span:
    """A call or kernel: `start` and `length` in microseconds, from the beginning of the step."""

    name: str
    family: str
    start: float
    length: float


@dataclass(frozen=True)
class Trace:
    """One step: calls on the host, kernels on the device (none for a host backend), its length in us."""

    backend: str
    host: list[Span]
    device: list[Span]
    length: float

    @property
    def busy(self) -> float:
        """Microseconds in kernels, or in calls for a host backend."""
        return sum(span.length for span in self.device or self.host)


def trace(backend: Backend, workload: Workload) -> Trace:
    """Run a few steps and return the trace of the last one."""
    if not registry.entry(backend.name).steps_are_operations:
        return _trace_kernels(backend, workload)
    meter = backend.meter
    recorder = RecordingBackend(backend, queued=True)
    runner = recorded_runner(recorder, workload)
    runner.begin_epoch(workload.epoch(STEP + 1))
    for step in range(STEP):
        runner.step(step)
    with meter.traced() as queued:
        runner.step(STEP)
        meter.synchronize()
    lengths = [meter.microseconds(launch.start, launch.stop) for launch in queued]
    recorder.queued = False
    recorder.calls.clear()
    with meter.traced() as launches:
        origin, began = meter.mark(), time.perf_counter()
        runner.step(STEP)
        end = meter.mark()
        meter.synchronize()
    stopped = time.perf_counter()
    runner.close()
    host, families = [], []
    for call in recorder.calls:
        family = ROWS.get(call.name, OTHER).family
        host.append(Span(call.name, family, (call.asked - began) * 1e6, (call.returned - call.asked) * 1e6))
        families += [family] * call.launches
    device = []
    for number, launch in enumerate(launches):
        stop = meter.microseconds(origin, launch.stop)
        length = meter.microseconds(launch.start, launch.stop)
        if number < len(lengths):
            length = min(length, lengths[number])
        family = families[number] if number < len(families) else OTHER.family
        device.append(Span(launch.name, family, stop - length, length))
    length = max((stopped - began) * 1e6, meter.microseconds(origin, end))
    return Trace(backend.name, host, device, length)


def _trace_kernels(backend: Backend, workload: Workload) -> Trace:
    """Return the trace of a step that does not run `Ops`: its kernels, queued before they run."""
    meter, runner = backend.meter, make_runner(backend, [workload.task])
    runner.begin_epoch(workload.epoch(STEP + 1))
    with meter.traced():  # traced one by one, so that no launch of these steps waits until the traced step
        for step in range(STEP):
            runner.step(step)
    meter.synchronize()
    with meter.traced() as launches, meter.queued():
        origin, began = meter.mark(), time.perf_counter()
        runner.step(STEP)
        stopped, end = time.perf_counter(), meter.mark()
    device = [
        Span(
            launch.name,
            OTHER.family,
            meter.microseconds(origin, launch.start),
            meter.microseconds(launch.start, launch.stop),
        )
        for launch in launches
    ]
    runner.close()
    host = [Span("step", OTHER.family, 0.0, (stopped - began) * 1e6)]
    return Trace(backend.name, host, device, max(host[0].length, meter.microseconds(origin, end)))


def events(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the traces in the Trace Event Format of Perfetto and chrome://tracing, one process per backend."""
    found: list[dict[str, Any]] = []
    for pid, one in enumerate(traces, 1):
        found += _names(pid, one)
        for tid, spans in ((HOST, one.host), (DEVICE, one.device)):
            found += [
                {
                    "name": span.name,
                    "cat": span.family,
                    "ph": "X",
                    "ts": round(span.start, 3),
                    "dur": round(span.length, 3),
                    "pid": pid,
                    "tid": tid,
                }
                for span in spans
            ]
    return {"traceEvents": found, "displayTimeUnit": "ns"}


def _names(pid: int, one: Trace) -> list[dict[str, Any]]:
    titles = [("process_name", HOST, f"{one.backend}: one training step"), ("thread_name", HOST, "host: operations")]
    titles += [("thread_name", DEVICE, "device: kernels")] if one.device else []
    return [{"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": text}} for kind, tid, text in titles]
