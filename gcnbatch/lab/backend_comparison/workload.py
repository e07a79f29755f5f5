"""Workload of a comparison: a model with its data, the batches of the first epoch, and how much is run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.config import Config
from gcnbatch.data import splits, synthetic
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.runners.single import EVAL_BATCH_SIZE
from gcnbatch.runners.task import RunnerTask
from gcnbatch.training import warm_start
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fit import shuffled_batches
from gcnbatch.training.targets import Scaling

Say = Callable[[str], object]  # receives what happens, line by line


@dataclass(frozen=True)
class Effort:
    """Amount of work of a comparison.

    Parameters
    ----------
    parity_batches : int
        Batches whose gradients are compared.
    parity_steps : int
        Training steps that are compared, each from the state that the reference has before it.
    samples : int
        Float32 runs of the reference that measure the effect of rounding.
    warmup : int
        Untimed steps (and batches of inference) before each measurement.
    steps : int
        Timed training steps (and batches of inference) per repetition; 0: a whole epoch, the whole set.
    repeats : int
        Repetitions; the report shows medians.
    profiled : int
        Steps in which each operation is timed.
    """

    parity_batches: int = 3
    parity_steps: int = 4
    samples: int = 16
    warmup: int = 10
    steps: int = 50
    repeats: int = 5
    profiled: int = 10


QUICK = Effort(parity_batches=2, parity_steps=3, warmup=2, steps=5, repeats=2, profiled=2)


@dataclass(frozen=True)
class Workload:
    """A model on its data.

    Parameters
    ----------
    experiment : Experiment
    task : RunnerTask
        On the training rows of the split, or of the first fold if the configuration has folds.
    batches : list of int64 arrays
        The first epoch's batches of graph numbers.
    inference : list of int64 arrays
        All graphs of the set in batches of `train.eval_batch_size`, or of 200.
    split : Split
    scaling : Scaling
        Scaling of the targets.
    """

    experiment: Experiment
    task: RunnerTask
    batches: list[Int64]
    inference: list[Int64]
    split: Split
    scaling: Scaling

    @property
    def learning_rate(self) -> float:
        """Learning rate of the first epoch."""
        return self.task.train.learning_rate

    def repeated(self, steps: int) -> list[Int64]:
        """Return the batches of `steps` steps: the epoch's, from the start again where it is shorter."""
        return [self.batches[index % len(self.batches)] for index in range(steps)]

    def epoch(self, steps: int, first: int = 0) -> list[MemberEpoch]:
        """Return an epoch of `steps` steps for `Runner.begin_epoch`."""
        return [MemberEpoch(0, self.repeated(steps), self.learning_rate, first)]

    def to_json(self) -> dict[str, Any]:
        """Return facts about the data for the report: name, size, digest, batches."""
        experiment = self.experiment
        source, path = experiment.config.data, experiment.dataset.path
        return {
            "path": f"generated: {source.synthetic}" if source.synthetic else str(path.resolve()),
            "sha256": experiment.fingerprint,
            "name": experiment.header.name,
            "level": experiment.header.level,
            "graphs": experiment.source.n_graphs,
            "nodes": int(experiment.source.node_ptr[-1]),
            "training_graphs": sum(map(len, self.batches)),
            "batch_size": self.task.train.batch_size,
            "steps_per_epoch": len(self.batches),
            "inference_batch_size": len(self.inference[0]),
            "parameters": self.task.model.layout().count(),
        }


@contextmanager
def opened(config: Config) -> Iterator[Workload]:
    """Open (or generate) the data of `config` and build what is compared.

    Raises
    ------
    InputError
        When there is no data, or data and configuration do not fit.
    """
    with ExitStack() as stack:
        path = Path(config.data.path)
        if config.data.synthetic:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / f"{config.data.synthetic}.h5"
            synthetic.write(config.data.synthetic, path)
        elif not config.data.path:
            raise InputError(
                "data.path", "empty", "a data set", "Give --data FILE.h5, or set data.path in the configuration."
            )
        dataset = stack.enter_context(Dataset(path, config.data.memory_mb))
        experiment = Experiment(config, dataset, warm_start.weights(config, dataset.header))
        about = (config.split, config.seed, experiment.split_rows)
        split = splits.make_splits(*about)[0]
        task, scaling = experiment.task(split)
        train, everything = config.train, experiment.source.n_graphs
        size = train.eval_batch_size or EVAL_BATCH_SIZE
        yield Workload(
            experiment,
            task,
            shuffled_batches(experiment.source.graphs_of(split.train), train.batch_size, config.seed, epoch=0),
            np.split(np.arange(everything, dtype=np.int64), range(size, everything, size)),
            split,
            scaling,
        )
