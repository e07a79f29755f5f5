"""The runner of the fused backend for Kipf's GCN on one graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.layers import Dropout, GraphConv, Relu, Weights
from gcnbatch.model.runner import ModelState, Task

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.backend import CudaBackend
    from gcnbatch.backends.cuda.fused.kipf.step import TwoLayers


def describe(model: Gcn) -> TwoLayers | str:
    """Return Kipf's GCN of two layers as the fused step knows it, or what it is instead."""
    from gcnbatch.backends.cuda.fused.kipf.step import TwoLayers

    if any(spec.name.endswith(".bias") for layer in model.layers for spec in layer.specs()):
        return "a ChemGCN on a node-level data set"
    products = [layer for layer in model.layers if isinstance(layer, GraphConv | Weights)]
    if len(products) != 2:
        return f"a Kipf GCN of {len(products)} layers"
    relu = next(i for i, layer in enumerate(model.layers) if isinstance(layer, Relu))
    keys: dict[bool, str] = {True: "", False: ""}
    rate = 0.0
    for i, layer in enumerate(model.layers):
        if isinstance(layer, Dropout):
            keys[i < relu], rate = layer.name, layer.rate
    layout = model.layout()
    first, last = products
    w1, w2 = (layout.slots[f"{layer.name}.weight"].start for layer in products)
    return TwoLayers(w1, w2, first.n_in, first.n_out, last.n_out, keys[True], keys[False], rate)


class KipfRunner(ModelState):
    """`gcnbatch.backends.base.Runner` over `gcnbatch.backends.cuda.fused.kipf.engine`."""

    def __init__(self, backend: CudaBackend, task: Task, layers: TwoLayers) -> None:
        super().__init__(backend, task)
        from gcnbatch.backends.cuda.fused.shared.model import Model, Optimizer

        train = task.train
        model = Model(
            self._flat,
            self._buffers,
            self._gradients,
            tuple(self._moments.values()),
            self._weight_decay,
            self._l2,
            self._loss_weights,
            self._totals,
            packed=(),
        )
        sgd = train.optimizer == "sgd"
        rule = Optimizer(sgd, train.momentum if sgd else train.beta1, train.beta2, train.epsilon, max_norm=0.0)
        self._engine = backend.fused_kipf(layers, model, rule, task.source, task.targets, task.loss.weights, task.seed)
        self._epoch, self._steps, self._learning_rate = 0, 1, 0.0

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        self._epoch, self._steps, self._learning_rate = epoch, len(batches), learning_rate

    def step(self, index: int) -> None:
        from gcnbatch.backends.cuda.fused.kipf.step import Tick

        self._updates += 1
        self._engine.step(Tick(self._epoch, index, self._steps, self._learning_rate, self._updates))
        if index == self._steps - 1:  # nothing can join the steps that wait
            self._engine.flush()

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        totals = self._at.zeros(2, np.float64)
        self._engine.gradients(totals)
        total, count = (float(value) for value in self._at.read(totals))
        found = {name: self._at.read(value) for name, value in self._gradient_views.items()}
        return total / count if count else 0.0, found

    def take_loss(self) -> tuple[float, float]:
        self._engine.flush()
        return super().take_loss()

    def predict(self, graphs: Int64) -> NDArray[np.float32]:
        return self._engine.predict()

    def state(self) -> dict[str, NDArray[Any]]:
        self._engine.flush()
        return super().state()

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        self._engine.flush()
        super().load_state(state)

    def close(self) -> None:
        self._engine.close()
