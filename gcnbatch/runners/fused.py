"""The runners of the backend ``fused``: a form of the fused step per kind of data set."""

from __future__ import annotations

from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.runners import fused_graphs, fused_kipf
from gcnbatch.runners.task import RunnerTask


def refuses(backend: Backend, task: RunnerTask) -> str | None:
    """Return what of a task the fused step does not take, or None."""
    assert isinstance(backend, FusedBackend)
    if task.source.prepared is None:
        return "a data set that is read by slices"
    form = fused_kipf if task.source.header.level == "node" else fused_graphs
    return form.refuses(backend, task)


def make_runner(backend: Backend, task: RunnerTask) -> Runner:
    """Return the fused runner of a task that `refuses` has nothing against."""
    assert isinstance(backend, FusedBackend)
    if task.source.header.level == "node":
        return fused_kipf.FusedKipfRunner(backend, task)
    return fused_graphs.FusedGraphsRunner(backend, task)
