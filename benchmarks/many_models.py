"""Time training steps of cohorts, K models in the same launches, and print a JSON row per K.

    python benchmarks/many_models.py configs/tox21.toml tox21.h5 [--models 1,4,16,64] [--set key=value]…

Members differ in seed and in the order of their rows. Figures are medians of 5 epochs of at most 126 steps after a
warm-up, in microseconds a step **and model**:

- ``step_us``: wall time of an epoch, with its plan, its upload, and the losses read back;
- ``device_us``: device time of an epoch's steps after the first, queued before they run;
- ``predict_us``: wall time a graph and model of predictions of 800 graphs, with plan, upload and download.

``mb`` is the device memory a model, ``make_s`` the seconds to make the cohort.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gcnbatch import environment
from gcnbatch.backends.base import CohortRunner, MemberEpoch
from gcnbatch.backends.registry import open_backend
from gcnbatch.config import resolve
from gcnbatch.config_tree import parse_assignment, put, read_toml
from gcnbatch.data.splits import make_split
from gcnbatch.data.store import Dataset
from gcnbatch.runners.choice import make_cohort
from gcnbatch.runners.task import RunnerTask
from gcnbatch.training.experiment import Experiment

REPEATS, STEPS, PREDICTED = 5, 126, 800


def median_seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call after one that is not timed, in seconds."""
    call()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


class Epochs:
    """Epochs of a cohort, one after the other, with the same batches."""

    def __init__(self, cohort: CohortRunner, batches: Sequence[Sequence[Any]], learning_rate: float) -> None:
        self._cohort, self._batches, self._rate = cohort, batches, learning_rate
        self._numbers, self.steps = itertools.count(), len(batches[0])

    def begin(self) -> None:
        """Announce the next epoch."""
        number = next(self._numbers)
        self._cohort.begin_epoch([MemberEpoch(number, own, self._rate) for own in self._batches])

    def run(self) -> None:
        """Train an epoch as the training loop does."""
        self.begin()
        for index in range(self.steps):
            self._cohort.step(index)
        self._cohort.expect(self._batches)
        self._cohort.take_losses()

    def device_us(self, meter: Any) -> float:
        """Return the device time of a step, in us."""
        times = []
        for _ in range(REPEATS + 1):
            self.begin()
            self._cohort.step(0)
            self._cohort.take_losses()  # launches the first step
            with meter.queued():
                start = meter.mark()
                for index in range(1, self.steps):
                    self._cohort.step(index)
                stop = meter.mark()
            times.append(meter.microseconds(start, stop) / (self.steps - 1))
        return float(np.median(times[1:]))


def row(backend: Any, task: RunnerTask, rows: Any, size: int, models: int) -> dict[str, Any]:
    """Time a cohort of `models` models."""
    tasks = [replace(task, seed=task.seed + member) for member in range(models)]
    before, start = backend.device.memory().free, time.perf_counter()
    cohort = make_cohort(backend, tasks)
    made = time.perf_counter() - start
    orders = [np.random.default_rng(member).permutation(rows) for member in range(models)]
    batches = [np.split(order, range(size, len(order), size))[:STEPS] for order in orders]
    epochs = Epochs(cohort, batches, task.train.learning_rate)
    found: dict[str, Any] = {"models": models, "make_s": made}
    found["step_us"] = median_seconds(epochs.run) / epochs.steps / models * 1e6
    found["device_us"] = epochs.device_us(backend.meter) / models
    found["mb"] = (before - backend.device.memory().free) / models / 2**20
    asked = [order[:PREDICTED] for order in orders]
    found["predict_us"] = median_seconds(lambda: cohort.predict(asked)) / models / len(asked[0]) * 1e6
    cohort.close()
    return found


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("data")
    parser.add_argument("--models", default="1,4,16,64")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="KEY=VALUE")
    given = parser.parse_args()
    tree = read_toml(given.config)
    put(tree, ("data", "path"), given.data)
    for text in given.assignments:
        put(tree, *parse_assignment(text))
    config = resolve(tree)
    experiment = Experiment(config, Dataset(given.data))
    split = make_split(config.split, config.seed, experiment.split_rows)
    task, _ = experiment.task(split)
    rows = experiment.source.graphs_of(split.train)
    backend: Any = open_backend("fused", options=config.cuda)
    for models in map(int, given.models.split(",")):
        timed = row(backend, task, rows, config.train.batch_size, models)
        rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in timed.items()}
        print(json.dumps({**rounded, "config": config.name, "commit": environment.commit()}), flush=True)


if __name__ == "__main__":
    main()
