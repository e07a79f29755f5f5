"""Runners of backend ``fused``: one for graph-level and one for node-level data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gcnbatch.backends.base import Backend, CohortRunner, Runner
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.runners import fused_cohort, fused_graphs, fused_kipf
from gcnbatch.runners.cohort import SingleCohort
from gcnbatch.runners.task import RunnerTask


class LevelRunner(NamedTuple):
    """The check of a task and the runner for one level of data sets."""

    refuses: Callable[[FusedBackend, RunnerTask], str | None]
    runner: Callable[[FusedBackend, RunnerTask], Runner]


RUNNERS = {
    "graph": LevelRunner(fused_graphs.refuses, fused_graphs.FusedGraphsRunner),
    "node": LevelRunner(fused_kipf.refuses, fused_kipf.FusedKipfRunner),
}


def refuses(backend: Backend, task: RunnerTask) -> str | None:
    """Return the property of the task that the fused backend does not support, or None."""
    assert isinstance(backend, FusedBackend)
    if reason := unsuited(task):
        return reason
    level = task.source.header.level
    if level not in RUNNERS:
        return f"a {level}-level data set"
    return RUNNERS[level].refuses(backend, task)


def unsuited(task: RunnerTask) -> str | None:
    """Return the property of the task that no engine supports, or None."""
    if task.source.prepared is None:
        return "a data set that is read by slices"
    return "frozen layers (train.freeze)" if task.model.frozen else None


def make_runner(backend: Backend, task: RunnerTask) -> Runner:
    """Return the fused runner of a task that `refuses` accepts."""
    assert isinstance(backend, FusedBackend)
    return RUNNERS[task.source.header.level].runner(backend, task)


def cohort_size(backend: Backend, tasks: Sequence[RunnerTask]) -> int:
    """Return how many of these tasks of one architecture, from the front, train in the same launches."""
    assert isinstance(backend, FusedBackend)
    is_graphs = tasks[0].source.header.level == "graph"
    return fused_cohort.size(backend, tasks) if is_graphs and len(tasks) > 1 else 1


def make_cohort(backend: Backend, tasks: Sequence[RunnerTask]) -> CohortRunner:
    """Return the cohort of these tasks, at most `cohort_size` many."""
    assert isinstance(backend, FusedBackend)
    return SingleCohort(make_runner(backend, tasks[0])) if len(tasks) == 1 else fused_cohort.FusedCohort(backend, tasks)
