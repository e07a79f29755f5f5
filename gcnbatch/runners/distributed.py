"""One run on several ranks: every step computes a global batch, of which each rank holds a part.

All ranks have the same parameters. Each computes its part's gradients; their sums update all alike. N ranks train
what one rank trains on the same global batches, up to rounding. `DistributedRunner` is the runner of each rank: all
ranks call the same methods with the same arguments (`gcnbatch.runners.leader`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import START, Backend, Batch, Clock, Feed, Offset, Runner
from gcnbatch.backends.ops import Array, Csr, OpsOnPart
from gcnbatch.data.graph_part import GraphPart, read_part
from gcnbatch.data.graphs import Int64
from gcnbatch.data.labelled import labelled_part
from gcnbatch.ranks.communicator import Communicator
from gcnbatch.ranks.world import World
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.runners.parts import Part, part_of, predict_together
from gcnbatch.runners.task import RunnerTask


class DistributedBackend(Backend, Protocol):
    """A backend whose operations can compute parts of global batches."""

    def check_ranks(self) -> None:
        """Raise `BackendUnavailable` with reason and fix if ranks cannot exchange the backend's arrays."""

    def communicator(self, ranks: Communicator) -> Communicator:
        """Return the communicator of the backend's arrays, given that of host arrays."""

    def distributed_ops(self, ranks: Communicator, sync_batch_norm: bool) -> OpsOnPart:
        """Return the operations on this rank's part; `ranks` is what `communicator` returned."""

    def part_feed(self, part: GraphPart, targets: NDArray[Any], ranks: Communicator) -> Feed:
        """Return the feed of this rank's part of one graph; `targets` (N, K) are those of the whole graph.

        All ranks call; `ranks` is that of host arrays.
        """


@runtime_checkable
class ClosingCommunicator(Protocol):
    """A communicator that holds memory or connections of its own."""

    def close(self) -> None:
        """Give them back; all ranks call, after their last operation."""


def refuses(backend: Backend, task: RunnerTask, ranks: World) -> str | None:
    """Return None: the operations support every task on ranks that can exchange arrays.

    Raises
    ------
    BackendUnavailable
        Something that the ranks need for that is missing.
    """
    cast(DistributedBackend, backend).check_ranks()
    return None


def make_runner(backend: Backend, task: RunnerTask, ranks: Communicator) -> Runner:
    """Return this rank's runner of a backend's operations."""
    return DistributedRunner(cast(DistributedBackend, backend), task, ranks)


class DistributedRunner(OpsRunner):
    """`gcnbatch.backends.base.Runner` of one rank.

    A global batch of several graphs is divided by nodes, in its order; a set of one graph once, by stored entries.
    """

    def __init__(self, backend: DistributedBackend, task: RunnerTask, ranks: Communicator) -> None:
        self._ranks = ranks
        self._bounds: Int64 | None = None  # of the ranks' nodes in a set of one graph
        super().__init__(backend, task)
        self._sync = task.train.sync_batch_norm
        self._communicator = backend.communicator(ranks)
        self._ops: OpsOnPart = backend.distributed_ops(self._communicator, self._sync)
        self._parts: list[Part] = []

    def _open_feed(self, backend: Any, task: RunnerTask) -> Feed:
        if task.source.n_graphs > 1 or task.source.header.level == "graph":
            return super()._open_feed(backend, task)
        assert task.source.file is not None, "each rank reads its own part"
        part = read_part(task.source.file, task.source.normalize, self._ranks)
        part = replace(part, labelled=labelled_part(part, task.targets, self._ranks))
        self._bounds = part.bounds
        feed: Feed = backend.part_feed(part, task.targets, self._ranks)
        return feed

    @property
    def eval_batch_size(self) -> int:
        return super().eval_batch_size * self._ranks.size

    def about(self) -> dict[str, Any]:
        return super().about() | {"ranks": self._ranks.size}

    def _begin(self, batches: Sequence[Int64]) -> None:
        self._parts = [self._part(batch) for batch in batches]
        super()._begin([part.graphs for part in self._parts])

    def _step(self, clock: Clock) -> None:
        part = self._parts[clock.step]
        self._gradients_of_all(self._feed.batch(clock.step), clock, self._model.totals, part)
        self._update()

    def close(self) -> None:
        """Give back memory and connections; all ranks call."""
        super().close()
        self._ops.close()
        if isinstance(self._communicator, ClosingCommunicator):
            self._communicator.close()

    def _predict(self, graphs: Int64, rows: Int64 | None) -> NDArray[np.float32]:
        return predict_together(super()._predict, self._part(graphs), rows, self._ranks)

    def _gradients_of_all(self, batch: Batch, clock: Clock, totals: Array, part: Part) -> dict[str, Array]:
        """Return the gradients of a global batch, of which `batch` is this rank's part."""
        offset = part.offset
        if isinstance(batch.x, Csr):
            stored = self._ranks.all_gather(np.array([len(batch.x.data)]))
            offset = offset._replace(entries=int(stored[: self._ranks.rank].sum()))
        before = None if self._sync else self._backend.read(self._model.buffers)
        with self._ops.in_chunks() if self._bounds is not None else nullcontext():
            found = self.gradients_of(batch, clock, totals, offset)
        self._communicator.all_reduce(self._model.gradients)
        if before is not None:
            self._average_statistics(before, part.nodes)
        return found

    def _average_statistics(self, before: NDArray[np.float32], nodes: Int64) -> None:
        """Give all ranks the same running statistics: the mean of their changes, weighted by the ranks' nodes."""
        share = nodes[self._ranks.rank] / max(int(nodes.sum()), 1)
        change = (self._backend.read(self._model.buffers) - before) * np.float32(share)
        self._ranks.all_reduce(change)
        self._backend.write(self._model.buffers, before + change)

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        part = self._part(graphs)
        return self._gradients_of_all(self._feed.gather(part.graphs), START, totals, part)

    def _part(self, graphs: Int64) -> Part:
        if self._bounds is None:
            return part_of(self._task.source, graphs, self._ranks)
        held = np.diff(self._bounds)
        return Part(graphs, Offset(nodes=int(self._bounds[self._ranks.rank])), held, held)
