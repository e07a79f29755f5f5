"""What the programs of this folder share: options of a configured training, medians of times, rows of JSON."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import numpy as np

from gcnbatch.backends.base import MemberEpoch, Meter, Runner
from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import parse_assignment, put, read_toml
from gcnbatch.data.splits import make_split
from gcnbatch.data.store import Dataset
from gcnbatch.errors import GcnbatchError
from gcnbatch.runners.task import RunnerTask
from gcnbatch.training.experiment import Experiment

REPEATS = 5


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is a program's docstring."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def options_of_training(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a program that takes a configuration, a data set and ``--set``; see `config_of`."""
    parser = options(description)
    parser.add_argument("config")
    parser.add_argument("data")
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="KEY=VALUE")
    return parser


def config_of(given: argparse.Namespace, **keys: Any) -> Config:
    """Return the configuration that the options name, with these keys of its top level."""
    tree = {**read_toml(given.config), **keys}
    put(tree, ("data", "path"), given.data)
    for text in given.assignments:
        put(tree, *parse_assignment(text))
    return resolve(tree)


def task_of(config: Config, data: str) -> tuple[Experiment, RunnerTask, Any]:
    """Return the experiment on a data set, the task of its first split, and the graphs of the training rows."""
    experiment = Experiment(config, Dataset(data))
    split = make_split(config.split, config.seed, experiment.split_rows)
    task, _ = experiment.task(split)
    return experiment, task, experiment.source.graphs_of(split.train)


def median_seconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of a call, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


class Epochs:
    """Epochs of a cohort, one after the other, as the training loop runs them.

    `batches` are those of each member; figures are microseconds of a step of the cohort.
    """

    def __init__(self, cohort: Runner, meter: Meter, learning_rate: float) -> None:
        self._cohort, self._meter, self._rate, self._numbers = cohort, meter, learning_rate, count()

    def _begin(self, batches: Sequence[Sequence[Any]]) -> None:
        number = next(self._numbers)
        self._cohort.begin_epoch([MemberEpoch(number, own, self._rate) for own in batches])

    def run(self, batches: Sequence[Sequence[Any]], end: Callable[[], object]) -> None:
        """Train an epoch of these batches and call `end`."""
        self._begin(batches)
        for index in range(len(batches[0])):
            self._cohort.step(index)
        self._cohort.expect(batches)
        end()

    def wall_us(self, batches: Sequence[Sequence[Any]], end: Callable[[], object]) -> float:
        """Return the wall time of a step."""
        self.run(batches, end)
        return median_seconds(lambda: self.run(batches, end)) / len(batches[0]) * 1e6

    def device_us(self, batches: Sequence[Sequence[Any]]) -> float:
        """Return the device time of a step, without the first step, which uploads the epoch."""
        times, steps = [], len(batches[0])
        for hold in (nullcontext(), *(self._meter.queued() for _ in range(REPEATS))):  # the first captures CUDA graphs
            self._begin(batches)
            self._cohort.step(0)
            self._cohort.take_losses()  # launches every step that waits to be batched into a graph launch
            with hold:
                start = self._meter.mark()
                for index in range(1, steps):
                    self._cohort.step(index)
                stop = self._meter.mark()
            times.append(self._meter.microseconds(start, stop) / (steps - 1))
        return float(np.median(times[1:]))


def emit(row: dict[str, Any], digits: int = 3) -> None:
    """Print a row as JSON, with rounded figures."""
    rounded = {name: round(value, digits) if isinstance(value, float) else value for name, value in row.items()}
    print(json.dumps(rounded), flush=True)


def run(main: Callable[[], None]) -> None:
    """Run a program; an error of the machine or the input is one line, also on ranks, which all end."""
    try:
        main()
    except GcnbatchError as error:
        os.write(2, f"error: {error}\n".encode())
        os._exit(error.exit_code)  # MPI would wait for the others


def end(ranks: Any) -> None:
    """End a program on all ranks together: those that have ended must not look lost to the others."""
    if ranks is None:
        return
    ranks.data.Barrier()
    if ranks.rank == 0:
        ranks.end(0)
    else:
        ranks.follow()
