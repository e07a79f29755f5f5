"""The runners of backend ``fused``: one for graph-level and one for node-level data sets."""

from __future__ import annotations

from collections.abc import Sequence

from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.runners import fused_graphs, fused_kipf
from gcnbatch.runners.task import RunnerTask


def refuses(backend: Backend, task: RunnerTask) -> str | None:
    """Return the property of the task that the fused backend does not support, or None."""
    assert isinstance(backend, FusedBackend)
    if reason := unsuited(task):
        return reason
    return (fused_graphs if _is_of_graphs(task) else fused_kipf).refuses(backend, task)


def unsuited(task: RunnerTask) -> str | None:
    """Return the property of the task that no engine supports, or None."""
    if task.source.prepared is None:
        return "a data set that is read by slices"
    return "frozen layers (train.freeze)" if task.model.frozen else None


def cohort_size(backend: Backend, tasks: Sequence[RunnerTask]) -> int:
    """Return how many of these tasks of one architecture, from the front, train in the same launches."""
    assert isinstance(backend, FusedBackend)
    return fused_graphs.cohort_size(backend, tasks) if _is_of_graphs(tasks[0]) else 1


def make_runner(backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
    """Return the runner of these tasks, at most `cohort_size` many."""
    assert isinstance(backend, FusedBackend)
    if _is_of_graphs(tasks[0]):
        return fused_graphs.FusedGraphsRunner(backend, tasks)
    (task,) = tasks
    return fused_kipf.FusedKipfRunner(backend, task)


def _is_of_graphs(task: RunnerTask) -> bool:
    return task.source.header.level == "graph"
