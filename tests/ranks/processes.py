"""Ranks that are processes of one host: their steps compared with the reference, and repeated.

Under a launcher, each rank calls ``main`` with a backend, a folder and names of cases. Rank r takes GPU r modulo their
number: processes that share a GPU with backend ``fused`` take turns. Rank 0 prints a line of JSON for each case
(`Found`). Without a launcher, a rank runs alone: ``compute-sanitizer python -m tests.ranks.processes fused FOLDER``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gcnbatch.backends.registry import entry, open_backend
from gcnbatch.config import resolve
from gcnbatch.lab.backend_comparison.parity import Observed, Parity
from gcnbatch.lab.backend_comparison.workload import Effort, opened
from gcnbatch.ranks.communicator import HostCommunicator
from gcnbatch.runners.distributed import DistributedRunner
from gcnbatch.runners.task import RunnerTask
from tests.ranks.one_graph import one_graph, write_reddit
from tests.training.runs import write_set

EFFORT = Effort(parity_batches=3, parity_steps=3)
ONE_GRAPH = "one graph"  # what backend ``fused`` does not share among ranks
STEPS = "from tests.ranks.processes import main; main()"
TRAIN = {"batch_size": 12, "weight_decay": 0.01}  # the last batch has 8 graphs


class Case(NamedTuple):
    """A model, options of `write_set`, and a section [train]."""

    model: dict[str, Any]
    data: dict[str, Any]
    train: dict[str, Any]


CASES = {
    "clustered readout": Case({"widths": [64, 64]}, {}, {}),
    "several tiles, dropout": Case(
        {"widths": [128, 96, 128], "dropout": 0.3}, {"n_graphs": 60, "max_nodes": 60}, {"batch_size": 40}
    ),
    "odd widths, head, dropout": Case(
        {"widths": [8, 7], "dense": [8], "head": [6], "dropout": 0.3, "readout": ["sum", "max"]}, {"n_channels": 2}, {}
    ),
    "classes, clipped": Case({"widths": [32, 32]}, {"target": "multiclass"}, {"clip_norm": 0.1}),
    "values, no norm": Case(
        {"widths": [40, 24], "norm": "none"}, {"target": "regression"}, {"optimizer": "sgd", "momentum": 0.9}
    ),
    "one layer": Case({"widths": [64]}, {}, {}),
    "local statistics": Case({"widths": [64, 64]}, {}, {"sync_batch_norm": False}),
    "local statistics, clipped": Case({"widths": [33, 64]}, {}, {"sync_batch_norm": False, "clip_norm": 0.1}),
}


class Found(NamedTuple):
    """What was found of a case.

    Parameters
    ----------
    case : str
    ratio : float
        The largest error over its bound.
    where : str
        Where that is.
    equal, repeats : bool
        Whether all ranks have equal bits, and a second runner of the same ranks.
    """

    case: str
    ratio: float
    where: str
    equal: bool
    repeats: bool


def same(one: Observed, other: Observed) -> bool:
    """Return whether two observations are equal to the bit."""
    return one.keys() == other.keys() and all(np.array_equal(value, other[key]) for key, value in one.items())


def run(name: str, path: Path, backend: Any, communicator: HostCommunicator, comm: Any) -> None:
    """Observe a case on all ranks, and print what was found on rank 0."""
    if communicator.rank == 0:
        if name == ONE_GRAPH:
            write_reddit(path, 0.1 if entry(backend.name).on_gpu else 0.002)
        else:
            write_set(path, **CASES[name].data)
    comm.Barrier()
    with held_to(name, path, communicator) as (parity, task):
        runners = (entry(backend.name).ranks.make_runner(backend, task, communicator) for _ in range(2))
        once, again = map(parity.observe, runners)
        everywhere = comm.gather(once)
        if communicator.rank == 0:
            worst = max(parity.deviations(once), key=lambda deviation: deviation.ratio)
            equal = all(same(once, other) for other in everywhere)
            found = Found(name, worst.ratio, f"{worst.where}: {worst.name}", equal, same(once, again))
            print(json.dumps(found._asdict()), flush=True)


@contextmanager
def held_to(name: str, path: Path, communicator: HostCommunicator) -> Iterator[tuple[Parity, RunnerTask]]:
    """Yield the reference's runs and the task of a case.

    With statistics of all rows, the reference is one process. With local statistics it is on as many ranks.
    """
    if name == ONE_GRAPH:
        with one_graph(resolve({"data": {"path": str(path)}, "model": {"kind": "kipf"}})) as graph:
            yield graph.parity, graph.on_ranks
        return
    model, _, train = CASES[name]
    with opened(resolve({"data": {"path": str(path)}, "model": model, "train": TRAIN | train})) as workload:
        task = workload.task
        local = None if task.train.sync_batch_norm else lambda of: DistributedRunner(of, task, communicator)
        yield Parity(workload, EFFORT, runner=local), task


def main() -> None:
    """Run the cases of the command line, or all."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    name, folder, *cases = sys.argv[1:]
    device = 0
    if entry(name).on_gpu:
        from gcnbatch.backends.cuda.runtime import loader

        device = comm.Get_rank() % len(loader.devices())
    communicator, backend = HostCommunicator(comm.Dup()), open_backend(name, device)
    for case in cases or [*CASES, *([] if name == "fused" else [ONE_GRAPH])]:
        run(case, Path(folder) / f"{case}.h5", backend, communicator, comm)


if __name__ == "__main__":
    main()
