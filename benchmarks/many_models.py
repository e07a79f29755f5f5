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
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from shared import Epochs, config_of, emit, median_seconds, options_of_training, task_of

from gcnbatch import environment
from gcnbatch.backends.registry import open_backend
from gcnbatch.runners.choice import make_runner
from gcnbatch.runners.task import RunnerTask

STEPS, PREDICTED = 126, 800


def warm_median_seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call after one that is not timed, in seconds."""
    call()
    return median_seconds(call)


def row(backend: Any, task: RunnerTask, rows: Any, size: int, models: int) -> dict[str, Any]:
    """Time a cohort of `models` models."""
    tasks = [replace(task, seed=task.seed + member) for member in range(models)]
    before, start = backend.device.memory().free, time.perf_counter()
    cohort = make_runner(backend, tasks)
    made = time.perf_counter() - start
    orders = [np.random.default_rng(member).permutation(rows) for member in range(models)]
    batches = [np.split(order, range(size, len(order), size))[:STEPS] for order in orders]
    epochs = Epochs(cohort, backend.meter, task.train.learning_rate)
    found: dict[str, Any] = {"models": models, "make_s": made}
    found["step_us"] = epochs.wall_us(batches, cohort.take_losses) / models
    found["device_us"] = epochs.device_us(batches) / models
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
