"""Backend ``fused`` on ranks that are processes of one host: steps compared with the reference, and repeated.

Under a launcher, each rank calls ``main`` with a folder and names of cases. Rank r takes GPU r modulo their number:
processes that share a GPU take turns. Rank 0 prints a line of JSON for each case (`Found`). Without a launcher, a rank
runs alone: ``compute-sanitizer python -m tests.ranks.fused_ranks FOLDER``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gcnbatch.backend_comparison.parity import Observed, Parity, _chosen, bounds, distance, longest_sum, observe
from gcnbatch.backend_comparison.reference import ReferenceBackend, jitters
from gcnbatch.backend_comparison.workload import Effort, Workload, opened
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.registry import open_backend
from gcnbatch.config import resolve
from gcnbatch.ranks.communicator import HostCommunicator
from gcnbatch.runners.distributed import DistributedRunner
from gcnbatch.runners.fused_ranks import FusedRanksRunner
from tests.training.runs import write_set

EFFORT = Effort(parity_batches=3, parity_steps=3, samples=8)
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
        The largest error over its bound; see `worst_of`.
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


def worst_of(
    workload: Workload, found: Observed, observed: Callable[[Any], Observed], leads: bool
) -> tuple[float, str]:
    """Return the largest error over its bound, and where it is; all ranks call.

    The bounds are those of `Parity`. With statistics of all rows, the reference is one process, on rank 0. With local
    statistics it is on as many ranks: a part of one graph has almost no variance, which batch norm divides by, so no
    fixed share of an array's largest value bounds its rounding.
    """
    task = workload.task
    if task.train.sync_batch_norm and not leads:
        return 0.0, ""
    if task.train.sync_batch_norm:
        worst = max(Parity(workload, EFFORT)._deviations(found), key=lambda deviation: deviation.ratio)
        return worst.ratio, f"{worst.where}: {worst.name}"
    exact = observed(ReferenceBackend(np.float64, by_loops=True))
    moves = jitters(EFFORT.samples, longest_sum(task.model) ** 0.5)
    allowed = bounds(exact, [observed(ReferenceBackend(np.float32, by_loops=False, jitter=move)) for move in moves])
    errors = {key: distance(found[key], value) for key, value in exact.items()}
    ratios = {key: error / allowed[key] if error else 0.0 for key, error in errors.items()}
    where = max(ratios, key=ratios.__getitem__)
    return ratios[where], ": ".join(where)


def run(case: str, folder: Path, backend: Any, door: HostCommunicator, comm: Any) -> None:
    """Observe a case on all ranks, and print what was found on rank 0."""
    model, data, train = CASES[case]
    path = folder / f"{case}.h5"
    if door.rank == 0:
        write_set(path, **data)
    comm.Barrier()
    with opened(resolve({"data": {"path": str(path)}, "model": model, "train": TRAIN | train})) as workload:
        batches = _chosen(workload.batches, EFFORT.parity_batches)

        def observed(runner: Any) -> Observed:
            try:
                return observe(runner, batches, workload, EFFORT.parity_steps)
            finally:
                runner.close()

        once, again = (observed(FusedRanksRunner(backend, workload.task, door)) for _ in range(2))
        everywhere = comm.gather(once)

        def on_host(of: Any) -> Observed:
            return observed(DistributedRunner(of, workload.task, door))

        worst = worst_of(workload, once, on_host, leads=door.rank == 0)
        if door.rank == 0:
            equal = all(same(once, other) for other in everywhere)
            print(json.dumps(Found(case, *worst, equal, same(once, again))._asdict()), flush=True)


def main() -> None:
    """Run the cases of the command line, or all."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    door = HostCommunicator(comm.Dup())
    backend = open_backend("fused", comm.Get_rank() % len(loader.devices()))
    for case in sys.argv[2:] or CASES:
        run(case, Path(sys.argv[1]), backend, door, comm)


if __name__ == "__main__":
    main()
