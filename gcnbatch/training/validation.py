"""Scores of validation rows: the loss and the monitored metric of many members after an epoch.

The rows of several members are scored as one array, in threads: NumPy then works long enough without Python's lock that
threads do not wait for each other. The members' scores are equal to the bit to those of each alone. The rows of one
member are scored in parts where they are many, as in one large graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import metrics
from gcnbatch.backends.cpu.costs import plain_sigmoid_costs, softmax_costs
from gcnbatch.backends.cpu.ops import CpuOps
from gcnbatch.data.graphs import Split
from gcnbatch.data.schema import Target
from gcnbatch.data.weighted_targets import join
from gcnbatch.model.gcn import uniform_weights
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.targets import Scaling

ELEMENTS = 1 << 17  # logits of a call of NumPy: long enough that threads seldom wait for Python's lock
SCORERS = 4  # threads; of 8, each waits so often for the lock that all take twice as long
LARGE = 4  # from so many times as many on, several threads score the rows of one member


class Score(NamedTuple):
    """Loss of the validation rows, and their monitored value; None without such rows, or where it is not defined."""

    loss: float | None = None
    monitored: float | None = None


@dataclass(frozen=True)
class Validation:
    """The validation rows of a member.

    Parameters
    ----------
    experiment : Experiment
    split : Split
    scaling : Scaling
        Of the member's targets.
    """

    experiment: Experiment
    split: Split
    scaling: Scaling

    @property
    def kind(self) -> tuple[Target, str]:
        """The kind of target and the monitored metric."""
        return self.experiment.header.target, self.experiment.monitor

    @cached_property
    def left_out(self) -> NDArray[np.bool_]:
        """Which tasks (T,) the training rows cannot teach."""
        return self.experiment.left_out(self.split)

    @cached_property
    def labels(self) -> NDArray[Any]:
        """The targets of its rows, missing in tasks that are left out."""
        return metrics.without_tasks(self.experiment.measured[self.split.valid], self.left_out)

    def outputs(self, logits: NDArray[np.float32]) -> NDArray[np.floating]:
        """Return the model's outputs for logits of any rows: probabilities, or values in the unit of the targets.

        They are NaN in tasks that are left out.
        """
        return metrics.without_tasks(self.activated(logits), self.left_out)

    def activated(self, logits: NDArray[np.float32]) -> NDArray[np.floating]:
        """Return `outputs`, with those of tasks that are left out."""
        target = self.experiment.header.target
        return self.scaling.undo(logits) if target == "regression" else metrics.activate(target, logits)

    def loss(self, logits: NDArray[np.float32], y: NDArray[Any], threads: Executor | None) -> tuple[float, float]:
        """Return sum and weight of the loss: unweighted, and of regression standardised as in training."""
        weights = uniform_weights(self.experiment.header)
        if self.experiment.header.target == "multiclass":
            costs = _by_rows(lambda z, y: softmax_costs(z, y, weights).costs, threads, logits, y)
            return float(costs.sum(dtype=np.float64)), float(len(costs))
        train, scaled = self.experiment.config.train, self.scaling.apply(y)
        if train.regression_loss == "squared":
            total, weight, _ = CpuOps().mean_squared_error(logits, scaled)
        else:
            delta = weights * np.float32(train.huber_delta)
            total, weight, _ = CpuOps().weighted_loss(logits, join(scaled, 1, 0), train.regression_loss, delta)
        return total, weight


def scores(
    validations: Sequence[Validation], logits: Sequence[NDArray[np.float32] | None], threads: Executor
) -> list[Score]:
    """Return the scores of members of one data set.

    Parameters
    ----------
    validations : sequence of Validation
    logits : sequence of (R, K) or None
        Of each member's validation rows; None without such rows.
    threads : concurrent.futures.Executor
    """
    found = [Score()] * len(validations)
    parts: list[list[int]] = []
    for part in _parts(validations, logits):
        one = logits[part[0]]
        if one is not None and len(part) == 1 and one.size >= LARGE * ELEMENTS:
            (found[part[0]],) = _score([validations[part[0]]], [one], threads)
        else:
            parts.append(part)
    calls = [([validations[i] for i in part], [logits[i] for i in part]) for part in parts]
    for part, scored in zip(parts, threads.map(_score, *zip(*calls, strict=True)) if calls else (), strict=True):
        for i, score in zip(part, scored, strict=True):
            found[i] = score
    return found


def _parts(validations: Sequence[Validation], logits: Sequence[NDArray[np.float32] | None]) -> Iterator[list[int]]:
    """Yield the numbers of members that are scored together: of one kind, with few enough logits."""
    known = [(validations[i].kind, i) for i, one in enumerate(logits) if one is not None]
    for _, group in groupby(sorted(known), key=lambda one: one[0]):
        numbers = [i for _, i in group]
        largest = max(one.size for i in numbers if (one := logits[i]) is not None)
        size = max(1, ELEMENTS // max(largest, 1))
        yield from (numbers[start : start + size] for start in range(0, len(numbers), size))


def _score(
    validations: Sequence[Validation], logits: Sequence[NDArray[np.float32]], threads: Executor | None = None
) -> list[Score]:
    """Return the scores of members of one kind; `threads` compute rows of one that is large."""
    target, monitor = validations[0].kind
    rows, y_all = [len(one) for one in logits], validations[0].labels
    z = np.zeros((len(rows), max(rows), logits[0].shape[1]), np.float32)
    y = np.full((len(rows), max(rows), y_all.shape[1]), -1 if target == "multiclass" else np.nan, y_all.dtype)
    for own_z, own_y, given, count, one in zip(z, y, logits, rows, validations, strict=True):
        own_z[:count], own_y[:count] = given, one.labels
    # NumPy keeps this setting for each thread; a model that diverges may overflow in every operation.
    with np.errstate(over="ignore", invalid="ignore"):
        losses = [
            total / weight if weight and math.isfinite(total) else None
            for total, weight in _losses(validations, z, y, rows, threads)
        ]
        if monitor == "loss":
            return [Score(loss, loss) for loss in losses]
        values = metrics.scores(monitor, target, y, _outputs(validations, z, threads))
    return [Score(*both) for both in zip(losses, values, strict=True)]


def _losses(
    validations: Sequence[Validation],
    z: NDArray[np.float32],
    y: NDArray[Any],
    rows: Sequence[int],
    threads: Executor | None,
) -> Iterator[tuple[float, float]]:
    """Yield each member's sum and weight of the loss."""
    if validations[0].kind[0] != "binary":
        for one, own_z, own_y, count in zip(validations, z, y, rows, strict=True):
            yield one.loss(own_z[:count], own_y[:count], threads)
        return
    costs = plain_sigmoid_costs(z, y)
    labelled = np.count_nonzero(~np.isnan(y), axis=(1, 2))
    for own, count, number in zip(costs, rows, labelled, strict=True):
        yield float(own[:count].sum(dtype=np.float64)), float(number)


def _outputs(
    validations: Sequence[Validation], z: NDArray[np.float32], threads: Executor | None
) -> NDArray[np.floating]:
    """Return outputs for logits (members, rows, K). Members scale targets of regression differently."""
    if len(validations) > 1 and validations[0].kind[0] != "regression":
        return validations[0].activated(z)
    found = [_by_rows(one.activated, threads, own) for one, own in zip(validations, z, strict=True)]
    return found[0][None] if len(found) == 1 else np.stack(found)


def _by_rows(function: Callable[..., NDArray[Any]], threads: Executor | None, *arrays: NDArray[Any]) -> NDArray[Any]:
    """Return function(*arrays); with `threads`, of parts of the rows, one after the other."""
    rows, width = arrays[0].shape
    if threads is None:
        return function(*arrays)
    step = max(1, ELEMENTS // width)
    parts = ([array[start : start + step] for array in arrays] for start in range(0, rows, step))
    return np.concatenate(list(threads.map(lambda part: function(*part), parts)))
