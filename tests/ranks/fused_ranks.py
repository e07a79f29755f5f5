"""Training of backend ``fused`` on ranks that are processes of one host, compared with the reference and repeated.

Under a launcher, each rank runs ``python -m tests.ranks.fused_ranks FOLDER CASE…``. Rank r takes GPU r modulo their
number: processes that share a GPU take turns. Rank 0 prints a line of JSON for each case (`Found`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gcnbatch.backend_comparison.parity import Observed, Parity, observe
from gcnbatch.backend_comparison.workload import Effort, Workload, opened
from gcnbatch.backends.cpu import CpuBackend
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.registry import open_backend
from gcnbatch.config import resolve
from gcnbatch.ranks.communicator import HostCommunicator
from gcnbatch.runners.distributed import DistributedRunner
from gcnbatch.runners.fused_ranks import FusedRanksRunner
from tests.training.runs import write_set

EFFORT = Effort(parity_batches=3, parity_steps=3, samples=8)


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
        The largest error over its bound; with local statistics, over 1e-4 of the largest value, from the operations of
        the host on as many ranks.
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
    return one.keys() == other.keys() and all(np.array_equal(value, other[key]) for key, value in one.items())


def worst_of(workload: Workload, parity: Parity, found: Observed, on_host: Observed) -> tuple[float, str]:
    """Return the largest ratio and where it is."""
    if workload.task.train.sync_batch_norm:
        worst = max(parity._deviations(found), key=lambda deviation: deviation.ratio)
        return worst.ratio, f"{worst.where}: {worst.name}"
    errors = {
        key: float(np.abs(found[key] - value).max() / (1e-4 * max(np.abs(value).max(), 1e-30)))
        for key, value in on_host.items()
    }
    where = max(errors, key=errors.__getitem__)
    return errors[where], ": ".join(where)


def run(case: str, folder: Path, backend: Any, door: HostCommunicator, comm: Any) -> None:
    """Observe a case on all ranks, and print what was found on rank 0."""
    model, data, train = CASES[case]
    path = folder / f"{case}.h5"
    if door.rank == 0:
        write_set(path, **data)
    comm.Barrier()
    train = {"batch_size": 12, "weight_decay": 0.01, **train}
    with opened(resolve({"data": {"path": str(path)}, "model": model, "train": train})) as workload:
        parity = Parity(workload, EFFORT)

        def observed(runner: Any) -> Observed:
            return observe(runner, parity.batches, workload, EFFORT.parity_steps)

        once, again = (observed(FusedRanksRunner(backend, workload.task, door)) for _ in range(2))
        on_host = observed(DistributedRunner(CpuBackend(), workload.task, door))
        everywhere = comm.gather(once)
        if door.rank == 0:
            equal = all(same(once, other) for other in everywhere)
            print(
                json.dumps(Found(case, *worst_of(workload, parity, once, on_host), equal, same(once, again))._asdict())
            )
            sys.stdout.flush()


def main() -> None:
    """Run the cases of the command line."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    door = HostCommunicator(comm.Dup())
    backend = open_backend("fused", comm.Get_rank() % len(loader.devices()))
    for case in sys.argv[2:] or CASES:
        run(case, Path(sys.argv[1]), backend, door, comm)


if __name__ == "__main__":
    main()
