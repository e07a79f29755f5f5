"""The training state of one model in a backend's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend
from gcnbatch.backends.ops import Array
from gcnbatch.config_sections import TrainConfig
from gcnbatch.model.gcn import Gcn
from gcnbatch.runners.task import RunnerTask

MOMENTS = {"adam": ("adam.m", "adam.v"), "sgd": ("sgd.velocity",)}


class ModelState:
    """Parameters, gradients, moments and running statistics of a model: flat float32 arrays, and views by name.

    Parameters
    ----------
    backend : Backend
    task : RunnerTask
    zeros : callable or None
        Allocates an array as `Backend.zeros` does; None: that of the backend.

    Attributes
    ----------
    layout : ParameterLayout
    flat, gradients, weight_decay, l2 : Array, (n_trainable,)
    buffers : Array, (n_buffers,)
        Running statistics.
    moments : dict of Array, (n_trainable,)
    parameters : dict of Array
        Views of `flat` and `buffers`.
    gradient_views : dict of Array
        Views of `gradients`.
    totals : Array, (2,) float64
        Sum of the loss and of its weights since `take_loss`.
    loss_weights : Array
    updates : int
        How often the parameters were updated.
    """

    def __init__(self, backend: Backend, task: RunnerTask, zeros: Callable[..., Array] | None = None) -> None:
        self._backend = backend
        self._zeros: Callable[..., Array] = zeros or backend.zeros
        self.layout = task.model.layout()
        size = self.layout.n_trainable
        self.flat, self.buffers = self._zeros(size), self._zeros(self.layout.n_buffers)
        self.moments = {name: self._zeros(size) for name in MOMENTS[task.train.optimizer]}
        self.totals = self._zeros(2, np.float64)
        self.gradients = self._zeros(size)
        self.parameters = self._views(self.flat, True) | self._views(self.buffers, False)
        self.gradient_views = self._views(self.gradients, True)
        self.weight_decay, self.l2 = (self._upload(values) for values in _decay(task.model, task.train))
        self.loss_weights = self._upload(task.loss.weights)
        self.updates = 0
        for name, value in (self.layout.initial(task.seed, task.initial) | dict(task.initial)).items():
            backend.write(self.parameters[name], value)

    def take_loss(self) -> tuple[float, float]:
        """Return (sum of loss, sum of its weights) since the last call, and reset them to 0."""
        loss, weight = self._backend.read(self.totals)
        self._backend.write(self.totals, np.zeros(2))
        return float(loss), float(weight)

    def read(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the state; see `gcnbatch.backends.base.Runner.state`."""
        return {name: self._backend.read(value) for name, value in self.arrays().items()} | self.counted()

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the parameters and running statistics."""
        return {name: self._backend.read(value) for name, value in self.parameters.items()}

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the state by name."""
        moments = {
            f"{moment}/{name}": value
            for moment, flat in self.moments.items()
            for name, value in self._views(flat, True).items()
        }
        return self.parameters | moments | {"loss": self.totals}

    def counted(self) -> dict[str, NDArray[np.int64]]:
        """Return the part of the state that the host holds."""
        return {"updates": np.array([self.updates], dtype=np.int64)}

    def write(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `read` returned."""
        for name, value in self.parameters.items():
            self._backend.write(value, state[name])
        for moment, flat in self.moments.items():
            for name, value in self._views(flat, True).items():
                shape = self.layout.slots[name].spec.shape
                self._backend.write(value, state.get(f"{moment}/{name}", np.zeros(shape, dtype=np.float32)))
        self.updates = int(state["updates"][0]) if "updates" in state else 0
        self._backend.write(self.totals, state.get("loss", np.zeros(2)))

    def _views(self, flat: Array, trainable: bool) -> dict[str, Array]:
        slots = {name: self.layout.slots[name] for name in self.layout.names(trainable)}
        return {name: self._backend.view(flat, slot.start, slot.spec.shape) for name, slot in slots.items()}

    def _upload(self, values: NDArray[np.float32]) -> Array:
        array = self._zeros(len(values))
        self._backend.write(array, values)
        return array


def _decay(model: Gcn, train: TrainConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weight decay and L2 per element of the flat parameters; 0 for frozen ones."""
    layout, frozen = model.layout(), set(model.frozen_parameters())
    decaying = [name for name in layout.names(True) if layout.slots[name].spec.decays]
    penalised = [f"conv{i}.weight" for i in train.l2_layers] or decaying
    factors = ((decaying, train.weight_decay), (penalised, train.l2))
    decay, l2 = (layout.fill({name: value for name in names if name not in frozen}) for names, value in factors)
    return decay, l2
