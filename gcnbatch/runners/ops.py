"""The runner of any backend: it calls the backend's operations layer by layer, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import ORIGIN, START, Backend, Batch, Clock, Feed, Offset, Runner, Stacked
from gcnbatch.backends.ops import Array
from gcnbatch.data.graphs import Int64
from gcnbatch.model.gcn import Flow
from gcnbatch.model.layers import Context
from gcnbatch.runners.cohort import JoinedRunner
from gcnbatch.runners.single import SingleRunner
from gcnbatch.runners.task import RunnerTask


def refuses(backend: Backend, task: RunnerTask) -> str | None:
    """Return None: the operations support every task."""
    return None


def cohort_size(backend: Backend, tasks: Sequence[RunnerTask]) -> int:
    """Return 1: operations compute one model."""
    return 1


def make_runner(backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
    """Return the runner of one task by a backend's operations."""
    (task,) = tasks
    return OpsRunner(backend, task)


class OpsRunner(SingleRunner):
    """`gcnbatch.backends.base.Runner` over any backend's operations.

    `feed` is that of the task's data; None: a new one.
    """

    def __init__(self, backend: Backend, task: RunnerTask, feed: Feed | None = None) -> None:
        super().__init__(backend, task)
        self._ops = backend.ops
        self._feed = feed or self._open_feed(backend, task)
        self._prepared: Flow | None = None  # one-graph data set: state after the model's constant layers

    def _open_feed(self, backend: Backend, task: RunnerTask) -> Feed:
        return backend.feed(task.source, task.targets)

    def _begin(self, batches: Sequence[Int64]) -> None:
        self._feed.begin_epoch(batches)

    def _step(self, clock: Clock) -> None:
        self.gradients_of(self._feed.batch(clock.step), clock, self._model.totals)
        self._update()

    def gradients_of(self, batch: Batch, clock: Clock, totals: Array, offset: Offset = ORIGIN) -> dict[str, Array]:
        """Return the gradient of every parameter on one batch; add its loss and weight to `totals`, (2,) float64."""
        ctx = self._context(batch, training=True, clock=clock, offset=offset)
        logits, saved = self._forward(ctx, batch)
        targets = self._task.model.scored(batch).targets
        _, _, dlogits = self._task.loss(self._ops, logits, targets, self._model.loss_weights, totals)
        return self._task.model.backward(ctx, dlogits, saved)

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        return self.gradients_of(self._feed.gather(graphs), START, totals)

    def _predict(self, graphs: Int64, rows: Int64 | None) -> NDArray[np.float32]:
        return self.logits(self._feed.gather(graphs), rows)

    def logits(self, batch: Batch, rows: Int64 | None) -> NDArray[np.float32]:
        """Return the logits of a batch, or those rows of them."""
        logits, _ = self._forward(self._context(batch, training=False), batch)
        if rows is not None:  # of one large graph, these are few
            asked = self._backend.zeros(len(rows), np.int32)
            self._backend.write(asked, rows.astype(np.int32))
            logits = self._ops.take(logits, asked)
        return self._backend.read(logits)

    def logits_of_all(self, models: Stacked, batch: Batch) -> NDArray[np.float32]:
        """Return the logits (models, B, K) of several models of this architecture."""
        ctx = Context(models.ops, models.parameters, batch, training=False)
        return self._backend.read(self._task.model.forward(ctx, batch.x)[0])

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The parameters and running statistics by name."""
        return self._model.parameters

    def close(self) -> None:
        self._feed.close()
        self._prepared = None

    def load_state(self, state: dict[str, NDArray[Any]], member: int = 0) -> None:
        super().load_state(state)
        self._prepared = None

    def _forward(self, ctx: Context, batch: Batch) -> tuple[Array, list[Any]]:
        model = self._task.model
        if not model.constant_layers or self._task.source.n_graphs > 1:
            return model.forward(ctx, batch.x)
        if self._prepared is None:
            self._prepared = model.prepare(ctx, batch.x)
        return model.forward(ctx, self._prepared)

    def _context(self, batch: Batch, training: bool, clock: Clock = START, offset: Offset = ORIGIN) -> Context:
        about = batch, training, self._task.seed, clock, self._model.gradient_views, offset
        return Context(self._ops, self._model.parameters, *about)

    def take(self, task: RunnerTask, feed: Feed) -> None:
        """Go on with the data of a task that has the model and the parameters of this one."""
        self._task, self._feed, self._prepared = task, feed, None

    def _update(self) -> None:
        train, ops, model = self._task.train, self._ops, self._model
        model.updates += 1
        if train.clip_norm:
            ops.clip_norm(model.gradients, train.clip_norm)
        if train.optimizer == "adam":
            ops.adam_step(
                model.flat,
                model.gradients,
                model.moments["adam.m"],
                model.moments["adam.v"],
                model.updates,
                self._epoch.learning_rate,
                train.beta1,
                train.beta2,
                train.epsilon,
                model.weight_decay,
                model.l2,
            )
        else:
            ops.sgd_step(
                model.flat,
                model.gradients,
                model.moments["sgd.velocity"],
                self._epoch.learning_rate,
                train.momentum,
                model.weight_decay,
                model.l2,
            )


class OpsPredictor(JoinedRunner):
    """A runner that predicts with models of one architecture and one data set; all gather from one feed.

    Members in a row that predict the same graphs, as one array, share their batch. A runner that goes on with other
    data predicts a small batch with all members at once, where the backend can.
    """

    def __init__(self, backend: Backend, tasks: Sequence[RunnerTask]) -> None:
        self._backend, self._feed = backend, backend.feed(tasks[0].source, tasks[0].targets)
        self._at_once: Stacked | None = None
        self._members = [OpsRunner(backend, task, self._feed) for task in tasks]
        super().__init__(self._members)

    def take(self, tasks: Sequence[RunnerTask]) -> None:
        """Go on with the data of tasks that have the models and the parameters of these."""
        self._feed.close()
        self._feed = self._backend.feed(tasks[0].source, tasks[0].targets)
        if self._at_once is None and self.size > 1:
            self._at_once = self._backend.stacked([member.parameters for member in self._members])
        for member, task in zip(self._members, tasks, strict=True):
            member.take(task, self._feed)

    def load_state(self, state: dict[str, NDArray[Any]], member: int = 0) -> None:
        super().load_state(state, member)
        self._at_once = None

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        first, at_once = graphs[0], self._at_once
        if at_once and first is not None and len(first) <= at_once.most and all(own is first for own in graphs):
            return list(self._members[0].logits_of_all(at_once, self._feed.gather(first)))
        found: list[NDArray[np.float32] | None] = []
        batch, gathered = None, None
        for member, own, asked in zip(self._members, graphs, rows or [None] * self.size, strict=True):
            if own is not None and own is not gathered:
                batch, gathered = self._feed.gather(own), own
            found.append(None if own is None or batch is None else member.logits(batch, asked))
        return found
