"""Times training steps, batch assembly and inference of a configuration on one or more backends, a JSON row each.

    python benchmarks/training_step.py configs/tox21.toml tox21.h5 [--backends cpu,batched] [--set key=value]…

A row holds the median over 5 repetitions of up to 100 steps each (30 for nonbatched; on a set of one batch 100 times
that), waiting for the device only at the end of a repetition; launches per step; the time the device needs for a step
of 32 in a row when nothing waits for the host; graphs per second of inference at batch 200; and the median over 5
starts of ``gcnbatch train`` from the start of the process to the end of its first step. The first row holds what the
host does before: opening and checking the file, assembling a batch; and the start of ``gcnbatch --help`` as a process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gcnbatch import environment
from gcnbatch.backends.registry import open_backend
from gcnbatch.config import parse_assignment, put, read_toml, resolve
from gcnbatch.data.splits import make_split
from gcnbatch.data.store import Dataset
from gcnbatch.model.runner import Task, make_runner
from gcnbatch.train.experiment import Experiment

REPEATS = 5
FIRST_STEP = """
import os, time
from gcnbatch.model import runner

def make_runner(backend, task, make=runner.make_runner):
    made = make(backend, task)
    step = made.step

    def first_step(index):
        step(index)
        backend.meter.synchronize()
        print(time.time(), flush=True)
        os._exit(0)

    made.step = first_step
    return made

runner.make_runner = make_runner
from gcnbatch.cli.app import main
main()
"""  # the command, ended behind its first step
IN_A_ROW = 32  # steps that the device is timed for: as many as the backend fused replays at once


def median_seconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def host_row(path: str, experiment: Experiment, batches: list[Any]) -> dict[str, float]:
    """Time what the host does before a step, and the command's start."""
    source = experiment.source

    def assemble() -> None:
        for graphs in batches[:100]:
            source.batch(graphs)

    command = [sys.executable, "-m", "gcnbatch", "--help"]
    return {
        "open_and_check_s": median_seconds(lambda: Dataset(path).close()),
        "assembly_us": median_seconds(assemble) / len(batches[:100]) * 1e6,
        "help_s": median_seconds(lambda: subprocess.run(command, check=True, capture_output=True)),
    }


def first_step_s(backend: str, arguments: list[str]) -> float:
    """Time the command ``gcnbatch train`` from its start to the end of its first step, files and kernels cached."""

    def start() -> float:
        with tempfile.TemporaryDirectory() as folder:
            options = ["--backend", backend, "-o", f"{folder}/run", "--quiet"]
            began = time.time()
            command = [sys.executable, "-c", FIRST_STEP, "train", *arguments, *options]
            return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) - began

    start()
    return float(np.median([start() for _ in range(REPEATS)]))


def backend_row(name: str, task: Task, batches: list[Any], n_graphs: int, options: Any) -> dict[str, Any]:
    """Time training steps and inference on one backend."""
    backend = open_backend(name, options=options)
    runner, meter = make_runner(backend, task), backend.meter
    count = min(len(batches), 30 if name == "nonbatched" else 100)

    epoch = itertools.count()

    def begin(number: int) -> None:
        runner.begin_epoch(next(epoch), batches[:number], task.train.learning_rate)

    def steps(number: int) -> None:
        for index in range(number):
            runner.step(index)

    def train() -> None:
        begin(count)
        steps(count)
        meter.synchronize()

    train()
    before = meter.launches
    train()
    launches = (meter.launches - before) / count
    row = {"backend": name, "step_us": median_seconds(train) / count * 1e6, "launches": launches}
    if meter.clock == "device":
        in_a_row = min(count, IN_A_ROW)
        begin(in_a_row)  # a whole epoch, at whose end no step is left waiting for company
        with meter.queued():
            start = meter.mark()
            steps(in_a_row)
            stop = meter.mark()
        row["device_us"] = meter.microseconds(start, stop) / in_a_row
    everything = np.array_split(np.arange(n_graphs), max(n_graphs // 200, 1))[: 10 if name == "nonbatched" else None]
    graphs = sum(map(len, everything))
    row["inference_graphs_per_s"] = graphs / median_seconds(lambda: [runner.predict(part) for part in everything])
    runner.close()
    return row


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("data")
    parser.add_argument("--backends", default="cpu")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="KEY=VALUE")
    given = parser.parse_args()
    tree = read_toml(given.config)
    put(tree, ("data", "path"), given.data)
    for text in given.assignments:
        put(tree, *parse_assignment(text))
    config = resolve(tree)
    arguments = [given.config, "--data", given.data]
    arguments += [argument for text in given.assignments for argument in ("--set", text)]
    experiment = Experiment(config, Dataset(given.data))
    split = make_split(config.split, config.seed, experiment.split_rows)
    task, _ = experiment.task(split)
    order = np.random.default_rng(0).permutation(experiment.source.graphs_of(split.train))
    size = config.train.batch_size
    batches = [order[start : start + size] for start in range(0, max(len(order) - size, 0) + 1, size)]
    if len(batches) == 1:
        batches *= 100
    about = {"config": config.name, "commit": environment.commit(), "cpu": environment.cpu_model()}
    rows = [host_row(given.data, experiment, batches)]
    for name in given.backends.split(","):
        row = backend_row(name, task, batches, experiment.source.n_graphs, config.cuda)
        rows.append({**row, "first_step_s": first_step_s(name, arguments)})
    for row in rows:
        rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
        print(json.dumps({**rounded, **about}), flush=True)


if __name__ == "__main__":
    main()
