"""The runner of the fused engine for Kipf's GCN on one graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Clock
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.fused.kipf import engine
from gcnbatch.backends.cuda.fused.kipf.schedule import TrainingStep
from gcnbatch.backends.cuda.fused.kipf.step import TwoLayers
from gcnbatch.backends.ops import Array
from gcnbatch.data.graphs import Int64
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.layers import Dropout, GraphConv, Relu
from gcnbatch.runners.fused_state import device_model, update_rule
from gcnbatch.runners.single import SingleRunner
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


class FusedKipfRunner(SingleRunner):
    """`gcnbatch.backends.base.Runner` over `gcnbatch.backends.cuda.fused.kipf.engine`.

    The engine queues steps and launches several together. Every read or write launches the queued ones first.
    """

    def __init__(self, backend: FusedBackend, task: RunnerTask) -> None:
        super().__init__(backend, task)
        self._device = backend.device
        layers = describe(task.model)
        assert not isinstance(layers, str), layers
        model, on = device_model(backend, self._model, task, backend.zeros), (task.source, task.targets)
        self._engine: engine.KipfEngine = engine.make_engine(
            backend.device, backend.ops, layers, model, update_rule(task.train), *on, task.loss.weights, task.seed
        )

    def _step(self, clock: Clock) -> None:
        self._model.updates += 1
        steps, rate = len(self._epoch.batches), self._epoch.learning_rate
        self._engine.step(TrainingStep(clock.epoch, clock.step, steps, rate, self._model.updates))
        if clock.step == steps - 1:  # no further step can join the queued ones in one graph launch
            self._engine.flush()

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        self._engine.gradients(totals)
        return self._model.gradient_views

    def _predict(self, graphs: Int64, rows: Int64 | None) -> NDArray[np.float32]:
        logits = self._engine.predict()
        return logits if rows is None else logits[rows]

    def take_losses(self) -> list[tuple[float, float]]:
        self._engine.flush()
        totals = self._model.totals
        ((loss, weight),) = self._device.fetch_rows(totals, totals.nbytes, 1, clears=True).tolist()
        return [(loss, weight)]

    def state(self, member: int = 0) -> dict[str, NDArray[Any]]:
        self._engine.flush()
        return super().state()

    def weights(self, member: int = 0) -> dict[str, NDArray[Any]]:
        self._engine.flush()
        return super().weights()

    def load_state(self, state: dict[str, NDArray[Any]], member: int = 0) -> None:
        self._engine.flush()
        super().load_state(state)

    def close(self) -> None:
        self._engine.close()
