"""The runner of the fused engine for graph-level data sets: models of one architecture, in the same launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import MemberEpoch
from gcnbatch.backends.cuda.fused import forms
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.fused.engine import FusedEngine
from gcnbatch.backends.cuda.fused.planned_epoch import EngineEpoch
from gcnbatch.backends.cuda.fused.shared.arena import Arena, Region
from gcnbatch.backends.cuda.fused.shared.ranks import Ranks
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.fused.shared.step import MAX_MEMBERS
from gcnbatch.backends.ops import Array
from gcnbatch.data.graphs import Int64
from gcnbatch.data.sparse import is_sparse
from gcnbatch.data.weighted_targets import split
from gcnbatch.model.gcn import Loss
from gcnbatch.runners.fused_stack import describe, unsupported
from gcnbatch.runners.fused_state import device_model, rates_of_steps, state_bytes, update_rule
from gcnbatch.runners.single import read_gradients
from gcnbatch.runners.state import ModelState
from gcnbatch.runners.task import RunnerTask

MEMORY_SHARE = 0.25  # of the free device memory that the members' arrays may take


def refuses(backend: FusedBackend, task: RunnerTask, ranks: int = 0) -> str | None:
    """Return the property of a graph-level task that the engine does not support, or None; the data is prepared.

    `ranks`: how many train it together; 0: it trains alone.
    """
    assert task.source.prepared is not None
    if is_sparse(task.source.prepared.x):
        return "sparse features"
    if reason := unsupported(task.model.layers):
        return reason
    about = describe(task), task.train, *backend.limits()
    return forms.refusal(task.source, task.targets, *about, ranks) or None


def cohort_size(backend: FusedBackend, tasks: Sequence[RunnerTask]) -> int:
    """Return how many of these tasks of one architecture, from the front, train in the same launches."""
    first = tasks[0]
    if len(tasks) == 1 or not backend.shares_launches(stack := describe(first), first.source):
        return 1
    graphs = min(first.train.batch_size, first.source.n_graphs)
    largest = np.sort(np.diff(first.source.node_ptr))[::-1][:graphs].sum()
    columns = sum(layer.k + 2 * layer.channels * layer.n_out for layer in stack.nodes)
    needed = 4 * (int(largest) * columns + 16 * first.model.layout().n_trainable) + 2 * first.targets.nbytes
    return members_at_once(len(tasks), int(backend.device.memory().free * MEMORY_SHARE) // needed)


def members_at_once(tasks: int, fit: int) -> int:
    """Return the members of the first of several cohorts of nearly equal size, of which at most `fit` fit the memory.

    The more members, the less time a step and member takes (benchmarks/RESULTS.md, "Several models at once"), so there
    are as few cohorts as possible.

    >>> [members_at_once(tasks, 1000) for tasks in (2, 25, 64, 100)], members_at_once(25, 10)
    ([2, 25, 64, 50], 9)
    """
    most = max(1, min(MAX_MEMBERS, fit))
    return -(-tasks // -(-tasks // most))


class FusedModel:
    """The state of one member, in its region of the runner's memory."""

    def __init__(self, backend: FusedBackend, task: RunnerTask, region: Region) -> None:
        self.state = ModelState(backend, task, region.zeros)
        self.arrays = device_model(backend, self.state, task, region.zeros)
        self._train, first = task.train, self.state.flat.ptr
        self._places = {
            name: (slice(array.ptr - first, array.ptr - first + array.nbytes), array.dtype, array.shape)
            for name, array in self.state.arrays().items()
        }

    def epoch(self, epoch: MemberEpoch) -> EngineEpoch:
        """Return an epoch, whose step `first` is the member's next update, as the engine takes it."""
        steps = self.state.updates, len(epoch.batches), epoch.first
        return EngineEpoch(
            epoch.epoch, epoch.batches, rates_of_steps(self._train, *steps, epoch.learning_rate), epoch.first
        )

    def state_in(self, region: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the training state, as views of a host copy of the beginning of the member's region."""
        return {name: self._array(name, region) for name in self._places} | self.state.counted()

    def weights_in(self, region: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return parameters and running statistics, as `state_in` the state."""
        return {name: self._array(name, region) for name in self.state.parameters}

    def _array(self, name: str, region: NDArray[np.uint8]) -> NDArray[Any]:
        place, dtype, shape = self._places[name]
        return region[place].view(dtype).reshape(shape)

    @property
    def state_bytes(self) -> int:
        """Bytes from the beginning of the region to the end of the training state."""
        return int(self.state.totals.ptr - self.state.flat.ptr) + self.state.totals.nbytes

    @property
    def weights_bytes(self) -> int:
        """Bytes from the beginning of the region to the end of parameters and running statistics."""
        return max(self._places[name][0].stop for name in self.state.parameters)


class FusedGraphsRunner:
    """`gcnbatch.backends.base.Runner` over `gcnbatch.backends.cuda.fused.engine`.

    The engine queues steps and launches several together. Every read or write launches the queued ones first.
    """

    def __init__(self, backend: FusedBackend, tasks: Sequence[RunnerTask]) -> None:
        first, self.size, self.backend = tasks[0], len(tasks), backend.name
        self._backend = backend
        self._arena = Arena(
            backend.device, self.size, state_bytes(first.model.layout(), first.train, len(first.loss.weights))
        )
        self._members = [FusedModel(backend, task, Region(self._arena, k)) for k, task in enumerate(tasks)]
        self._engine = self._open_engine(backend, describe(first), tasks)
        self._epochs: Sequence[MemberEpoch | None] = []
        self._steps, self._counted = range(0), 0  # of the epoch; those whose updates are counted
        self._next: int | None = None  # the step after the last; None: the epoch did not begin

    def _open_engine(
        self, backend: FusedBackend, stack: Stack, tasks: Sequence[RunnerTask], ranks: Ranks | None = None
    ) -> FusedEngine:
        labels = [labels_of(task) for task in tasks]
        of = stack, self._members[0].arrays, update_rule(tasks[0].train), tasks[0].source
        return backend.graphs_engine(*of, labels, ranks)

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
        running = [one.steps for one in epochs if one is not None]
        self._steps = range(
            min((own.start for own in running if own), default=0), max((own.stop for own in running), default=0)
        )

    def step(self, index: int) -> None:
        if index not in self._steps:
            return
        if self._next is None:
            self._engine.begin_epoch(
                [
                    member.epoch(one) if one is not None and one.steps else None
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
                member.state.updates += max(0, min(self._next, len(one.batches)) - max(self._counted, one.first))
        self._counted = self._next

    def take_losses(self) -> list[tuple[float, float]]:
        self._engine.flush()
        found = self._arena.fetch(self._members[0].state.totals, clears=True)
        return [(loss, weight) for loss, weight in found.tolist()]

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        return read_gradients(self._backend, partial(self._backward, graphs))

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        (member,) = self._members
        self._engine.gradients(graphs, totals)
        return member.state.gradient_views

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        found = self._engine.predict(graphs)
        return [
            logits if logits is None or own is None else logits[own]
            for logits, own in zip(found, rows or [None] * self.size, strict=True)
        ]

    def state(self, member: int = 0) -> dict[str, NDArray[Any]]:
        self._engine.flush()
        self._count_updates()
        own = self._members[member]
        return own.state_in(self._region(member, own.state_bytes))

    def weights(self, member: int = 0) -> dict[str, NDArray[Any]]:
        self._engine.flush()
        own = self._members[member]
        return own.weights_in(self._region(member, own.weights_bytes))

    def _region(self, member: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a host copy of the beginning of a member's region."""
        return self._arena.fetch_of(member, self._arena.place(0, nbytes, np.uint8))

    def load_state(self, state: dict[str, NDArray[Any]], member: int = 0) -> None:
        self._engine.flush()
        self._count_updates()
        self._members[member].state.write(state)
        self._engine.parameters_changed(member)

    def close(self) -> None:
        self._engine.close()


def labels_of(task: RunnerTask) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the targets of a task and the weight of each graph's labels."""
    return task.targets, label_weights(task.targets, task.loss)


def label_weights(targets: NDArray[Any], loss: Loss) -> NDArray[np.float64]:
    """Return the weight of each graph's labels in the loss, (G,); see the losses of `Ops`."""
    values, weights = split(targets)[:2] if loss.weighted else (targets, np.float64(1))
    known = ~np.isnan(values)
    if loss.kind == "softmax":
        known &= values >= 0
        weights = weights * loss.weights[np.where(known, values, 0).astype(np.intp)]
    return np.where(known, weights, 0.0).sum(axis=1, dtype=np.float64)
