"""Cohorts of one model on any backend, cohorts joined to a larger one, and tasks grouped by architecture."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import CohortRunner, MemberEpoch, Runner
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

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        (own,), (asked,) = graphs, rows or (None,)
        return [None if own is None else self._runner.predict(own, asked)]

    def state(self, member: int) -> dict[str, NDArray[Any]]:
        return self._runner.state()

    def load_state(self, member: int, state: dict[str, NDArray[Any]]) -> None:
        self._runner.load_state(state)

    def close(self) -> None:
        self._runner.close()


class JoinedCohorts:
    """`gcnbatch.backends.base.CohortRunner` of the members of several cohorts, which run one after the other.

    Members are numbered through: first those of the first cohort. All cohorts train on one data set and backend.
    """

    def __init__(self, cohorts: Sequence[CohortRunner]) -> None:
        self.backend, self.size = cohorts[0].backend, sum(cohort.size for cohort in cohorts)
        self._cohorts = cohorts
        self._starts = list(accumulate((cohort.size for cohort in cohorts), initial=0))

    @property
    def eval_batch_size(self) -> int:
        return min(cohort.eval_batch_size for cohort in self._cohorts)

    def about(self) -> dict[str, Any]:
        return self._cohorts[0].about()

    def begin_epoch(self, epochs: Sequence[MemberEpoch | None]) -> None:
        for cohort, own in self._parts(epochs):
            cohort.begin_epoch(own)

    def expect(self, batches: Sequence[Sequence[Int64] | None]) -> None:
        for cohort, own in self._parts(batches):
            cohort.expect(own)

    def step(self, index: int) -> None:
        for cohort in self._cohorts:
            cohort.step(index)

    def take_losses(self) -> list[tuple[float, float]]:
        return [losses for cohort in self._cohorts for losses in cohort.take_losses()]

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        asked = self._parts(rows or [None] * self.size)
        parts = zip(self._parts(graphs), asked, strict=True)
        return [logits for (cohort, own), (_, rows) in parts for logits in cohort.predict(own, rows)]

    def state(self, member: int) -> dict[str, NDArray[Any]]:
        at = bisect(self._starts, member) - 1
        return self._cohorts[at].state(member - self._starts[at])

    def load_state(self, member: int, state: dict[str, NDArray[Any]]) -> None:
        at = bisect(self._starts, member) - 1
        self._cohorts[at].load_state(member - self._starts[at], state)

    def close(self) -> None:
        for cohort in self._cohorts:
            cohort.close()

    def _parts(self, values: Sequence[Any]) -> Iterator[tuple[CohortRunner, Sequence[Any]]]:
        for cohort, start in zip(self._cohorts, self._starts, strict=False):
            yield cohort, values[start : start + cohort.size]


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
        task.model.frozen,
        task.loss.target,
        (train.batch_size, train.eval_batch_size),
        (train.optimizer, train.beta1, train.beta2, train.epsilon, train.momentum),
        (train.clip_norm > 0, bool(train.weight_decay or train.l2)),
    )
