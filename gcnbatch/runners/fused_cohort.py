"""The cohort of the fused engine: models of one architecture on a graph-level data set, in the same launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.fused.engine import FusedEngine
from gcnbatch.backends.cuda.fused.planned_epoch import EngineEpoch
from gcnbatch.backends.cuda.fused.shared.arena import Arena, Region
from gcnbatch.backends.cuda.fused.shared.model import DeviceModel
from gcnbatch.backends.cuda.fused.shared.step import MAX_MEMBERS
from gcnbatch.data.graphs import Int64
from gcnbatch.runners.fused_graphs import describe, labels_of
from gcnbatch.runners.fused_state import FusedState, rates_of_steps, state_bytes
from gcnbatch.runners.task import RunnerTask

# Microseconds a step and member by the number of members: Tox21, 2 x 64, batch 50, NVIDIA H200
# (benchmarks/many_models.py).
STEP_US = {1: 22.0, 4: 8.5, 8: 6.2, 16: 4.0, 64: 2.8}
MEMORY_SHARE = 0.25  # of the free device memory that the members' arrays may take


def size(backend: FusedBackend, tasks: Sequence[RunnerTask]) -> int:
    """Return how many of these tasks of one architecture, from the front, train in the same launches."""
    first = tasks[0]
    stack = describe(first.model, first.model.layout(), first.loss.target)
    if not backend.shares_launches(stack, first.source):
        return 1
    graphs = min(first.train.batch_size, first.source.n_graphs)
    largest = np.sort(np.diff(first.source.node_ptr))[::-1][:graphs].sum()
    columns = sum(layer.k + 2 * layer.channels * layer.n_out for layer in stack.nodes)
    needed = 4 * (int(largest) * columns + 16 * first.model.layout().n_trainable) + 2 * first.targets.nbytes
    return members_at_once(len(tasks), int(backend.device.memory().free * MEMORY_SHARE) // needed)


def members_at_once(tasks: int, fit: int) -> int:
    """Return the members of the first of several cohorts of nearly equal size, of which at most `fit` fit the memory.

    The more members, the less time a step and member takes (``STEP_US``), so there are as few cohorts as possible.

    >>> [members_at_once(tasks, 1000) for tasks in (2, 25, 64, 100)], members_at_once(25, 10)
    ([2, 25, 64, 50], 9)
    """
    most = max(1, min(MAX_MEMBERS, fit))
    return -(-tasks // -(-tasks // most))


class Member(FusedState):
    """The state of one member, in its region of the cohort's memory."""

    def __init__(self, backend: FusedBackend, task: RunnerTask, region: Region) -> None:
        super().__init__(backend, task, region.zeros)
        self.model: DeviceModel = self._model()
        self.rule = self._optimizer()
        first = self._flat.ptr
        self._places = {
            name: (slice(array.ptr - first, array.ptr - first + array.nbytes), array.dtype, array.shape)
            for name, array in self._arrays().items()
        }

    def epoch(self, epoch: MemberEpoch) -> EngineEpoch:
        """Return an epoch, whose step `first` is the member's next update, as the engine takes it."""
        steps = self._updates, len(epoch.batches), epoch.first
        rates = rates_of_steps(self._task.train, *steps, epoch.learning_rate)
        return EngineEpoch(epoch.epoch, epoch.batches, rates, epoch.first)

    def count_updates(self, number: int) -> None:
        """Note that so many steps were queued."""
        self._updates += number

    def state_in(self, region: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the training state from a host copy of the beginning of the member's region."""
        found: dict[str, NDArray[Any]] = {
            name: region[place].view(dtype).reshape(shape).copy()
            for name, (place, dtype, shape) in self._places.items()
        }
        return found | {"updates": np.array([self._updates], dtype=np.int64)}

    @property
    def state_bytes(self) -> int:
        """Bytes from the beginning of the region to the end of the training state."""
        return int(self._totals.ptr - self._flat.ptr) + self._totals.nbytes


class FusedCohort:
    """`gcnbatch.backends.base.CohortRunner` over `gcnbatch.backends.cuda.fused.engine`."""

    def __init__(self, backend: FusedBackend, tasks: Sequence[RunnerTask]) -> None:
        first, self.size, self.backend = tasks[0], len(tasks), backend.name
        layout = first.model.layout()
        self._arena = Arena(backend.device, self.size, state_bytes(layout, first.train, len(first.loss.weights)))
        self._members = [Member(backend, task, Region(self._arena, k)) for k, task in enumerate(tasks)]
        stack, own = describe(first.model, layout, first.loss.target), self._members[0]
        labels = [labels_of(task) for task in tasks]
        self._engine: FusedEngine = backend.graphs_engine(stack, own.model, own.rule, first.source, labels)
        for member in self._members:
            member._engine = self._engine
        self._epochs: Sequence[MemberEpoch | None] = []
        self._steps, self._counted = range(0), 0  # of the epoch; those whose updates are counted
        self._next: int | None = None  # the step after the last; None: the epoch did not begin
        self._states: NDArray[np.uint8] | None = None  # host copies of the members' states, until one changes

    @property
    def eval_batch_size(self) -> int:
        return self._engine.eval_batch_size

    def about(self) -> dict[str, Any]:
        return self._engine.about()

    def expect(self, batches: Sequence[Sequence[Int64] | None]) -> None:
        if all(own is None for own in batches):
            return
        self._count_updates()
        self._engine.expect(batches, self._guess(batches))

    def _guess(self, batches: Sequence[Sequence[Int64] | None]) -> list[EngineEpoch | None] | None:
        """Return the epochs of these batches if they follow the last one, with its learning rates; None: unknown."""
        found: list[EngineEpoch | None] = []
        for member, own, last in zip(self._members, batches, self._epochs or [None] * self.size, strict=True):
            if own is not None and last is None:
                return None
            following = last and own and MemberEpoch(last.epoch + 1, own, last.learning_rate)
            found.append(member.epoch(following) if following else None)
        return found

    def begin_epoch(self, epochs: Sequence[MemberEpoch | None]) -> None:
        self._count_updates()
        self._epochs, self._next, self._counted = epochs, None, 0
        running = [range(one.first, len(one.batches)) for one in epochs if one is not None]
        self._steps = range(
            min((own.start for own in running if own), default=0), max((own.stop for own in running), default=0)
        )

    def step(self, index: int) -> None:
        if index not in self._steps:
            return
        self._states = None
        if self._next is None:
            self._engine.begin_epoch(
                [
                    member.epoch(one) if one is not None and one.first < len(one.batches) else None
                    for member, one in zip(self._members, self._epochs, strict=True)
                ]
            )
        self._next = index + 1
        self._engine.step()
        if self._next == self._steps.stop:
            self._engine.flush()  # no further step can join the queued ones in one graph launch

    def _count_updates(self) -> None:
        """Count the updates of each member in the steps since the last count."""
        if self._next is None:
            return
        for member, one in zip(self._members, self._epochs, strict=True):
            if one is not None:
                member.count_updates(max(0, min(self._next, len(one.batches)) - max(self._counted, one.first)))
        self._counted = self._next

    def take_losses(self) -> list[tuple[float, float]]:
        self._engine.flush()
        self._states = None
        found = self._arena.fetch(self._members[0].model.totals, clears=True)
        return [(loss, weight) for loss, weight in found.tolist()]

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        found = self._engine.predict(graphs)
        return [
            logits if logits is None or own is None else logits[own]
            for logits, own in zip(found, rows or [None] * self.size, strict=True)
        ]

    def state(self, member: int) -> dict[str, NDArray[Any]]:
        if self._states is None:
            self._engine.flush()
            self._count_updates()
            self._states = self._arena.fetch(self._arena.place(0, self._members[0].state_bytes, np.uint8))
        return self._members[member].state_in(self._states[member])

    def load_state(self, member: int, state: dict[str, NDArray[Any]]) -> None:
        self._states = None
        self._count_updates()
        self._members[member].load_state(state)
        self._engine.parameters_changed(member)

    def close(self) -> None:
        self._engine.close()
