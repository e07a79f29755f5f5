"""The generic runner: walks the model over a backend's operations, one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import START, Clock, Runner
from gcnbatch.backends.registry import Backend
from gcnbatch.config import TrainConfig
from gcnbatch.data.batches import BatchSource, GraphBatch
from gcnbatch.data.graphs import Int64
from gcnbatch.model.gcn import Gcn, Loss
from gcnbatch.model.layers import Context

MOMENTS = {"adam": ("adam.m", "adam.v"), "sgd": ("sgd.velocity",)}


@dataclass(frozen=True)
class Task:
    """What a runner works on.

    Parameters
    ----------
    model : Gcn
    loss : Loss
    source : BatchSource
        The data.
    targets : (R, K)
        What the loss is measured against, for every row of the data set: standardised where the run asks for it,
        missing (NaN, -1) where a row must not train. Kinds as in `GraphSet.y`.
    train : TrainConfig
    seed : int
        Of first weights and dropout.
    """

    model: Gcn
    loss: Loss
    source: BatchSource
    targets: NDArray[Any]
    train: TrainConfig
    seed: int


def make_runner(backend: Backend, task: Task) -> Runner:
    """Return the runner of `backend` for `task`."""
    return OpsRunner(backend, task)


class OpsRunner:
    """`gcnbatch.backends.base.Runner` over host arrays: parameters, gradients and moments are flat float32 arrays."""

    def __init__(self, backend: Backend, task: Task) -> None:
        self.backend = backend.name
        self._ops, self._task = backend.ops, task
        self.layout = task.model.layout()
        self._flat = np.zeros(self.layout.n_trainable, dtype=np.float32)
        self._buffers = np.zeros(self.layout.n_buffers, dtype=np.float32)
        self._gradients = np.zeros_like(self._flat)
        self._moments = {name: np.zeros_like(self._flat) for name in MOMENTS[task.train.optimizer]}
        self._parameters = self.layout.views(self._flat, True) | self.layout.views(self._buffers, False)
        self._gradient_views = self.layout.views(self._gradients, True)
        self._updates = 0
        decaying = [name for name in self.layout.names(True) if self.layout.slots[name].spec.decays]
        penalised = [f"conv{i}.weight" for i in task.train.l2_layers] or decaying
        self._weight_decay = self.layout.fill(dict.fromkeys(decaying, task.train.weight_decay))
        self._l2 = self.layout.fill(dict.fromkeys(penalised, task.train.l2))
        for name, value in self.layout.initial(task.seed).items():
            self._parameters[name][...] = value
        self._loss = [0.0, 0.0]

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        self._epoch, self._batches, self._learning_rate = epoch, batches, learning_rate

    def step(self, index: int) -> None:
        batch = self._task.source.batch(self._batches[index])
        loss, weight, gradients = self.loss_and_gradients(batch, Clock(self._epoch, index))
        for name, gradient in gradients.items():
            self._gradient_views[name][...] = gradient
        self._update()
        self._loss[0] += loss
        self._loss[1] += weight

    def loss_and_gradients(self, batch: GraphBatch, clock: Clock) -> tuple[float, float, dict[str, Any]]:
        """Return (sum of loss, sum of weights, gradient of their quotient by parameter name) of one training pass."""
        ctx = self._context(batch, training=True, clock=clock)
        logits, saved = self._task.model.forward(ctx, batch.x)
        loss, weight, dlogits = self._task.loss(self._ops, logits, self._task.targets[batch.rows])
        return loss, weight, self._task.model.backward(ctx, dlogits, saved)

    def take_loss(self) -> tuple[float, float]:
        taken = (self._loss[0], self._loss[1])
        self._loss = [0.0, 0.0]
        return taken

    def predict(self, graphs: Int64) -> NDArray[np.float32]:
        batch = self._task.source.batch(graphs)
        logits, _ = self._task.model.forward(self._context(batch, training=False), batch.x)
        return np.asarray(logits, dtype=np.float32)

    def state(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {name: value.copy() for name, value in self._parameters.items()}
        for moment, flat in self._moments.items():
            found |= {f"{moment}/{name}": value.copy() for name, value in self.layout.views(flat, True).items()}
        return found | {"updates": np.array([self._updates], dtype=np.int64), "loss": np.array(self._loss)}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        for name, value in self._parameters.items():
            value[...] = state[name]
        for moment, flat in self._moments.items():
            for name, value in self.layout.views(flat, True).items():
                value[...] = state.get(f"{moment}/{name}", np.float32(0))
        self._updates = int(state["updates"][0]) if "updates" in state else 0
        self._loss = state["loss"].tolist() if "loss" in state else [0.0, 0.0]

    def close(self) -> None:
        pass

    def _context(self, batch: GraphBatch, training: bool, clock: Clock = START) -> Context:
        return Context(self._ops, self._parameters, batch.adjacency, batch.node_ptr, training, self._task.seed, clock)

    def _update(self) -> None:
        train = self._task.train
        self._updates += 1
        if train.clip_norm:
            self._ops.clip_norm(self._gradients, train.clip_norm)
        if train.optimizer == "adam":
            self._ops.adam_step(
                self._flat,
                self._gradients,
                self._moments["adam.m"],
                self._moments["adam.v"],
                self._updates,
                self._learning_rate,
                train.beta1,
                train.beta2,
                train.epsilon,
                self._weight_decay,
                self._l2,
            )
        else:
            self._ops.sgd_step(
                self._flat,
                self._gradients,
                self._moments["sgd.velocity"],
                self._learning_rate,
                train.momentum,
                self._weight_decay,
                self._l2,
            )
