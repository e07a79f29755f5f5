"""Model state in a backend's memory: the base class of every runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend
from gcnbatch.backends.ops import Array
from gcnbatch.config_sections import TrainConfig
from gcnbatch.data.graphs import Int64
from gcnbatch.model.gcn import Gcn
from gcnbatch.runners.task import RunnerTask

EVAL_BATCH_SIZE = 200  # graphs per batch in prediction, as in the papers
MOMENTS = {"adam": ("adam.m", "adam.v"), "sgd": ("sgd.velocity",)}


class ModelState:
    """Parameters, gradients, moments and running statistics of a model: flat float32 arrays, and views by name.

    A runner adds `_backward` and the missing methods of `gcnbatch.backends.base.Runner`.

    Parameters
    ----------
    backend : Backend
    task : RunnerTask
    zeros : callable or None
        Allocates an array as `Backend.zeros` does; None: that of the backend.
    """

    def __init__(self, backend: Backend, task: RunnerTask, zeros: Callable[..., Array] | None = None) -> None:
        self.backend = backend.name
        self._at, self._task = backend, task
        self._zeros: Callable[..., Array] = zeros or backend.zeros
        self.layout = task.model.layout()
        size = self.layout.n_trainable
        self._flat, self._buffers = self._zeros(size), self._zeros(self.layout.n_buffers)
        self._moments = {name: self._zeros(size) for name in MOMENTS[task.train.optimizer]}
        self._totals = self._zeros(2, np.float64)
        self._gradients = self._zeros(size)
        self._parameters = self._views(self._flat, True) | self._views(self._buffers, False)
        self._gradient_views = self._views(self._gradients, True)
        self._weight_decay, self._l2 = (self._upload(values) for values in _decay(task.model, task.train))
        self._loss_weights = self._upload(task.loss.weights)
        self._updates = 0
        for name, value in (self.layout.initial(task.seed) | dict(task.initial)).items():
            backend.write(self._parameters[name], value)

    @property
    def eval_batch_size(self) -> int:
        return EVAL_BATCH_SIZE

    def about(self) -> dict[str, Any]:
        return {}

    def expect(self, batches: Sequence[Int64]) -> None:
        pass

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        totals = self._at.zeros(2, np.float64)
        found = self._backward(graphs, totals)
        total, count = (float(value) for value in self._at.read(totals))
        return total / count if count else 0.0, {name: self._at.read(value) for name, value in found.items()}

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        """Return the gradients of these graphs by name; add their loss and its weight to `totals`, (2,) float64."""
        raise NotImplementedError

    def take_loss(self) -> tuple[float, float]:
        loss, weight = self._at.read(self._totals)
        self._at.write(self._totals, np.zeros(2))
        return float(loss), float(weight)

    def state(self) -> dict[str, NDArray[Any]]:
        found = {name: self._at.read(value) for name, value in self._arrays().items()}
        return found | {"updates": np.array([self._updates], dtype=np.int64)}

    def _arrays(self) -> dict[str, Array]:
        """Return the arrays of the training state by name."""
        moments = {
            f"{moment}/{name}": value
            for moment, flat in self._moments.items()
            for name, value in self._views(flat, True).items()
        }
        return self._parameters | moments | {"loss": self._totals}

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
        array = self._zeros(len(values))
        self._at.write(array, values)
        return array


def _decay(model: Gcn, train: TrainConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weight decay and L2 per element of the flat parameters; 0 for frozen ones."""
    layout, frozen = model.layout(), set(model.frozen_parameters())
    decaying = [name for name in layout.names(True) if layout.slots[name].spec.decays]
    penalised = [f"conv{i}.weight" for i in train.l2_layers] or decaying
    factors = ((decaying, train.weight_decay), (penalised, train.l2))
    decay, l2 = (layout.fill({name: value for name in names if name not in frozen}) for names, value in factors)
    return decay, l2
