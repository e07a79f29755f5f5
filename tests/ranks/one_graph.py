"""One graph on several ranks, held to the reference: what each rank computes of predictions and steps.

Every step begins with the reference's state (`gcnbatch.lab.backend_comparison.parity`). No rounding decides a ReLU:
hidden layers have columns of weights of one sign on features that are not negative, and norms shift theirs by `SHIFT`.
In a graph of thousands of nodes some inputs of a ReLU are else within rounding of 0, on one processor and not on
another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import scipy.sparse as sp

from gcnbatch.backends.base import Runner
from gcnbatch.config import Config
from gcnbatch.data import synthetic
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graph_part import GraphPart, read_part
from gcnbatch.data.store import Dataset
from gcnbatch.lab.backend_comparison.parity import Observed, Parity
from gcnbatch.lab.backend_comparison.workload import Effort, opened
from gcnbatch.ranks.communicator import Communicator
from gcnbatch.runners.task import RunnerTask
from gcnbatch.training.experiment import Experiment

EFFORT = Effort(parity_batches=1, parity_steps=2, samples=8)
SHIFT = 8.0  # standard deviations
GRAPH, ROWS = np.array([0]), np.array([5, 40, 3, 5])


class OneGraphParity(Parity):
    """Parity of predictions, too: of all rows, and of `ROWS`."""

    def observe(self, runner: Runner) -> Observed:
        found = {
            ("predictions", "all rows"): runner.predict([GRAPH])[0],
            ("predictions", "some rows"): runner.predict([GRAPH], [ROWS])[0],
        }
        return found | super().observe(runner)


class OneGraph(NamedTuple):
    """A task on one graph.

    Parameters
    ----------
    parity : Parity
        The reference's runs.
    task, on_ranks : RunnerTask
        That of one process, and that of ranks, of which each reads its part.
    """

    parity: Parity
    task: RunnerTask
    on_ranks: RunnerTask

    def assert_agrees(self, found: Observed) -> None:
        """Compare what a runner computed with the reference."""
        assert_agrees(self.parity, found)


def assert_agrees(parity: Parity, found: Observed) -> None:
    """Compare what a runner computed with the reference."""
    worst = max(parity.deviations(found), key=lambda deviation: deviation.ratio)
    assert worst.agrees, worst


@contextmanager
def one_graph(config: Config) -> Iterator[OneGraph]:
    """Open the data set of one graph that `config` names, and run the reference."""
    with opened(config) as workload:
        experiment = workload.experiment
        shared = Experiment(experiment.config, experiment.dataset, on_ranks=True)
        task, on_ranks = steady(workload.task), steady(shared.task(workload.split)[0])
        yield OneGraph(OneGraphParity(replace(workload, task=task), EFFORT), task, on_ranks)


def steady(task: RunnerTask) -> RunnerTask:
    """Return the task with initial weights of which three of four columns are positive, and shifted norms."""
    initial = {}
    for name, value in task.model.layout().initial(task.seed).items():
        sign = np.where(np.arange(value.shape[-1]) % 4, 1, -1).astype(np.float32)
        if name.startswith("conv") and name.endswith(".weight"):
            initial[name] = np.abs(value) * sign
        elif name.endswith(".beta"):
            initial[name] = np.float32(SHIFT) * sign
    return replace(task, initial=initial)


def write_reddit(path: Path, scale: float) -> Path:
    """Write a graph of Reddit's shape, whose features are not negative."""
    synthetic.write("reddit", path, scale=scale)
    with h5py.File(path, "r+") as file:
        file["nodes/x"][...] = np.abs(file["nodes/x"][...])
    return path


def pattern_of_graph(dataset: Dataset) -> sp.csr_array:
    """Return where the set's one graph has entries, as ones, shape (N, N)."""
    forward = BatchSource(dataset.load()).batch(GRAPH).adjacency.forward
    return sp.csr_array((np.ones(len(forward.indices)), forward.indices, forward.indptr), 2 * (forward.n_cols,))


def part_of_ones(dataset: Dataset, communicator: Communicator) -> GraphPart:
    """Return this rank's part with entries of 1, so that products of whole numbers are exact."""
    part = read_part(dataset, True, communicator)
    found = part.adjacency.of_forward
    assert found.scales is not None
    ones = tuple(np.ones_like(scale) for scale in found.scales)
    part.adjacency.of_forward = part.adjacency.of_transpose = found._replace(scales=ones)
    part.adjacency.forward.data[:] = 1
    return part
