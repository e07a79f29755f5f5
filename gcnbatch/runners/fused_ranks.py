"""The runner of the fused engine for a model that several ranks train together, each on a GPU of one host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.fused.engine import FusedEngine
from gcnbatch.backends.cuda.fused.shared.ranks import Ranks
from gcnbatch.backends.cuda.fused.shared.stack import Stack
from gcnbatch.backends.cuda.ranks.mailboxes import MAX_RANKS, why_apart
from gcnbatch.backends.cuda.runtime.device import open_device
from gcnbatch.backends.ops import Array
from gcnbatch.data.graphs import Int64
from gcnbatch.ranks import world
from gcnbatch.ranks.communicator import Communicator
from gcnbatch.ranks.world import World
from gcnbatch.runners import fused, fused_graphs
from gcnbatch.runners.fused_graphs import FusedGraphsRunner
from gcnbatch.runners.parts import part_of, predict_together
from gcnbatch.runners.task import RunnerTask


def refuses(backend: Backend, task: RunnerTask, ranks: World) -> str | None:
    """Return the property of task or ranks that the fused backend does not support, or None; rank 0 calls."""
    assert isinstance(backend, FusedBackend)
    if (level := task.source.header.level) != "graph":
        return f"a {level}-level data set on several ranks"
    if reason := fused.unsuited(task) or fused_graphs.refuses(backend, task, ranks.size):
        return reason
    if ranks.local_size < ranks.size:
        return "ranks on several hosts"
    if ranks.size > MAX_RANKS:
        return f"more than {MAX_RANKS} ranks"
    device = backend.device
    ranks.start_all(_meet, device.info.number)
    reason = why_apart(ranks.communicator(), lambda: device)
    return f"ranks that do not reach each other's device memory ({reason})" if reason else None


def _meet(first: int) -> None:
    """Take part in `why_apart` with this rank's GPU, counted from that of rank 0."""
    ranks = world.current()
    assert ranks is not None
    why_apart(ranks.communicator(), lambda: open_device(ranks.device(first)))


def make_runner(backend: Backend, task: RunnerTask, ranks: Communicator) -> Runner:
    """Return this rank's runner of a task that `refuses` accepts; all ranks call."""
    assert isinstance(backend, FusedBackend)
    return FusedRanksRunner(backend, task, ranks)


class FusedRanksRunner(FusedGraphsRunner):
    """`gcnbatch.backends.base.Runner` of one rank; all ranks call the same methods with the same arguments.

    A global batch is divided by nodes, in its order. Parameters and running statistics are equal on all ranks. The
    device adds a rank's own losses; those of all ranks are added here, when they are read.
    """

    def __init__(self, backend: FusedBackend, task: RunnerTask, ranks: Communicator) -> None:
        self._ranks, self._source = ranks, task.source
        super().__init__(backend, [task])

    def _open_engine(
        self, backend: FusedBackend, stack: Stack, tasks: Sequence[RunnerTask], ranks: Ranks | None = None
    ) -> FusedEngine:
        self._n_outputs = stack.n_outputs
        return super()._open_engine(backend, stack, tasks, backend.ranks(stack, self._ranks, tasks[0].train))

    @property
    def eval_batch_size(self) -> int:
        return super().eval_batch_size * self._ranks.size

    def about(self) -> dict[str, Any]:
        return super().about() | {"ranks": self._ranks.size}

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        (own,), (asked,) = graphs, rows or (None,)
        if own is None:
            return [None]
        return [predict_together(self._predict_part, part_of(self._source, own, self._ranks), asked, self._ranks)]

    def _predict_part(self, graphs: Int64, rows: Int64 | None) -> NDArray[np.float32]:
        found = super().predict([graphs], [rows])[0] if len(graphs) else None
        return np.zeros((0, self._n_outputs), np.float32) if found is None else found

    def take_losses(self) -> list[tuple[float, float]]:
        loss, weight = self._of_all(np.array(super().take_losses()[0]))
        return [(float(loss), float(weight))]

    def state(self, member: int = 0) -> dict[str, NDArray[Any]]:
        found = super().state()
        return found | {"loss": self._of_all(found["loss"])}

    def load_state(self, state: dict[str, NDArray[Any]], member: int = 0) -> None:
        if "loss" in state and self._ranks.rank > 0:
            state = state | {"loss": state["loss"] * [0.0, 1.0]}  # the others add theirs to that of rank 0
        super().load_state(state)

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        found = super()._backward(graphs, totals)
        self._backend.write(totals, self._of_all(self._backend.read(totals)))
        return found

    def _of_all(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the loss of all ranks, given that of this one and the weight of all: (2,)."""
        loss = totals[:1].copy()
        self._ranks.all_reduce(loss)
        return np.concatenate([loss, totals[1:]])
