"""The runner of the fused backend: it hands the model over as a whole, not operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Runner
from gcnbatch.data.graphs import Int64
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.layers import BatchNormRelu, Dense, Dropout, GraphConv, Layer, ReadoutLayer, Relu
from gcnbatch.model.parameters import ParameterLayout
from gcnbatch.model.runner import ModelState, Task

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.backend import CudaBackend
    from gcnbatch.backends.cuda.fused.shared.stack import Stack


def describe(model: Gcn, layout: ParameterLayout, target: str) -> Stack:
    """Return the stack of a ChemGCN on graphs, its parameters by where they start."""
    from gcnbatch.backends.cuda.fused.shared.stack import GraphLayer, NodeLayer, Norm, Stack

    start = {name: slot.start for name, slot in layout.slots.items()}
    nodes: list[NodeLayer] = []
    graphs: list[GraphLayer] = []
    readout: Any = None
    rate = 0.0
    groups = _groups(model.layers)
    for head, *behind in groups:
        dropout = next((layer for layer in behind if isinstance(layer, Dropout)), None)
        rate = dropout.rate if dropout else rate
        key = dropout.name if dropout else ""
        if isinstance(head, ReadoutLayer):
            readout = head.kind
            continue
        assert isinstance(head, GraphConv | Dense), head
        places = (head.name, start[f"{head.name}.weight"], start[f"{head.name}.bias"], head.n_in, head.n_out)
        if readout is not None:
            graphs.append(GraphLayer(*places, dropout=key))
            continue
        norm = next((layer for layer in behind if isinstance(layer, BatchNormRelu)), None)
        known = None
        if norm:
            gamma, beta, mean, var = (start[spec.name] for spec in norm.specs())
            known = Norm(gamma, beta, mean, var, norm.epsilon, norm.momentum)
        channels = head.n_channels if isinstance(head, GraphConv) else 1
        nodes.append(NodeLayer(*places, channels, isinstance(head, Dense), known, key))
    return Stack(tuple(nodes), readout, tuple(graphs), rate, target)


def _groups(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Split the layers: each group begins with one that multiplies, or the readout."""
    groups: list[list[Layer]] = []
    for layer in layers:
        if isinstance(layer, Relu | BatchNormRelu | Dropout):
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


def make_fused(backend: CudaBackend, task: Task) -> Runner:
    """Return the fused runner of a task that `gcnbatch.model.runner.unfit` has nothing against."""
    if task.source.header.level == "graph":
        return FusedRunner(backend, task)
    from gcnbatch.model import fused_kipf

    layers = fused_kipf.describe(task.model)
    assert not isinstance(layers, str), layers
    return fused_kipf.KipfRunner(backend, task, layers)


class FusedRunner(ModelState):
    """`gcnbatch.backends.base.Runner` over `gcnbatch.backends.cuda.fused`."""

    def __init__(self, backend: CudaBackend, task: Task) -> None:
        super().__init__(backend, task)
        from gcnbatch.backends.cuda.fused.shared.model import Model, Optimizer

        train = task.train
        moments = tuple(self._moments.values())
        model = Model(
            self._flat,
            self._buffers,
            self._gradients,
            moments,
            self._weight_decay,
            self._l2,
            self._loss_weights,
            self._totals,
            packed=(),
        )
        sgd = train.optimizer == "sgd"
        beta1, decays = train.momentum if sgd else train.beta1, bool(train.weight_decay or train.l2)
        rule = Optimizer(sgd, beta1, train.beta2, train.epsilon, train.clip_norm, decays)
        stack = describe(task.model, self.layout, task.loss.target)
        weights = label_weights(task.targets, task.loss.target, task.loss.weights)
        self._engine = backend.fused(stack, model, rule, task.source, task.targets, weights, task.seed)
        self._epoch: tuple[int, Sequence[Int64], float] | None = None
        self._last = -1

    @property
    def eval_batch_size(self) -> int:
        return self._engine.eval_batch_size

    def about(self) -> dict[str, Any]:
        return self._engine.about()

    def expect(self, batches: Sequence[Int64]) -> None:
        self._engine.expect(batches)

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        self._epoch = epoch, batches, learning_rate

    def step(self, index: int) -> None:
        if self._epoch is not None:
            epoch, batches, learning_rate = self._epoch
            self._engine.begin_epoch(epoch, batches, self._rates(len(batches), index, learning_rate), index)
            self._epoch, self._last = None, len(batches) - 1
        self._updates += 1
        self._engine.step()
        if index == self._last:  # nothing can join the steps that wait
            self._engine.flush()

    def _rates(self, steps: int, first: int, learning_rate: float) -> NDArray[np.float32]:
        """Return learning rate and Adam's corrections per step; step `first` is the next update."""
        train = self._task.train
        rates = np.full((steps, 3), learning_rate)
        updates = np.maximum(self._updates + 1 + np.arange(steps) - first, 1).astype(np.float64)
        rates[:, 1], rates[:, 2] = 1.0 / (1.0 - train.beta1**updates), 1.0 / (1.0 - train.beta2**updates)
        return rates.astype(np.float32)

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        totals = self._at.zeros(2, np.float64)
        self._engine.gradients(graphs, totals)
        total, count = (float(value) for value in self._at.read(totals))
        found = {name: self._at.read(value) for name, value in self._gradient_views.items()}
        return total / count if count else 0.0, found

    def take_loss(self) -> tuple[float, float]:
        self._engine.flush()
        return super().take_loss()

    def predict(self, graphs: Int64) -> NDArray[np.float32]:
        return self._engine.predict(graphs)

    def state(self) -> dict[str, NDArray[Any]]:
        self._engine.flush()
        return super().state()

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        self._engine.flush()
        super().load_state(state)
        self._engine.parameters_changed()

    def close(self) -> None:
        self._engine.close()


def label_weights(targets: NDArray[Any], target: str, loss_weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return what each graph adds to the weight of its batch's loss, (G,): see the losses of `Ops`."""
    if target != "multiclass":
        return (~np.isnan(targets)).sum(axis=1).astype(np.float64)
    labels = targets[:, 0]
    return np.where(labels >= 0, loss_weights[np.maximum(labels, 0)].astype(np.float64), 0.0)
