"""Cost of each operation: a wrapper around a backend records every call of an operation.

Operations are unchanged: the wrapper's `ops` passes each call on, with marks before and after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, cast

from numpy.typing import NDArray

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend, Batch, Feed
from gcnbatch.backends.cpu import HostBatch, HostFeed
from gcnbatch.backends.ops import Array, DropoutKey, Reader
from gcnbatch.data.batches import BatchSource
from gcnbatch.lab.backend_comparison.workload import Effort, Workload
from gcnbatch.lab.bench import traffic
from gcnbatch.lab.bench.traffic import Traffic
from gcnbatch.runners.choice import make_runner
from gcnbatch.runners.ops import OpsRunner


class Row(NamedTuple):
    """A row of the table: the papers' name of an operation, and its direction (forward or backward)."""

    family: str
    direction: str

    @property
    def label(self) -> str:
        """Such as ``"SpMM backward"``."""
        return f"{self.family} {self.direction}".strip()


ROWS = {
    **dict.fromkeys(("gather", "take"), Row("Gather", "")),
    **{
        f"{name}{suffix}": Row(family, direction)
        for name, family in (
            ("matmul", "MatMul"),
            ("sparse_matmul", "SparseMatMul"),
            ("bias_add", "Add"),
            ("linear", "MatMul + Add"),
            ("spmm", "SpMM"),
            ("batch_norm", "BatchNorm"),
            ("layer_norm", "LayerNorm"),
            ("relu", "ReLU"),
            ("maximum", "Maximum"),
            ("concatenate", "Concatenate"),
            ("dropout", "Dropout"),
            ("relu_dropout", "ReLU + Dropout"),
            ("readout", "Readout"),
            ("join", "Join"),
        )
        for suffix, direction in (("", "forward"), ("_backward", "backward"))
    },
    "matmul_dx": Row("MatMul", "backward"),
    "add": Row("Residual", ""),
    **dict.fromkeys(("sigmoid_cross_entropy", "softmax_cross_entropy", "mean_squared_error"), Row("Loss", "")),
    **dict.fromkeys(("clip_norm", "adam_step", "sgd_step"), Row("Optimiser", "")),
}
FAMILIES = tuple(dict.fromkeys(row.family for row in ROWS.values()))


class OperationCall(NamedTuple):
    """One call of an operation: device marks, host times in seconds, launches, traffic."""

    name: str
    start: Any
    stop: Any
    asked: float
    returned: float
    launches: int
    traffic: Traffic | None


@dataclass(frozen=True)
class Cost:
    """Cost of one row of the table, per training step.

    Parameters
    ----------
    calls, launches : float
        Calls of the operation and launches of kernels; medians over steps, like the microseconds.
    microseconds : float
    traffic : Traffic or None
        Traffic of one step; None if that of any call is unknown.
    """

    calls: float
    launches: float
    microseconds: float
    traffic: Traffic | None

    @property
    def gigabytes_per_second(self) -> float | None:
        """Compulsory bytes over time."""
        return self.traffic.bytes / self.microseconds / 1e3 if self.traffic and self.microseconds else None

    @property
    def gigaflops(self) -> float | None:
        """GFLOP/s; None for an operation that computes nothing."""
        known = self.traffic and self.traffic.flops and self.microseconds
        return self.traffic.flops / self.microseconds / 1e3 if known and self.traffic else None

    def to_json(self) -> dict[str, float | None]:
        """Return figures for the report."""
        return {
            "calls": self.calls,
            "launches": self.launches,
            "microseconds": self.microseconds,
            "bytes": self.traffic.bytes if self.traffic else None,
            "flops": self.traffic.flops if self.traffic else None,
            "gigabytes_per_second": self.gigabytes_per_second,
            "gigaflops": self.gigaflops,
        }


@dataclass
class RecordingBackend:
    """Wraps `backend`; records the calls of its operations and of its feed's `batch` ("gather").

    Parameters
    ----------
    backend : Backend
    queued : bool
        Hold a call's launches back until it returns, so that marks measure the device's time alone.
    batch : HostBatch or None
        The batch of the current step in host memory. Traffic is computed from these arrays, so it does not depend on
        the backend's own form; None: no traffic.
    apart : bool
        Run fused operations as separate calls of MatMul, Add, ReLU and Dropout, as in the papers.
    """

    backend: Backend
    queued: bool
    calls: list[OperationCall] = field(default_factory=list)
    batch: HostBatch | None = None
    apart: bool = False
    _labelled: Batch | None = None  # of the backend's current batch

    def __post_init__(self) -> None:
        self.ops = _OpsApart(self) if self.apart else _RecordedOps(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def feed(self, source: BatchSource, targets: NDArray[Any]) -> Feed:
        """Return the backend's feed, with recorded calls."""
        return cast(Feed, _RecordedFeed(self, self.backend.feed(source, targets)))

    def note(self, name: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call `function` and record the call."""
        meter = self.backend.meter
        launches = meter.launches
        if self.queued:
            with meter.queued():
                start, asked = meter.mark(), time.perf_counter()
                result = function(*arguments, **keywords)
                returned, stop = time.perf_counter(), meter.mark()
        else:
            start, asked = meter.mark(), time.perf_counter()
            result = function(*arguments, **keywords)
            returned, stop = time.perf_counter(), meter.mark()
        launches = meter.launches - launches
        known = self._traffic(name, arguments, keywords, result)
        self.calls.append(OperationCall(name, start, stop, asked, returned, launches, known))
        return result

    def _traffic(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> Traffic | None:
        if self.batch is None:
            return None
        if name == "gather":
            self._labelled = result.labelled
            result = self.batch
        elif name in ("spmm", "spmm_backward"):
            of_labelled = self._labelled is not None and arguments[0] is self._labelled.adjacency
            host = self.batch.labelled if of_labelled and self.batch.labelled else self.batch
            arguments = (host.adjacency, *arguments[1:])
        return traffic.of(name, arguments, keywords, result)


class _RecordedOps:
    def __init__(self, recorder: RecordingBackend) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._recorder.backend.ops, name)
        return lambda *arguments, **keywords: self._recorder.note(name, operation, *arguments, **keywords)


class _OpsApart(_RecordedOps):
    def matmul_dx(self, dy: Array, w: Array, graphs: Any = None, kept: Any = None) -> Array:
        dx = self._recorder.note("matmul_dx", self._recorder.backend.ops.matmul_dx, dy, w, graphs)
        return dx if kept is None else self.relu_dropout_backward(dx, kept)

    def relu_dropout(
        self, x: Array, rate: float, key: DropoutKey, out: Array | None = None, reader: Reader | None = None
    ) -> tuple[Array, Any]:
        positive = self.relu(x, out)
        y, mask = self.dropout(positive, rate, key)
        return y, (positive, mask, rate)

    def relu_dropout_backward(self, dy: Array, kept: Any, out: Array | None = None) -> Array:
        positive, mask, rate = kept
        return self.relu_backward(self.dropout_backward(dy, mask, rate), positive)

    def linear(self, x: Array, w: Array, b: Array, graphs: Any = None) -> Array:
        y = self.matmul(x, w, graphs)
        return self.bias_add(y, b, graphs, out=y)

    def linear_backward(
        self, dy: Array, x: Array, w: Array, need_dx: bool, out: tuple[Array, Array], graphs: Any = None
    ) -> tuple[Array | None, Array, Array]:
        db = self.bias_add_backward(dy, out[1], graphs)
        dx, dw = self.matmul_backward(dy, x, w, need_dx, out[0], graphs)
        return dx, dw, db


class _RecordedFeed:
    def __init__(self, recorder: RecordingBackend, feed: Feed) -> None:
        self._recorder, self._feed = recorder, feed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def batch(self, index: int) -> Any:
        return self._recorder.note("gather", self._feed.batch, index)


def recorded_runner(recorder: RecordingBackend, workload: Workload) -> OpsRunner:
    """Return a runner whose operations are all recorded."""
    return OpsRunner(cast(Backend, recorder), workload.task)


def profile(backend: Backend, workload: Workload, effort: Effort) -> dict[Row, Cost]:
    """Return the cost of each operation per training step, in the table's order, without the first step.

    MatMul and Add are separate, as in the papers' table IV, even if a training step fuses them.
    """
    if not registry.entry(backend.name).steps_are_operations:
        return _profile_kernels(backend, workload, effort)
    recorder = RecordingBackend(backend, queued=True, apart=True)
    runner = recorded_runner(recorder, workload)
    steps = workload.repeated(effort.profiled + 1)
    runner.begin_epoch(workload.epoch(len(steps)))
    host = HostFeed(workload.task.source, workload.task.targets)
    rows: list[dict[Row, Cost]] = []
    for step in range(len(steps)):
        recorder.calls.clear()
        recorder.batch = host.gather(steps[step])
        runner.step(step)
        backend.meter.synchronize()
        if step:
            rows.append(_by_row(backend, recorder.calls))
    runner.close()
    return {row: _median(costs[row] for costs in rows) for row in _ordered(rows[0])}


def _profile_kernels(backend: Backend, workload: Workload, effort: Effort) -> dict[Row, Cost]:
    """Return the cost of each kernel per training step, for a backend that does not run `Ops`."""
    meter, runner = backend.meter, make_runner(backend, [workload.task])
    steps = effort.profiled + 1
    runner.begin_epoch(workload.epoch(steps))
    rows: list[dict[Row, Cost]] = []
    for step in range(steps):
        with meter.traced() as launches, meter.queued():
            runner.step(step)
        found: dict[Row, Cost] = {}
        for launch in launches:
            took, row = Cost(1, 1, meter.microseconds(launch.start, launch.stop), None), Row(launch.name, "")
            found[row] = _sum(found[row], took) if row in found else took
        if step:
            rows.append(found)
    runner.close()
    return {row: _median(costs[row] for costs in rows) for row in rows[0]}


def _by_row(backend: Backend, calls: Iterable[OperationCall]) -> dict[Row, Cost]:
    found: dict[Row, Cost] = {}
    for call in calls:
        took = Cost(1, call.launches, backend.meter.microseconds(call.start, call.stop), call.traffic)
        row = ROWS.get(call.name, Row(call.name, ""))
        found[row] = _sum(found[row], took) if row in found else took
    return found


def _sum(a: Cost, b: Cost) -> Cost:
    both = None
    if a.traffic and b.traffic:
        both = Traffic(a.traffic.bytes + b.traffic.bytes, a.traffic.flops + b.traffic.flops)
    return Cost(a.calls + b.calls, a.launches + b.launches, a.microseconds + b.microseconds, both)


def _median(costs: Iterable[Cost]) -> Cost:
    several = list(costs)
    known = [cost.traffic for cost in several if cost.traffic]
    traffic_of = Traffic(*(round(median(column)) for column in zip(*known, strict=True))) if known else None
    return Cost(
        median(cost.calls for cost in several),
        median(cost.launches for cost in several),
        median(cost.microseconds for cost in several),
        traffic_of,
    )


def _ordered(rows: Iterable[Row]) -> list[Row]:
    """Return rows in the order of `ROWS`, unknown ones last."""
    order = list(dict.fromkeys(ROWS.values()))
    return sorted(rows, key=lambda row: order.index(row) if row in order else len(order))
