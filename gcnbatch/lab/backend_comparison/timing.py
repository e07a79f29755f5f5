"""Timing of training and inference on a backend: several repetitions after warm-up, median and percentiles."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gcnbatch.backends.base import Backend, MemberEpoch, Runner
from gcnbatch.data.graphs import Int64
from gcnbatch.lab.backend_comparison.workload import Effort, Say, Workload
from gcnbatch.lab.statistics import spread
from gcnbatch.runners.choice import make_runner


def measure(backend: Backend, workload: Workload, effort: Effort, tick: Say = lambda what: None) -> dict[str, Any]:
    """Measure `backend` on `workload`. A timed step reads back only what a step needs.

    Returns
    -------
    dict
        - ``training``, ``inference``: of an epoch, and of the whole data set in the workload's batches; if only a part
          was timed, extrapolated by the number of graphs;
        - ``own_inference``: of the whole data set in the backend's own batch size; None if that is the workload's;
        - ``launches_per_step``: kernel launches of a training step with the gather of its batch; None on the host;
        - ``peak_bytes``: of a runner with its data, two training steps and two batches of inference.
    """
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
        return {
            "training": training,
            "inference": inference,
            "own_inference": _inference(backend, runner, own, effort) if own else None,
            "launches_per_step": launches,
            "peak_bytes": peak,
        }
    finally:
        runner.close()


def _training(backend: Backend, runner: Runner, workload: Workload, effort: Effort) -> dict[str, Any]:
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


def _inference(backend: Backend, runner: Runner, whole: list[Int64], effort: Effort) -> dict[str, Any]:
    for graphs in whole[: effort.warmup]:
        runner.predict([graphs])
    batches = whole[: effort.steps or None]

    def everything() -> None:
        for graphs in batches:
            runner.predict([graphs])

    return _timing(backend, everything, effort.repeats, batches, whole)


def _timing(
    backend: Backend, run: Callable[[], None], repeats: int, batches: Sequence[Int64], whole: Sequence[Int64]
) -> dict[str, Any]:
    """Return the figures of `whole` from runs of `batches`, a part of it."""
    times = []
    for _ in range(repeats):
        backend.meter.synchronize()
        start = time.perf_counter()
        run()
        backend.meter.synchronize()
        times.append(time.perf_counter() - start)
    seconds, graphs, all_graphs = np.array(times), sum(map(len, batches)), sum(map(len, whole))
    return {
        "seconds": spread(seconds * all_graphs / graphs),
        "microseconds_per_batch": spread(seconds * 1e6 / len(batches)),
        "graphs_per_second": graphs / float(np.median(seconds)),
        "timed_batches": len(batches),
        "batches": len(whole),
        "graphs": all_graphs,
        "batch_size": len(whole[0]),
        "repetitions": repeats,
    }


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
