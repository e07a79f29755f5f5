"""The runner of the fused engine for Kipf's GCN on one graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.fused.kipf import engine
from gcnbatch.backends.cuda.fused.kipf.schedule import TrainingStep
from gcnbatch.backends.cuda.fused.kipf.step import TwoLayers
from gcnbatch.backends.ops import Array
from gcnbatch.data.graphs import Int64
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.layers import Dropout, GraphConv, Relu
from gcnbatch.runners.fused_state import FusedState
from gcnbatch.runners.task import RunnerTask
from gcnbatch.text import counted


def refuses(backend: FusedBackend, task: RunnerTask) -> str | None:
    """Return the property of a node-level task that the engine does not support, or None; the data is prepared."""
    layers = describe(task.model)
    if isinstance(layers, str):
        return layers
    return engine.refusal(task.source, task.targets, layers, task.train.clip_norm, *backend.limits()) or None


def describe(model: Gcn) -> TwoLayers | str:
    """Return the two layers of Kipf's GCN as the engine takes them, or a description of any other model."""
    if any(spec.name.endswith(".bias") for layer in model.layers for spec in layer.specs()):
        return "a ChemGCN on a node-level data set"
    products = [layer for layer in model.layers if isinstance(layer, GraphConv)]
    if len(products) != 2:
        return f"a Kipf GCN of {counted(len(products), 'layer')}"
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


class FusedKipfRunner(FusedState):
    """`gcnbatch.backends.base.Runner` over `gcnbatch.backends.cuda.fused.kipf.engine`."""

    def __init__(self, backend: FusedBackend, task: RunnerTask) -> None:
        super().__init__(backend, task)
        layers = describe(task.model)
        assert not isinstance(layers, str), layers
        on = (task.source, task.targets, task.loss.weights, task.seed)
        self._engine: engine.KipfEngine = engine.make_engine(
            backend.device, backend.ops, layers, self._model(), self._optimizer(), *on
        )
        self._epoch, self._steps, self._learning_rate = 0, 1, 0.0

    def begin_epoch(self, epoch: int, batches: Sequence[Int64], learning_rate: float) -> None:
        self._epoch, self._steps, self._learning_rate = epoch, len(batches), learning_rate

    def step(self, index: int) -> None:
        self._updates += 1
        self._engine.step(TrainingStep(self._epoch, index, self._steps, self._learning_rate, self._updates))
        if index == self._steps - 1:  # no further step can join the queued ones in one graph launch
            self._engine.flush()

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        self._engine.gradients(totals)
        return self._gradient_views

    def predict(self, graphs: Int64, rows: Int64 | None = None) -> NDArray[np.float32]:
        logits = self._engine.predict()
        return logits if rows is None else logits[rows]
