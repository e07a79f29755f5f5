"""Time training steps of cohorts, K models in the same launches, and print a JSON row per K.

    python benchmarks/many_models.py configs/tox21.toml tox21.h5 [--models 1,4,16,64] [--set key=value]…

Members differ in seed and in the order of their rows. Figures are medians of 5 epochs of at most 126 steps after a
warm-up, in microseconds a step **and model**:

- ``step_us``: wall time of an epoch, with its plan, its upload, and the losses read back;
- ``device_us``: device time of an epoch's steps after the first, queued before they run;
- ``predict_us``: wall time a graph and model of predictions of 800 graphs, with plan, upload and download;
  two orders of them take turns, because a cohort stages the same graphs once.

``mb`` is the device memory a model, ``make_s`` the seconds to make the cohort.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from shared import REPEATS, config_of, emit, median_seconds, options_of_training, task_of

from gcnbatch import environment
from gcnbatch.backends.base import MemberEpoch, Runner
from gcnbatch.backends.registry import open_backend
from gcnbatch.runners.choice import make_runner
from gcnbatch.runners.task import RunnerTask

STEPS, PREDICTED = 126, 800


def warm_median_seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call after one that is not timed, in seconds."""
    call()
    return median_seconds(call)


class Epochs:
    """Epochs of a cohort, one after the other, with the same batches."""

    def __init__(self, cohort: Runner, batches: Sequence[Sequence[Any]], learning_rate: float) -> None:
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
    cohort = make_runner(backend, tasks)
    made = time.perf_counter() - start
    orders = [np.random.default_rng(member).permutation(rows) for member in range(models)]
    batches = [np.split(order, range(size, len(order), size))[:STEPS] for order in orders]
    epochs = Epochs(cohort, batches, task.train.learning_rate)
    found: dict[str, Any] = {"models": models, "make_s": made}
    found["step_us"] = warm_median_seconds(epochs.run) / epochs.steps / models * 1e6
    found["device_us"] = epochs.device_us(backend.meter) / models
    found["mb"] = (before - backend.device.memory().free) / models / 2**20
    asked = [order[:PREDICTED] for order in orders]
    turns = itertools.cycle([asked, [graphs[::-1] for graphs in asked]])
    found["predict_us"] = warm_median_seconds(lambda: cohort.predict(next(turns))) / models / len(asked[0]) * 1e6
    cohort.close()
    return found


def main() -> None:
    """Print the rows."""
    parser = options_of_training(__doc__)
    parser.add_argument("--models", default="1,4,16,64")
    given = parser.parse_args()
    config = config_of(given)
    _, task, rows = task_of(config, given.data)
    backend: Any = open_backend("fused", options=config.cuda)
    for models in map(int, given.models.split(",")):
        timed = row(backend, task, rows, config.train.batch_size, models)
        emit({**timed, "config": config.name, "commit": environment.commit()})


if __name__ == "__main__":
    main()
