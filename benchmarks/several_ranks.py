"""Time training of one model by one process, or by ranks under a launcher, and print a JSON row.

    python benchmarks/several_ranks.py CONFIG.toml DATA.h5 [--backend fused] [--set key=value]…
    mpirun -n 2 python benchmarks/several_ranks.py …
    mpirun -n 2 python benchmarks/several_ranks.py --nccl

The row has the wall time of a step and the graphs per second: the median of 5 repetitions of up to 50 steps, with one
wait for the device at their end, after a warm-up. With `--nccl`, it has the time of an all-reduce and of a copy by
their bytes, the median of 20 between device events.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from shared import config_of, end, options, run

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.registry import entry, open_backend
from gcnbatch.config import Config
from gcnbatch.data.splits import make_split
from gcnbatch.data.store import Dataset
from gcnbatch.ranks import world
from gcnbatch.ranks.launch import launched
from gcnbatch.runners.choice import make_runner
from gcnbatch.training.experiment import Experiment

REPEATS, STEPS, CALLS = 5, 50, 20
SIZES = (1 << 10, 50 << 10, 1 << 20, 16 << 20, 256 << 20)


def time_steps(runner: Any, backend: Any, batches: list[Any]) -> list[float]:
    """Return the seconds of each repetition."""
    found = []
    for epoch in range(REPEATS + 1):
        runner.expect([batches])  # as in training, which plans an epoch beside the one before
        runner.begin_epoch([MemberEpoch(epoch, batches, 1e-3)])
        backend.meter.synchronize()
        started = time.perf_counter()
        for index in range(len(batches)):
            runner.step(index)
        runner.take_losses()
        backend.meter.synchronize()
        found.append(time.perf_counter() - started)
    return found[1:]


def train(settings: Config, name: str, ranks: Any) -> dict[str, Any]:
    """Return the figures of a configuration."""
    backend: Any = open_backend(name, ranks.device(0) if ranks else 0, settings.cuda)
    with Dataset(settings.data.path) as dataset:
        experiment = Experiment(settings, dataset, on_ranks=ranks is not None)
        split = make_split(settings.split, settings.seed, experiment.split_rows)
        task, _ = experiment.task(split)
        if ranks:
            runner = entry(backend.name).ranks.make_runner(backend, task, ranks.communicator())
        else:
            runner = make_runner(backend, [task])
        graphs, size = experiment.source.graphs_of(split.train), settings.train.batch_size
        whole = [graphs[at : at + size] for at in range(0, max(len(graphs) - size, 0) + 1, size)]
        batches = (whole * (1 + STEPS // len(whole)))[:STEPS]
        seconds = time_steps(runner, backend, batches)
        step = float(np.median(seconds)) / len(batches)
        runner.close()
    figures = {"backend": name, "batch": size, "step_us": step * 1e6, "spread_us": np.ptp(seconds) / len(batches) * 1e6}
    return figures | {"graphs_per_s": len(batches[0]) / step}


def nccl(ranks: Any) -> dict[str, Any]:
    """Return the microseconds of an all-reduce and of a copy by their bytes."""
    backend: Any = open_backend("batched", ranks.device(0))
    device, communicator = backend.device, backend.communicator(ranks.communicator())
    rows = {}
    for size in SIZES:
        one, other = device.zeros(size // 4), device.zeros(size // 4)
        calls = {"all_reduce_us": lambda one=one: communicator.all_reduce(one)}
        calls["copy_us"] = lambda one=one, other=other: device.copy(one, other)
        row = {}
        for name, call in calls.items():
            times = []
            for _ in range(CALLS + 3):
                start = backend.meter.mark()
                call()
                times.append(backend.meter.microseconds(start, backend.meter.mark()))
            row[name] = round(float(np.median(times[3:])), 1)
        rows[size] = row
    return {"bytes": rows}


def main() -> None:
    """Run the benchmark of the command line."""
    parser = options(__doc__)
    parser.add_argument("config", nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--backend", default="batched", help="fused, batched or cpu")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="KEY=VALUE")
    parser.add_argument("--nccl", action="store_true")
    given = parser.parse_args()
    here = launched()
    ranks = world.join(here, []) if here else None
    found = nccl(ranks) if given.nccl else train(config_of(given), given.backend, ranks)
    if ranks is None or ranks.rank == 0:
        about = {"ranks": ranks.size if ranks else 1, "config": given.config, "set": given.assignments}
        print(json.dumps({**about, **found}))
    end(ranks)


if __name__ == "__main__":
    run(main)
