"""One run on several ranks: every step computes a global batch, of which each rank holds a part.

All ranks have the same parameters. Each computes its part's gradients; their sums update all alike. N ranks train
what one rank trains on the same global batches, up to rounding. `DistributedRunner` is the runner of each rank: all
ranks call the same methods with the same arguments. `Leader` is the runner that the training loop sees on rank 0: it
repeats each call on the other ranks, which `follow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import START, Backend, Batch, Clock, Feed, Offset, Runner
from gcnbatch.backends.ops import Array, Csr, Ops
from gcnbatch.data.graph_part import GraphPart, read_part
from gcnbatch.data.graphs import Int64
from gcnbatch.data.partition import partition
from gcnbatch.ranks.communicator import Communicator, HostCommunicator
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.runners.task import RunnerTask


class DistributedBackend(Backend, Protocol):
    """A backend whose operations can compute parts of global batches."""

    def check_ranks(self) -> None:
        """Raise `BackendUnavailable` with reason and fix if ranks cannot exchange the backend's arrays."""

    def communicator(self, ranks: Communicator) -> Communicator:
        """Return the door for the backend's arrays between these ranks, given that for host arrays."""

    def distributed_ops(self, ranks: Communicator, sync_batch_norm: bool) -> Ops:
        """Return the operations on this rank's part; `ranks` is what `communicator` returned."""

    def part_feed(self, part: GraphPart, targets: NDArray[Any], rank: int) -> Feed:
        """Return the feed of this rank's part of one graph; `targets` (N, K) are those of the whole graph."""


class _Part(NamedTuple):
    """A rank's part of a global batch: its graphs, where it begins, and each rank's nodes and rows of targets."""

    graphs: Int64
    offset: Offset
    nodes: Int64
    rows: Int64


class DistributedRunner(OpsRunner):
    """`gcnbatch.backends.base.Runner` of one rank.

    A global batch of several graphs is dealt out by nodes, in its order; a set of one graph once, by stored entries.
    """

    def __init__(self, backend: DistributedBackend, task: RunnerTask, ranks: Communicator) -> None:
        self._ranks = ranks
        self._bounds: Int64 | None = None  # of the ranks' nodes in a set of one graph
        super().__init__(backend, task)
        self._sync = task.train.sync_batch_norm
        self._door = backend.communicator(ranks)
        self._ops = backend.distributed_ops(self._door, self._sync)
        self._parts: list[_Part] = []

    def _open_feed(self, backend: Any, task: RunnerTask) -> Feed:
        if task.source.n_graphs > 1 or task.source.header.level == "graph":
            return super()._open_feed(backend, task)
        assert task.source.file is not None, "each rank reads its own part"
        part = read_part(task.source.file, task.source.normalize, self._ranks)
        self._bounds = part.bounds
        feed: Feed = backend.part_feed(part, task.targets, self._ranks.rank)
        return feed

    @property
    def eval_batch_size(self) -> int:
        return super().eval_batch_size * self._ranks.size

    def about(self) -> dict[str, Any]:
        return super().about() | {"ranks": self._ranks.size}

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        self._parts = [self._part(batch) for batch in batches]
        super().begin_epoch(epoch, [part.graphs for part in self._parts], learning_rate)

    def step(self, index: int) -> None:
        part = self._parts[index]
        self._gradients_of_all(self._feed.batch(index), Clock(self._epoch, index), self._totals, part)
        self._update()

    def predict(self, graphs: Int64, rows: Int64 | None = None) -> NDArray[np.float32]:
        part, rank, size = self._part(graphs), self._ranks.rank, self._ranks.size
        ends = np.cumsum(part.rows)
        asked = np.arange(ends[-1]) if rows is None else rows
        rank_of = np.searchsorted(ends, asked, "right")  # of each row
        counts = np.bincount(rank_of, minlength=size)
        mine = None if rows is None else rows[rank_of == rank] - (ends[rank] - part.rows[rank])
        own = super().predict(part.graphs, mine)
        padded = np.zeros((int(counts.max()), *own.shape[1:]), own.dtype)
        padded[: len(own)] = own
        logits = np.empty((len(asked), *own.shape[1:]), own.dtype)
        for number, found in enumerate(self._ranks.all_gather(padded)):
            logits[rank_of == number] = found[: counts[number]]
        return logits

    def _gradients_of_all(self, batch: Batch, clock: Clock, totals: Array, part: _Part) -> dict[str, Array]:
        """Return the gradients of a global batch, of which `batch` is this rank's part."""
        offset = part.offset
        if isinstance(batch.x, Csr):
            stored = self._ranks.all_gather(np.array([len(batch.x.data)]))
            offset = offset._replace(entries=int(stored[: self._ranks.rank].sum()))
        before = None if self._sync else self._at.read(self._buffers)
        found = self.gradients_of(batch, clock, totals, offset)
        self._door.all_reduce(self._gradients)
        if before is not None:
            self._average_statistics(before, part.nodes)
        return found

    def _average_statistics(self, before: NDArray[np.float32], nodes: Int64) -> None:
        """Give all ranks the same running statistics: the mean of their changes, weighted by the ranks' nodes."""
        share = nodes[self._ranks.rank] / max(int(nodes.sum()), 1)
        change = (self._at.read(self._buffers) - before) * np.float32(share)
        self._ranks.all_reduce(change)
        self._at.write(self._buffers, before + change)

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        part = self._part(graphs)
        return self._gradients_of_all(self._feed.gather(part.graphs), START, totals, part)

    def _part(self, graphs: Int64) -> _Part:
        source, rank = self._task.source, self._ranks.rank
        if self._bounds is not None:
            held = np.diff(self._bounds)
            return _Part(graphs, Offset(nodes=int(self._bounds[rank])), held, held)
        nodes = (source.node_ptr[1:] - source.node_ptr[:-1])[graphs]
        bounds = partition(nodes, self._ranks.size)
        first_nodes = np.concatenate([[0], np.cumsum(nodes)])[bounds]
        rows = np.diff(bounds if source.header.level == "graph" else first_nodes)
        offset = Offset(nodes=int(first_nodes[rank]), graphs=int(bounds[rank]))
        return _Part(graphs[bounds[rank] : bounds[rank + 1]], offset, np.diff(first_nodes), rows)


class Leader:
    """`gcnbatch.backends.base.Runner` of rank 0; the other ranks `follow` its calls."""

    def __init__(self, runner: Runner, ranks: HostCommunicator) -> None:
        self.backend = runner.backend
        self._runner, self._ranks = runner, ranks
        self._in_step = True  # with the followers

    @property
    def eval_batch_size(self) -> int:
        return self._runner.eval_batch_size

    def about(self) -> dict[str, Any]:
        return self._runner.about()

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        self._on_all("begin_epoch", epoch, batches, learning_rate)

    def expect(self, batches: Sequence[Int64]) -> None:
        pass

    def step(self, index: int) -> None:
        self._on_all("step", index)

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        found: tuple[float, dict[str, NDArray[Any]]] = self._on_all("gradients", graphs)
        return found

    def take_loss(self) -> tuple[float, float]:
        return self._runner.take_loss()

    def predict(self, graphs: Int64, rows: Int64 | None = None) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._on_all("predict", graphs, rows)
        return logits

    def state(self) -> dict[str, NDArray[Any]]:
        return self._runner.state()

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        self._on_all("load_state", state)

    def close(self) -> None:
        if self._in_step:
            self._ranks.announce(("close", ()))
        self._runner.close()

    def _on_all(self, method: str, *arguments: Any) -> Any:
        self._in_step = False  # after an error, the followers wait for an exchange, not for a call
        self._ranks.announce((method, arguments))
        result = getattr(self._runner, method)(*arguments)
        self._in_step = True
        return result


def follow(runner: Runner, ranks: HostCommunicator) -> None:
    """Repeat the calls of the leader until it closes."""
    while True:
        method, arguments = ranks.hear()
        if method == "close":
            runner.close()
            return
        getattr(runner, method)(*arguments)
