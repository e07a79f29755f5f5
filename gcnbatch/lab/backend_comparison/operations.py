"""Cost of each operation: a wrapper around a backend records every call of an operation.

Operations are unchanged: the wrapper's `ops` passes each call on, with marks before and after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend, Batch, Feed
from gcnbatch.backends.cpu import HostBatch, HostFeed
from gcnbatch.backends.ops import Array, DropoutKey, Reader
from gcnbatch.data.batches import BatchSource
from gcnbatch.lab.backend_comparison.workload import Effort, Workload
from gcnbatch.lab.bench import traffic
from gcnbatch.lab.bench.traffic import Traffic
from gcnbatch.reference.composed import ComposedOps
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
    **dict.fromkeys(
        ("sigmoid_cross_entropy", "softmax_cross_entropy", "mean_squared_error", "weighted_loss"), Row("Loss", "")
    ),
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


class Cost(NamedTuple):
    """Cost of one row of the table per training step: calls, launches of kernels, time and traffic.

    Bytes and flops are NaN if the traffic of any call is unknown.
    """

    calls: float
    launches: float
    microseconds: float
    bytes: float = math.nan
    flops: float = math.nan

    def to_json(self) -> dict[str, float | None]:
        """Return figures for the report, with GB/s, and GFLOP/s of an operation that computes something."""
        known, time = self._asdict(), self.microseconds or math.nan
        known |= {"gigabytes_per_second": self.bytes / time / 1e3, "gigaflops": (self.flops or math.nan) / time / 1e3}
        return {name: None if math.isnan(value) else value for name, value in known.items()}


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

    def runner(self, workload: Workload) -> OpsRunner:
        """Return a runner whose operations are all recorded."""
        return OpsRunner(cast(Backend, self), workload.task)

    def note(self, name: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call `function` and record the call."""
        meter = self.backend.meter
        launches = meter.launches
        with meter.queued() if self.queued else nullcontext():
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


class _RecordedOps(ComposedOps):
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


def profile(backend: Backend, workload: Workload, effort: Effort) -> dict[Row, Cost]:
    """Return the cost of each operation per training step, in the table's order, without the first step.

    MatMul and Add are separate, as in the papers' table IV, even if a training step fuses them.
    """
    if not registry.entry(backend.name).steps_are_operations:
        return _profile_kernels(backend, workload, effort)
    recorder = RecordingBackend(backend, queued=True, apart=True)
    runner = recorder.runner(workload)
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
            rows.append(_by_row(_cost(backend, call) for call in recorder.calls))
    runner.close()
    return _medians(rows)


def _profile_kernels(backend: Backend, workload: Workload, effort: Effort) -> dict[Row, Cost]:
    """Return the cost of each kernel per training step, for a backend that does not run `Ops`."""
    meter, runner = backend.meter, make_runner(backend, [workload.task])
    steps = effort.profiled + 1
    runner.begin_epoch(workload.epoch(steps))
    rows: list[dict[Row, Cost]] = []
    for step in range(steps):
        with meter.traced() as launches, meter.queued():
            runner.step(step)
        times = [(Row(one.name, ""), Cost(1, 1, meter.microseconds(one.start, one.stop))) for one in launches]
        if step:
            rows.append(_by_row(times))
    runner.close()
    return _medians(rows)


def _cost(backend: Backend, call: OperationCall) -> tuple[Row, Cost]:
    took = backend.meter.microseconds(call.start, call.stop)
    return ROWS.get(call.name, Row(call.name, "")), Cost(1, call.launches, took, *(call.traffic or ()))


def _by_row(costs: Iterable[tuple[Row, Cost]]) -> dict[Row, Cost]:
    """Return the sum of the costs of each row."""
    several: dict[Row, list[Cost]] = {}
    for row, cost in costs:
        several.setdefault(row, []).append(cost)
    return {row: Cost(*map(sum, zip(*of, strict=True))) for row, of in several.items()}


def _medians(steps: Sequence[dict[Row, Cost]]) -> dict[Row, Cost]:
    """Return the median over steps of each row, in the order of `ROWS`, unknown ones last."""
    order = list(dict.fromkeys(ROWS.values()))
    rows = sorted(steps[0], key=lambda row: order.index(row) if row in order else len(order))
    return {row: Cost(*np.median([step[row] for step in steps], axis=0).tolist()) for row in rows}
