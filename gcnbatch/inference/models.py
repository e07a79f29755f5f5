"""The models of an ensemble, one per run or member of a run: loading, outputs, and their mean and deviation."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcnbatch import metrics
from gcnbatch.backends.base import Runner
from gcnbatch.config_sections import TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.inference.parts import Reading
from gcnbatch.model.gcn import Loss, uniform_weights
from gcnbatch.model.predict import predict_rows
from gcnbatch.moments import in_units, unit_of
from gcnbatch.runners.choice import BackendChoice, cohort_size, make_runner
from gcnbatch.runners.cohort import group
from gcnbatch.runners.task import RunnerTask, no_targets
from gcnbatch.text import counted
from gcnbatch.training.reports import METRICS
from gcnbatch.training.run_files import CONFIG
from gcnbatch.training.trained import Trained, check_fit, model_folders, read_trained


@dataclass(frozen=True)
class Model(Trained):
    """A trained model that predicts."""

    @property
    def reading(self) -> Reading:
        """How it reads graphs."""
        return Reading(self.adjacency, self.joins_graph_features)

    def outputs(
        self, choice: BackendChoice, source: BatchSource, batch_size: int, progress: Callable[[int], object]
    ) -> tuple[NDArray[np.floating], str]:
        """Return outputs (R, K) for all rows of `source`, and the name of the backend that computed them.

        Outputs are probabilities, or values in the targets' unit; NaN in rows whose logits are not finite, and in tasks
        that training left out.
        """
        with choice.runner(self.task(source)) as runner:
            return _outputs([self], runner, source, batch_size, progress)[0], runner.backend

    def task(self, source: BatchSource) -> RunnerTask:
        """Return the task to predict all rows of `source`."""
        loss = Loss(self.header.target, uniform_weights(self.header))
        return RunnerTask(
            self.model, loss, source, no_targets(self.header, self.rows(source)), TrainConfig(), 0, self.weights
        )

    def rows(self, source: BatchSource) -> int:
        """Return the number of rows of `source` that have outputs."""
        return int(source.node_ptr[-1]) if self.header.level == "node" else source.n_graphs

    def of_logits(self, logits: NDArray[np.float32]) -> NDArray[np.floating]:
        """Return outputs for logits (R, K), as `outputs` does."""
        if self.header.target == "regression":
            outputs: NDArray[np.floating] = self.scaling.undo(logits)
        else:
            outputs = metrics.activate(self.header.target, logits)
        outputs[~np.isfinite(logits).all(axis=1)] = np.nan  # an infinite logit is no certainty
        return metrics.without_tasks(outputs, self.left_out)


def outputs_of(
    models: Sequence[Model],
    choice: BackendChoice,
    source_of: Callable[..., BatchSource],
    batch_size: int,
    progress: Callable[[int], object],
) -> list[tuple[NDArray[np.floating], str]]:
    """Return what `Model.outputs` gives for each model, of the rows that ``source_of(*reading)`` has batches of.

    Where the backend computes several models in the same launches, those of one architecture predict together.
    """
    found: dict[int, tuple[NDArray[np.floating], str]] = {}
    tasks = [model.task(source_of(*model.reading)) for model in models]
    for waiting in group(tasks):
        while waiting:
            together = [tasks[number] for number in waiting]
            backend, source = choice.backend_for(together), together[0].source
            size = cohort_size(backend, together)
            here = waiting[:size]
            del waiting[:size]
            if size == 1:
                found[here[0]] = models[here[0]].outputs(choice, source, batch_size, progress)
                continue
            with closing(make_runner(backend, together[:size])) as runner:
                outputs = _outputs([models[number] for number in here], runner, source, batch_size, progress)
            found |= {number: (one, runner.backend) for number, one in zip(here, outputs, strict=True)}
    return [found[number] for number in range(len(models))]


def _outputs(
    models: Sequence[Model],
    runner: Runner,
    source: BatchSource,
    batch_size: int,
    progress: Callable[[int], object],
) -> list[NDArray[np.floating]]:
    """Return the outputs of the models of a runner."""
    rows = [np.arange(model.rows(source), dtype=np.int64) for model in models]
    with np.errstate(over="ignore", invalid="ignore"):  # the caller reports outputs that are not finite
        logits = predict_rows(runner, source, rows, batch_size, progress)
        return [model.of_logits(own) for model, own in zip(models, logits, strict=True) if own is not None]


def input_header(members: Sequence[Model]) -> Header:
    """Return the header of the data that the members read, without graph features if none of them uses these."""
    for member in members:
        if member.joins_graph_features:
            return member.header
    return members[0].header.model_copy(update={"graph_feature_names": (), "graph_feature_counts": 0})


def sources_of(members: Sequence[Model], data: GraphSet) -> list[BatchSource]:
    """Return the batches of `data` that each member reads; members that read the same share them."""
    sources = {member.reading: BatchSource(data, *member.reading) for member in members}
    return [sources[member.reading] for member in members]


def load_models(folders: Sequence[Path], say: Callable[[str], object]) -> list[Model]:
    """Load the models of these run folders: one per run, or one per member (fold, repeat, model).

    Parameters
    ----------
    say : callable
        Called with a message about each unfinished run.

    Raises
    ------
    InputError
        For a folder without weights or given twice, damaged weights, and models with different inputs or outputs.
    """
    places: list[Path] = []
    for folder in folders:
        found = model_folders(folder)
        if not (folder / METRICS).is_file():
            so_far = f"{folder} is not finished: taking the best weights so far of {counted(len(found), 'model')}"
            go_on = f"; gcnbatch train --resume {shlex.quote(str(folder))} goes on"
            say(so_far + (go_on if (folder / CONFIG).is_file() else ""))
        places += found
    resolved = [place.resolve() for place in places]
    for i, place in enumerate(resolved):
        if place in resolved[:i]:
            raise InputError(str(places[i]), "given twice", "different runs", "A run with folds includes its folds.")
    members = [Model(**vars(read_trained(place))) for place in places]
    for other in members[1:]:
        check_fit(members[0], str(other.place), other.header, "Runs of an ensemble must be trained on alike data.")
    return members


Float64 = NDArray[np.float64]


def mean_and_deviation(
    single: Sequence[NDArray[np.floating]], left_out: NDArray[np.bool_]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return mean and standard deviation (n - 1), (R, K), over the members that have a task; NaN where too few have it.

    Parameters
    ----------
    single : sequence of (R, K)
        Outputs of each member.
    left_out : bool, (members, T)
        Tasks that a member has no outputs of; of classes, T is 1.
    """
    first = single[0]
    if len(single) == 1:
        return first, np.full_like(first, np.nan)
    exponent = 0
    if first.dtype == np.float64:  # of regression: squares of large values overflow
        exponent = unit_of(*single)
        single = in_units(exponent, *single)
    if left_out.any():
        mean, deviation = _of_some(np.stack(single).astype(np.float64), left_out[:, None])
    else:
        mean = np.mean(single, axis=0, dtype=np.float64)
        deviation = np.std(single, axis=0, ddof=1, dtype=np.float64)
    if exponent:
        mean, deviation = np.ldexp(mean, exponent), np.ldexp(deviation, exponent)
    return mean.astype(first.dtype), deviation.astype(first.dtype)


def _of_some(values: Float64, absent: NDArray[np.bool_]) -> tuple[Float64, Float64]:
    """Return mean and deviation of the members (members, R, K) that are not absent (members, 1, T)."""
    count = (~absent).sum(axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0
        mean = np.where(absent, 0.0, values).sum(axis=0) / count
        squares = np.where(absent, 0.0, (values - mean) ** 2).sum(axis=0)
        return mean, np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
