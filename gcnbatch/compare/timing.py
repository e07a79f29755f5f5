"""How long training and inference take on a backend: warm-up excluded, several repetitions, median and spread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcnbatch.backends.base import Backend, Runner
from gcnbatch.compare.workload import Effort, Say, Workload
from gcnbatch.data.graphs import Int64
from gcnbatch.runners.choice import make_runner


@dataclass(frozen=True)
class Figure:
    """Repeated measurements of one thing: all of them, in the order taken."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return float(np.median(self.values))

    def scaled(self, factor: float) -> Figure:
        """Return the same in another unit."""
        return Figure(tuple(value * factor for value in self.values))

    def to_json(self) -> dict[str, float]:
        """Return median and spread: the 20th and 80th percentile."""
        low, high = np.percentile(self.values, (20, 80))
        return {"median": self.median, "p20": float(low), "p80": float(high)}


@dataclass(frozen=True)
class Timing:
    """One pass over the data, training or inference.

    Parameters
    ----------
    seconds : Figure
        Wall time of the timed part.
    batches, graphs : int
        What the timed part held.
    all_batches, all_graphs : int
        What the whole pass holds.
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
        """Seconds of the whole pass; where only a part was timed, in proportion to its graphs."""
        return self.seconds.scaled(self.all_graphs / self.graphs)

    @property
    def per_batch(self) -> Figure:
        """Microseconds of a batch."""
        return self.seconds.scaled(1e6 / self.batches)

    def to_json(self) -> dict[str, Any]:
        """Return figures for the report."""
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
    """What a backend costs end to end.

    Parameters
    ----------
    training, inference : Timing
        An epoch; the whole data set in the workload's batches.
    own_inference : Timing or None
        The whole data set in batches of the size that the backend takes by itself, where they are others.
    launches : int or None
        Kernel launches of one training step, the gather of its batch among them; None on the host.
    peak_bytes : int
        Of a runner with its data, two training steps and two batches of inference.
    """

    training: Timing
    inference: Timing
    own_inference: Timing | None
    launches: int | None
    peak_bytes: int


def measure(backend: Backend, workload: Workload, effort: Effort, tick: Say = lambda what: None) -> Measured:
    """Measure `backend` on `workload`. Nothing is read back in a timed step but what a step needs."""
    tick("memory")
    peak = backend.meter.peak_bytes(lambda: _short_run(backend, workload))
    runner = make_runner(backend, workload.task)
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
    runner.begin_epoch(0, workload.repeated(effort.warmup), workload.learning_rate)
    for step in range(effort.warmup):
        runner.step(step)
    batches = workload.batches[: effort.steps or None]
    if len(batches) < effort.warmup:  # an epoch alone would be timed with the wait for its end
        batches = workload.repeated(effort.warmup)
    number = itertools.count(1)

    def epoch() -> None:
        runner.begin_epoch(next(number), batches, workload.learning_rate)
        for step in range(len(batches)):
            runner.step(step)

    return _timing(backend, epoch, effort.repeats, batches, workload.batches)


def _own_batches(runner: Runner, workload: Workload) -> list[Int64]:
    """Return all graphs in batches of the runner's size; nothing where they are the workload's, or a size is given."""
    graphs, size = np.concatenate(workload.inference), runner.eval_batch_size
    found = np.split(graphs, range(size, len(graphs), size))
    same = len(found[0]) == len(workload.inference[0])
    return [] if same or workload.task.train.eval_batch_size else found


def _inference(backend: Backend, runner: Runner, whole: list[Int64], effort: Effort) -> Timing:
    for graphs in whole[: effort.warmup]:
        runner.predict(graphs)
    batches = whole[: effort.steps or None]

    def everything() -> None:
        for graphs in batches:
            runner.predict(graphs)

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
    runner.begin_epoch(0, workload.repeated(2), workload.learning_rate)
    runner.step(0)
    runner.take_loss()  # no step is left waiting for company
    before = backend.meter.launches
    runner.step(1)
    return backend.meter.launches - before


def _short_run(backend: Backend, workload: Workload) -> None:
    runner = make_runner(backend, workload.task)
    try:
        runner.begin_epoch(0, workload.repeated(2), workload.learning_rate)
        for step in range(2):
            runner.step(step)
        for graphs in workload.inference[:2]:
            runner.predict(graphs)
    finally:
        runner.close()


def _count(batches: Sequence[Int64]) -> int:
    return sum(map(len, batches))
