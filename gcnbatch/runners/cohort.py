"""Cohorts: models of one architecture that train together. `SingleCohort` is the cohort of one model on any backend."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch, Runner
from gcnbatch.data.graphs import Int64
from gcnbatch.model.layers import Dropout
from gcnbatch.runners.task import RunnerTask


class SingleCohort:
    """`gcnbatch.backends.base.CohortRunner` of one member over any `Runner`."""

    size = 1

    def __init__(self, runner: Runner) -> None:
        self.backend = runner.backend
        self._runner = runner
        self._steps = range(0)

    @property
    def eval_batch_size(self) -> int:
        return self._runner.eval_batch_size

    def about(self) -> dict[str, Any]:
        return self._runner.about()

    def begin_epoch(self, epochs: Sequence[MemberEpoch | None]) -> None:
        (own,) = epochs
        self._steps = range(0) if own is None else range(own.first, len(own.batches))
        if own is not None:
            self._runner.begin_epoch(own.epoch, own.batches, own.learning_rate)

    def expect(self, batches: Sequence[Sequence[Int64] | None]) -> None:
        (own,) = batches
        if own is not None:
            self._runner.expect(own)

    def step(self, index: int) -> None:
        if index in self._steps:
            self._runner.step(index)

    def take_losses(self) -> list[tuple[float, float]]:
        return [self._runner.take_loss()]

    def predict(self, rows: Sequence[Int64 | None]) -> list[NDArray[np.float32] | None]:
        (own,) = rows
        return [None if own is None else self._runner.predict(own)]

    def state(self, member: int) -> dict[str, NDArray[Any]]:
        return self._runner.state()

    def load_state(self, member: int, state: dict[str, NDArray[Any]]) -> None:
        self._runner.load_state(state)

    def close(self) -> None:
        self._runner.close()


def group(tasks: Sequence[RunnerTask]) -> list[list[int]]:
    """Return the positions of the tasks in groups of one `architecture`; groups and positions are in order."""
    groups: dict[Hashable, list[int]] = {}
    for position, task in enumerate(tasks):
        groups.setdefault(architecture(task), []).append(position)
    return list(groups.values())


def architecture(task: RunnerTask) -> Hashable:
    """Return what all tasks of a cohort have in common: data, shapes, kernels and their constants.

    A dropout rate, a decay or a clipped norm may differ, but not whether there is one.
    """
    train = task.train
    layers = tuple(replace(layer, rate=0.5) if isinstance(layer, Dropout) else layer for layer in task.model.layers)
    return (
        id(task.source),
        layers,
        task.loss.target,
        (train.batch_size, train.eval_batch_size),
        (train.optimizer, train.beta1, train.beta2, train.epsilon, train.momentum),
        (train.clip_norm > 0, bool(train.weight_decay or train.l2)),
    )
