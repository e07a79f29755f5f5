"""Time training steps, batch assembly and prediction of a configuration and print a JSON row per backend.

    python benchmarks/training_step.py configs/tox21.toml tox21.h5 [--backends cpu,batched] [--set key=value]…

Each figure is the median of 5 repetitions after a warm-up. A row has:

- ``step_us``: wall time per step of up to 100 steps, with one wait for the device at their end; ``launches`` per step;
- ``epoch_us``: wall time per step of a whole epoch, at most 1,024 steps, with its plan, its upload and the loss read
  back;
- ``device_us``, ``epoch_device_us``: device time per step, over up to 32 steps and over up to 127 steps after the first
  of an epoch; steps are queued before they run, as far as the queue reaches;
- ``inference_graphs_per_s`` in batches of 200, and ``inference_at_once_graphs_per_s`` of the whole set (at most 16,384
  graphs) in one batch, both with plan, upload and download, of other graphs than those before or in another order;
- ``inference_again_graphs_per_s`` of the whole set when it was predicted last, as in the validation of each epoch;
- ``first_step_s``: from the start of the process ``gcnbatch train`` to the end of its first step.

``nonbatched`` runs 30 steps instead of these numbers. An epoch of one batch is repeated 100 times. The first row
is the host's: opening and checking the file, assembling a batch, and ``gcnbatch --help`` as a process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from shared import REPEATS, Epochs, config_of, emit, median_seconds, options_of_training, task_of

from gcnbatch import environment
from gcnbatch.backends.base import Runner
from gcnbatch.backends.registry import open_backend
from gcnbatch.data.store import Dataset
from gcnbatch.runners.choice import make_runner
from gcnbatch.runners.task import RunnerTask
from gcnbatch.training.experiment import Experiment

FIRST_STEP = """
import importlib.util, os, sys, time

class Watch:
    def find_spec(self, name, path, target=None):
        if name != "gcnbatch.runners.choice":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            make = module.make_runner

            def make_runner(backend, tasks):
                made = make(backend, tasks)
                step = made.step

                def first_step(index):
                    step(index)
                    backend.meter.synchronize()
                    print(time.time(), flush=True)
                    os._exit(0)

                made.step = first_step
                return made

            module.make_runner = make_runner

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Watch())
from gcnbatch.cli.app import main
main()
"""  # runs the command with its own order of imports and exits after the first step
STEPS, EPOCH_STEPS, IN_A_ROW, QUEUED_STEPS, NONBATCHED_STEPS = 100, 1024, 32, 128, 30  # at most
SMALL, AT_ONCE = 200, 16_384  # graphs in a batch of predictions


def host_row(path: str, experiment: Experiment, batches: list[Any]) -> dict[str, float]:
    """Time the host's work before a step, and the start of the command."""
    source = experiment.source

    def assemble() -> None:
        for graphs in batches[:STEPS]:
            source.batch(graphs)

    command = [sys.executable, "-m", "gcnbatch", "--help"]
    return {
        "open_and_check_s": median_seconds(lambda: Dataset(path).close()),
        "assembly_us": median_seconds(assemble) / len(batches[:STEPS]) * 1e6,
        "help_s": median_seconds(lambda: subprocess.run(command, check=True, capture_output=True)),
    }


def first_step_s(backend: str, arguments: list[str]) -> float:
    """Return the seconds from the start of ``gcnbatch train`` to the end of its first step, all caches warm."""

    def start() -> float:
        with tempfile.TemporaryDirectory() as folder:
            options = ["--backend", backend, "-o", f"{folder}/run", "--quiet"]
            began = time.time()
            command = [sys.executable, "-c", FIRST_STEP, "train", *arguments, *options]
            return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) - began

    start()
    return float(np.median([start() for _ in range(REPEATS)]))


def backend_row(name: str, task: RunnerTask, batches: list[Any], n_graphs: int, options: Any) -> dict[str, Any]:
    """Time training steps and inference on one backend."""
    backend = open_backend(name, options=options)
    runner, meter = make_runner(backend, [task]), backend.meter
    epochs = Epochs(runner, meter, task.train.learning_rate)
    epoch = batches[: NONBATCHED_STEPS if name == "nonbatched" else EPOCH_STEPS]
    steps, in_a_row = epoch[:STEPS], epoch[: 1 + IN_A_ROW]
    row: dict[str, Any] = {"backend": name, "step_us": epochs.wall_us([steps], meter.synchronize)}
    before = meter.launches
    epochs.run([steps], meter.synchronize)
    row["launches"] = (meter.launches - before) / len(steps)
    row["epoch_us"] = epochs.wall_us([epoch], runner.take_losses)
    if meter.clock == "device":
        parts = (in_a_row, epoch[:QUEUED_STEPS])
        row["device_us"], row["epoch_device_us"] = (epochs.device_us([part]) for part in parts)
    everything = np.array_split(np.arange(n_graphs), max(n_graphs // SMALL, 1))
    row["inference_graphs_per_s"] = graphs_per_s(runner, everything[: 10 if name == "nonbatched" else None])
    at_once = np.arange(min(n_graphs, AT_ONCE))
    row["inference_at_once_graphs_per_s"] = graphs_per_s(runner, [at_once, at_once[::-1].copy()])
    row["inference_again_graphs_per_s"] = graphs_per_s(runner, [at_once])
    runner.close()
    return row


def graphs_per_s(runner: Runner, batches: list[Any]) -> float:
    """Return the graphs a second that are predicted in these batches."""

    def predict() -> None:
        for graphs in batches:
            runner.predict([graphs])

    predict()
    return sum(map(len, batches)) / median_seconds(predict)


def main() -> None:
    """Print the rows."""
    parser = options_of_training(__doc__)
    parser.add_argument("--backends", default="cpu")
    given = parser.parse_args()
    config = config_of(given)
    arguments = [given.config, "--data", given.data]
    arguments += [argument for text in given.assignments for argument in ("--set", text)]
    experiment, task, rows_of_training = task_of(config, given.data)
    order = np.random.default_rng(0).permutation(rows_of_training)
    size = config.train.batch_size
    batches = np.split(order, range(size, len(order), size))
    if len(batches) == 1:
        batches *= STEPS
    about = {"config": config.name, "commit": environment.commit(), "cpu": environment.cpu_model()}
    rows = [host_row(given.data, experiment, batches)]
    for name in given.backends.split(","):
        row = backend_row(name, task, batches, experiment.source.n_graphs, config.cuda)
        rows.append({**row, "first_step_s": first_step_s(name, arguments)})
    for row in rows:
        emit({**row, **about})


if __name__ == "__main__":
    main()
