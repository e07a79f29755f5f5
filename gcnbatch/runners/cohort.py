"""Runners joined to one of all their models, and tasks grouped by architecture."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch, Runner
from gcnbatch.data.graphs import Int64
from gcnbatch.runners.task import RunnerTask


class JoinedRunner:
    """`gcnbatch.backends.base.Runner` of the members of several runners, which run one after the other.

    Members are numbered through: first those of the first runner. All runners train on one data set and backend.
    """

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.backend, self.size = runners[0].backend, sum(runner.size for runner in runners)
        self._runners = runners
        self._starts = list(accumulate((runner.size for runner in runners), initial=0))

    @property
    def eval_batch_size(self) -> int:
        return min(runner.eval_batch_size for runner in self._runners)

    def about(self) -> dict[str, Any]:
        return self._runners[0].about()

    def begin_epoch(self, epochs: Sequence[MemberEpoch | None]) -> None:
        for runner, own in self._parts(epochs):
            runner.begin_epoch(own)

    def expect(self, batches: Sequence[Sequence[Int64] | None]) -> None:
        for runner, own in self._parts(batches):
            runner.expect(own)

    def step(self, index: int) -> None:
        for runner in self._runners:
            runner.step(index)

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        (only,) = self._runners
        return only.gradients(graphs)

    def take_losses(self) -> list[tuple[float, float]]:
        return [losses for runner in self._runners for losses in runner.take_losses()]

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        asked = self._parts(rows or [None] * self.size)
        parts = zip(self._parts(graphs), asked, strict=True)
        return [logits for (runner, own), (_, rows) in parts for logits in runner.predict(own, rows)]

    def state(self, member: int = 0) -> dict[str, NDArray[Any]]:
        runner, own = self._runner_of(member)
        return runner.state(own)

    def weights(self, member: int = 0) -> dict[str, NDArray[Any]]:
        runner, own = self._runner_of(member)
        return runner.weights(own)

    def load_state(self, state: dict[str, NDArray[Any]], member: int = 0) -> None:
        runner, own = self._runner_of(member)
        runner.load_state(state, own)

    def close(self) -> None:
        for runner in self._runners:
            runner.close()

    def _runner_of(self, member: int) -> tuple[Runner, int]:
        """Return the runner of a member, and its number there."""
        index = bisect(self._starts, member) - 1
        return self._runners[index], member - self._starts[index]

    def _parts(self, values: Sequence[Any]) -> Iterator[tuple[Runner, Sequence[Any]]]:
        for runner, start in zip(self._runners, self._starts, strict=False):
            yield runner, values[start : start + runner.size]


def group(tasks: Sequence[RunnerTask]) -> list[list[int]]:
    """Return the positions of the tasks in groups of one `architecture`; groups and positions are in order."""
    groups: dict[Hashable, list[int]] = {}
    for position, task in enumerate(tasks):
        groups.setdefault(architecture(task), []).append(position)
    return list(groups.values())


def architecture(task: RunnerTask) -> Hashable:
    """Return a key that is equal for all tasks of a cohort: data, shapes, kernels and their constants.

    A dropout rate, a decay or a clipped norm may differ, but not whether there is one.
    """
    train = task.train
    return (
        id(task.source),
        task.model.kernels,
        (task.loss.kind, bool(task.loss.weighted)),
        (train.batch_size, train.eval_batch_size),
        (train.optimizer, train.beta1, train.beta2, train.epsilon, train.momentum),
        (train.clip_norm > 0, bool(train.weight_decay or train.l2)),
    )
