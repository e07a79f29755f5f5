"""Timing of training and inference on a backend: several repetitions after warm-up, median and percentiles."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcnbatch.backends.base import Backend, MemberEpoch, Runner
from gcnbatch.data.graphs import Int64
from gcnbatch.lab.backend_comparison.workload import Effort, Say, Workload
from gcnbatch.runners.choice import make_runner


@dataclass(frozen=True)
class Figure:
    """Repeated measurements of one quantity, in the order taken."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the values."""
        return float(np.median(self.values))

    def scaled(self, factor: float) -> Figure:
        """Return the values multiplied by `factor`."""
        return Figure(tuple(value * factor for value in self.values))

    def to_json(self) -> dict[str, float]:
        """Return the median and the 20th and 80th percentiles."""
        low, high = np.percentile(self.values, (20, 80))
        return {"median": self.median, "p20": float(low), "p80": float(high)}


@dataclass(frozen=True)
class Timing:
    """Timing of training or inference on the data set.

    Parameters
    ----------
    seconds : Figure
        Wall time of the timed part.
    batches, graphs : int
        Size of the timed part.
    all_batches, all_graphs : int
        Size of the whole epoch or data set.
    batch_size : int
        Graphs of a full batch.
    """

    seconds: Figure
    batches: int
    graphs: int
    all_batches: int
    all_graphs: int
    batch_size: int

    @property
    def whole(self) -> Figure:
        """Seconds of the whole epoch or data set, extrapolated by the number of graphs if only a part was timed."""
        return self.seconds.scaled(self.all_graphs / self.graphs)

    @property
    def per_batch(self) -> Figure:
        """Microseconds of a batch."""
        return self.seconds.scaled(1e6 / self.batches)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the report."""
        return {
            "seconds": self.whole.to_json(),
            "microseconds_per_batch": self.per_batch.to_json(),
            "graphs_per_second": self.graphs / self.seconds.median,
            "timed_batches": self.batches,
            "batches": self.all_batches,
            "graphs": self.all_graphs,
            "batch_size": self.batch_size,
            "repetitions": len(self.seconds.values),
        }


@dataclass(frozen=True)
class Measured:
    """End-to-end cost of a backend.

    Parameters
    ----------
    training, inference : Timing
        Of an epoch, and of the whole data set in the workload's batches.
    own_inference : Timing or None
        Of the whole data set in the backend's own batch size, if that differs.
    launches : int or None
        Kernel launches of one training step, including the gather of its batch; None on the host.
    peak_bytes : int
        Peak of a runner with its data, two training steps and two batches of inference.
    """

    training: Timing
    inference: Timing
    own_inference: Timing | None
    launches: int | None
    peak_bytes: int


def measure(backend: Backend, workload: Workload, effort: Effort, tick: Say = lambda what: None) -> Measured:
    """Measure `backend` on `workload`. A timed step reads back only what a step needs."""
    tick("memory")
    peak = backend.meter.peak_bytes(lambda: _short_run(backend, workload))
    runner = make_runner(backend, [workload.task])
    try:
        tick("training")
        training = _training(backend, runner, workload, effort)
        launches = _launches(backend, runner, workload)
        tick("inference")
        inference = _inference(backend, runner, workload.inference, effort)
        own = _own_batches(runner, workload)
        own_inference = _inference(backend, runner, own, effort) if own else None
        return Measured(training, inference, own_inference, launches, peak)
    finally:
        runner.close()


def _training(backend: Backend, runner: Runner, workload: Workload, effort: Effort) -> Timing:
    runner.begin_epoch(workload.epoch(effort.warmup))
    for step in range(effort.warmup):
        runner.step(step)
    batches = workload.batches[: effort.steps or None]
    if len(batches) < effort.warmup:  # a short epoch would mainly measure the wait for its end
        batches = workload.repeated(effort.warmup)
    number = itertools.count(1)

    def epoch() -> None:
        runner.begin_epoch([MemberEpoch(next(number), batches, workload.learning_rate)])
        for step in range(len(batches)):
            runner.step(step)

    return _timing(backend, epoch, effort.repeats, batches, workload.batches)


def _own_batches(runner: Runner, workload: Workload) -> list[Int64]:
    """Return all graphs in batches of the runner's size; none if that is the workload's size, or a size is given."""
    graphs, size = np.concatenate(workload.inference), runner.eval_batch_size
    found = np.split(graphs, range(size, len(graphs), size))
    same = len(found[0]) == len(workload.inference[0])
    return [] if same or workload.task.train.eval_batch_size else found


def _inference(backend: Backend, runner: Runner, whole: list[Int64], effort: Effort) -> Timing:
    for graphs in whole[: effort.warmup]:
        runner.predict([graphs])
    batches = whole[: effort.steps or None]

    def everything() -> None:
        for graphs in batches:
            runner.predict([graphs])

    return _timing(backend, everything, effort.repeats, batches, whole)


def _timing(
    backend: Backend, run: Callable[[], None], repeats: int, batches: Sequence[Int64], whole: Sequence[Int64]
) -> Timing:
    seconds = []
    for _ in range(repeats):
        backend.meter.synchronize()
        start = time.perf_counter()
        run()
        backend.meter.synchronize()
        seconds.append(time.perf_counter() - start)
    sizes = (len(batches), _count(batches), len(whole), _count(whole), len(whole[0]))
    return Timing(Figure(tuple(seconds)), *sizes)


def _launches(backend: Backend, runner: Runner, workload: Workload) -> int | None:
    if backend.meter.clock == "host":
        return None
    runner.begin_epoch(workload.epoch(2))
    runner.step(0)
    runner.take_losses()  # launches any step that the runner still holds to batch with others
    before = backend.meter.launches
    runner.step(1)
    return backend.meter.launches - before


def _short_run(backend: Backend, workload: Workload) -> None:
    runner = make_runner(backend, [workload.task])
    try:
        runner.begin_epoch(workload.epoch(2))
        for step in range(2):
            runner.step(step)
        for graphs in workload.inference[:2]:
            runner.predict([graphs])
    finally:
        runner.close()


def _count(batches: Sequence[Int64]) -> int:
    return sum(map(len, batches))
