"""The generic runner: walks the model over a backend's operations, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import START, Array, Backend, Batch, Clock, Runner
from gcnbatch.config import TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graphs import Int64
from gcnbatch.errors import InputError
from gcnbatch.model.gcn import Gcn, Loss
from gcnbatch.model.layers import Context
from gcnbatch.model.parameters import ParameterLayout

EVAL_BATCH_SIZE = 200  # graphs of a batch that is only predicted, as in the papers
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


def make_runner(backend: Backend, task: Task, say: Callable[[str], object] = lambda line: None) -> Runner:
    """Return the runner of `backend` for `task`.

    Parameters
    ----------
    say : callable
        Told in a line when another backend takes the task than the one that was found for it, and why.

    Raises
    ------
    InputError
        When the backend was asked for by name and cannot take the task.
    """
    if backend.name != "fused":
        return OpsRunner(backend, task)
    from gcnbatch.model.fused import make_fused

    chosen: Any = backend
    if not (reason := unfit(backend, task)):
        return make_fused(chosen, task)
    if not chosen.automatic:
        raise InputError("backend fused", f"it does not take {reason}", hint="Use --backend batched.")
    say(f"backend batched: fused does not take {reason}")
    return OpsRunner(chosen.batched(), task)


def unfit(backend: Backend, task: Task) -> str:
    """Return what of a task the backend cannot take, or nothing."""
    prepared = task.source.prepared
    if backend.name != "fused":
        return ""
    if prepared is None:
        return "a data set that is read by slices"
    chosen: Any = backend
    if task.source.header.level == "node":
        from gcnbatch.model.fused_kipf import describe as describe_kipf

        layers = describe_kipf(task.model)
        if isinstance(layers, str):
            return layers
        return str(chosen.fused_kipf_refusal(layers, task.source, task.targets, task.train.clip_norm))
    if not isinstance(prepared.stored_x, np.ndarray):
        return "sparse features"
    from gcnbatch.model.fused import describe

    stack = describe(task.model, task.model.layout(), task.loss.target)
    refused: str = chosen.fused_refusal(stack, task.source, task.targets, task.train)
    return refused


class ModelState:
    """Parameters, gradients, moments and running statistics of a model where a backend computes, by name and flat.

    What every runner has in common: flat float32 arrays, of which layers see their part.
    """

    def __init__(self, backend: Backend, task: Task) -> None:
        self.backend = backend.name
        self._at, self._task = backend, task
        self.layout = task.model.layout()
        size = self.layout.n_trainable
        self._flat, self._gradients = backend.zeros(size), backend.zeros(size)
        self._buffers = backend.zeros(self.layout.n_buffers)
        self._moments = {name: backend.zeros(size) for name in MOMENTS[task.train.optimizer]}
        self._parameters = self._views(self._flat, True) | self._views(self._buffers, False)
        self._gradient_views = self._views(self._gradients, True)
        self._weight_decay, self._l2 = (self._upload(values) for values in _decay(self.layout, task.train))
        self._loss_weights = self._upload(task.loss.weights)
        self._updates = 0
        self._totals = backend.zeros(2, np.float64)
        for name, value in self.layout.initial(task.seed).items():
            backend.write(self._parameters[name], value)

    @property
    def eval_batch_size(self) -> int:
        return EVAL_BATCH_SIZE

    def about(self) -> dict[str, Any]:
        return {}

    def expect(self, batches: Sequence[Int64]) -> None:
        pass

    def take_loss(self) -> tuple[float, float]:
        loss, weight = self._at.read(self._totals)
        self._at.write(self._totals, np.zeros(2))
        return float(loss), float(weight)

    def state(self) -> dict[str, NDArray[Any]]:
        found = {name: self._at.read(value) for name, value in self._parameters.items()}
        for moment, flat in self._moments.items():
            found |= {f"{moment}/{name}": self._at.read(value) for name, value in self._views(flat, True).items()}
        return found | {"updates": np.array([self._updates], dtype=np.int64), "loss": self._at.read(self._totals)}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        for name, value in self._parameters.items():
            self._at.write(value, state[name])
        for moment, flat in self._moments.items():
            for name, value in self._views(flat, True).items():
                shape = self.layout.slots[name].spec.shape
                self._at.write(value, state.get(f"{moment}/{name}", np.zeros(shape, dtype=np.float32)))
        self._updates = int(state["updates"][0]) if "updates" in state else 0
        self._at.write(self._totals, state.get("loss", np.zeros(2)))

    def _views(self, flat: Array, trainable: bool) -> dict[str, Array]:
        slots = {name: self.layout.slots[name] for name in self.layout.names(trainable)}
        return {name: self._at.view(flat, slot.start, slot.spec.shape) for name, slot in slots.items()}

    def _upload(self, values: NDArray[np.float32]) -> Array:
        array = self._at.zeros(len(values))
        self._at.write(array, values)
        return array


class OpsRunner(ModelState):
    """`gcnbatch.backends.base.Runner` over any backend's operations."""

    def __init__(self, backend: Backend, task: Task) -> None:
        super().__init__(backend, task)
        self._feed = backend.feed(task.source, task.targets)
        self._prepared: Array | None = None  # the features of a set of one graph behind the model's constant layers

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        self._epoch, self._learning_rate = epoch, learning_rate
        self._feed.begin_epoch(batches)

    def step(self, index: int) -> None:
        self.gradients_of(self._feed.batch(index), Clock(self._epoch, index), self._totals)
        self._update()

    def gradients_of(self, batch: Batch, clock: Clock, totals: Array) -> dict[str, Array]:
        """Return the gradient of every parameter of one training pass; its loss and weight are added to `totals`."""
        ctx = self._context(batch, training=True, clock=clock)
        logits, saved = self._forward(ctx, batch)
        _, _, dlogits = self._task.loss(self._at.ops, logits, batch.targets, self._loss_weights, totals)
        return self._task.model.backward(ctx, dlogits, saved)

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        totals = self._at.zeros(2, np.float64)
        gradients = self.gradients_of(self._feed.gather(graphs), START, totals)
        total, count = (float(value) for value in self._at.read(totals))
        return total / count if count else 0.0, {name: self._at.read(value) for name, value in gradients.items()}

    def predict(self, graphs: Int64) -> NDArray[np.float32]:
        batch = self._feed.gather(graphs)
        logits, _ = self._forward(self._context(batch, training=False), batch)
        return self._at.read(logits)

    def close(self) -> None:
        self._feed.close()

    def _forward(self, ctx: Context, batch: Batch) -> tuple[Array, list[Any]]:
        model = self._task.model
        if not model.constant_layers or self._task.source.n_graphs > 1:
            return model.forward(ctx, batch.x)
        if self._prepared is None:
            self._prepared = model.prepare(ctx, batch.x)
        return model.forward(ctx, self._prepared, prepared=True)

    def _context(self, batch: Batch, training: bool, clock: Clock = START) -> Context:
        return Context(self._at.ops, self._parameters, batch, training, self._task.seed, clock, self._gradient_views)

    def _update(self) -> None:
        train, ops = self._task.train, self._at.ops
        self._updates += 1
        if train.clip_norm:
            ops.clip_norm(self._gradients, train.clip_norm)
        if train.optimizer == "adam":
            ops.adam_step(
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
            ops.sgd_step(
                self._flat,
                self._gradients,
                self._moments["sgd.velocity"],
                self._learning_rate,
                train.momentum,
                self._weight_decay,
                self._l2,
            )


def _decay(layout: ParameterLayout, train: TrainConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weight decay and L2 per element of the flat parameters."""
    decaying = [name for name in layout.names(True) if layout.slots[name].spec.decays]
    penalised = [f"conv{i}.weight" for i in train.l2_layers] or decaying
    return layout.fill(dict.fromkeys(decaying, train.weight_decay)), layout.fill(dict.fromkeys(penalised, train.l2))
