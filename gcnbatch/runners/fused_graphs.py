"""The runner of the fused engine for graph-level data sets. It passes the whole model to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.fused.engine import FusedEngine
from gcnbatch.backends.cuda.fused.planned_epoch import EngineEpoch
from gcnbatch.backends.cuda.fused.shared.ranks import Ranks
from gcnbatch.backends.cuda.fused.shared.stack import GraphLayer, Joined, NodeLayer, Norm, Stack
from gcnbatch.backends.ops import Array, Readout
from gcnbatch.data.graphs import Int64
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.junctions import Add, Concatenate, Junction, Maximum
from gcnbatch.model.layers import (
    BatchNormRelu,
    Dense,
    Dropout,
    GraphConv,
    Join,
    Layer,
    LayerNormRelu,
    ReadoutLayer,
    Relu,
    VirtualNode,
)
from gcnbatch.model.parameters import ParameterLayout
from gcnbatch.runners.fused_state import FusedState, rates_of_steps
from gcnbatch.runners.task import RunnerTask


def refuses(backend: FusedBackend, task: RunnerTask, ranks: int = 0) -> str | None:
    """Return the property of a graph-level task that the engine does not support, or None; the data is prepared.

    `ranks`: how many train it together; 0: it trains alone.
    """
    assert task.source.prepared is not None
    if not isinstance(task.source.prepared.stored_x, np.ndarray):
        return "sparse features"
    for layer in task.model.layers:
        if reason := _unsupported(layer):
            return reason
    stack = describe(task.model, task.model.layout(), task.loss.target)
    return backend.graphs_refusal(stack, task.source, task.targets, task.train, ranks)


def _unsupported(layer: Layer | Junction) -> str | None:
    """Return the key of the configuration that asks for a layer which the engine does not have, or None."""
    if isinstance(layer, ReadoutLayer) and len(layer.kinds) > len(set(layer.kinds)):
        return "a readout twice (model.readout)"
    if isinstance(layer, LayerNormRelu):
        return "layer norm (model.norm)"
    if isinstance(layer, VirtualNode):
        return "virtual nodes (model.virtual_node)"
    if layer.name.startswith("ffn"):
        return "feed-forward networks (model.ffn)"
    if isinstance(layer, Concatenate | Maximum):
        return "jumping knowledge (model.jumping_knowledge)"
    return None


def describe(model: Gcn, layout: ParameterLayout, target: str) -> Stack:
    """Return the layers of a ChemGCN as the engine takes them; a parameter is given by its start in the flat array."""
    start = {name: slot.start for name, slot in layout.slots.items()}
    nodes: list[NodeLayer] = []
    graphs: list[GraphLayer] = []
    readouts: tuple[Readout, ...] = ()
    rate = 0.0
    joined: Joined | None = None
    groups = _groups(model.layers)
    for head, *behind in groups:
        dropout = next((layer for layer in behind if isinstance(layer, Dropout)), None)
        rate = dropout.rate if dropout else rate
        key = dropout.name if dropout else ""
        if isinstance(head, ReadoutLayer):
            readouts = head.kinds
            continue
        if isinstance(head, Join):
            joined = Joined(head.n_features, *(start[spec.name] for spec in head.specs()))
            continue
        assert isinstance(head, GraphConv | Dense), head
        places = (head.name, start[f"{head.name}.weight"], start[f"{head.name}.bias"], head.n_in, head.n_out)
        if readouts:
            graphs.append(GraphLayer(*places, dropout=key))
            continue
        norm = next((layer for layer in behind if isinstance(layer, BatchNormRelu)), None)
        known = None
        if norm:
            gamma, beta, mean, var = (start[spec.name] for spec in norm.specs())
            known = Norm(gamma, beta, mean, var, norm.epsilon, norm.momentum)
        channels = head.n_channels if isinstance(head, GraphConv) else 1
        residual = any(isinstance(layer, Add) for layer in behind)
        nodes.append(NodeLayer(*places, channels, isinstance(head, Dense), known, key, residual))
    return Stack(tuple(nodes), readouts, tuple(graphs), rate, target, joined)


def _groups(layers: Sequence[Layer | Junction]) -> list[list[Layer | Junction]]:
    """Group the layers: each group begins with a product (GraphConv, Dense), the readout or features."""
    groups: list[list[Layer | Junction]] = []
    for layer in layers:
        if isinstance(layer, Relu | BatchNormRelu | Dropout | Add):
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


class FusedGraphsRunner(FusedState):
    """`gcnbatch.backends.base.Runner` over `gcnbatch.backends.cuda.fused.engine`."""

    def __init__(self, backend: FusedBackend, task: RunnerTask) -> None:
        super().__init__(backend, task)
        stack = describe(task.model, self.layout, task.loss.target)
        self._engine: FusedEngine = self._open_engine(backend, stack)
        self._epoch: tuple[int, Sequence[Int64], float] | None = None
        self._begun: EngineEpoch | None = None  # the last one
        self._last = -1

    def _open_engine(self, backend: FusedBackend, stack: Stack, ranks: Ranks | None = None) -> FusedEngine:
        of = (stack, self._model(), self._optimizer(), self._task.source)
        return backend.graphs_engine(*of, [labels_of(self._task)], ranks)

    @property
    def eval_batch_size(self) -> int:
        return self._engine.eval_batch_size

    def about(self) -> dict[str, Any]:
        return self._engine.about()

    def expect(self, batches: Sequence[Int64]) -> None:
        last = self._begun
        guess = last and [self._epoch_of(last.epoch + 1, batches, last.rates.learning_rate, 0)]
        self._engine.expect([batches], guess)

    def _epoch_of(self, epoch: int, batches: Sequence[Int64], learning_rate: float, first: int) -> EngineEpoch:
        """Return an epoch, whose step `first` is the next update, as the engine takes it."""
        rates = rates_of_steps(self._task.train, self._updates, len(batches), first, learning_rate)
        return EngineEpoch(epoch, batches, rates, first)

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        self._epoch = epoch, batches, learning_rate

    def step(self, index: int) -> None:
        if self._epoch is not None:
            self._begun = self._epoch_of(*self._epoch, index)
            self._engine.begin_epoch([self._begun])
            self._epoch, self._last = None, len(self._begun.batches) - 1
        self._updates += 1
        self._engine.step()
        if index == self._last:  # no further step can join the queued ones in one graph launch
            self._engine.flush()

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        self._engine.gradients(graphs, totals)
        return self._gradient_views

    def predict(self, graphs: Int64, rows: Int64 | None = None) -> NDArray[np.float32]:
        (found,) = self._engine.predict([graphs])
        assert found is not None
        return found if rows is None else found[rows]

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        super().load_state(state)
        self._engine.parameters_changed()


def labels_of(task: RunnerTask) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the targets of a task and the weight of each graph's labels."""
    return task.targets, label_weights(task.targets, task.loss.target, task.loss.weights)


def label_weights(targets: NDArray[Any], target: str, loss_weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the weight of each graph's labels in the loss, (G,); see the losses of `Ops`."""
    if target != "multiclass":
        return (~np.isnan(targets)).sum(axis=1).astype(np.float64)
    labels = targets[:, 0]
    return np.where(labels >= 0, loss_weights[np.maximum(labels, 0)].astype(np.float64), 0.0)
