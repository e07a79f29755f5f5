"""Model state that a fused engine updates: the base class of the fused runners."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.fused.shared.epoch import Rates
from gcnbatch.backends.cuda.fused.shared.model import VALUES, DeviceModel, UpdateRule, member_values
from gcnbatch.backends.cuda.runtime.copies import aligned
from gcnbatch.backends.ops import Array
from gcnbatch.config_sections import TrainConfig
from gcnbatch.model.layers import Dropout
from gcnbatch.model.parameters import ParameterLayout
from gcnbatch.runners.state import MOMENTS, ModelState
from gcnbatch.runners.task import RunnerTask


class Engine(Protocol):
    """An engine that queues steps and launches several together."""

    def flush(self) -> None:
        """Launch the queued steps."""

    def close(self) -> None:
        """Release the engine's resources."""


class FusedState(ModelState):
    """`ModelState` that an engine updates. Every read or write launches the queued steps first."""

    _engine: Engine

    def __init__(self, backend: FusedBackend, task: RunnerTask, zeros: Callable[..., Array] | None = None) -> None:
        super().__init__(backend, task, zeros)
        self._on = backend.device

    def _model(self) -> DeviceModel:
        """Return the arrays that the engine works on."""
        return DeviceModel(
            self._flat,
            self._buffers,
            self._gradients,
            tuple(self._moments.values()),
            self._weight_decay,
            self._l2,
            self._loss_weights,
            self._totals,
            self._zeros(self.layout.n_buffers),
            self._values(),
        )

    def _values(self) -> Array:
        """Upload the numbers that members of a cohort may differ in."""
        rates = [layer.rate for layer in self._task.model.layers if isinstance(layer, Dropout)]
        values = member_values(self._task.seed, max(rates, default=0.0), self._task.train.clip_norm)
        array = self._zeros(len(values), np.uint8)
        self._at.write(array, values)
        return array

    def _optimizer(self) -> UpdateRule:
        """Return the optimiser's settings."""
        train = self._task.train
        is_sgd, decays = train.optimizer == "sgd", bool(train.weight_decay or train.l2)
        beta1 = train.momentum if is_sgd else train.beta1
        return UpdateRule(is_sgd, beta1, train.beta2, train.epsilon, train.clip_norm > 0, decays)

    def take_loss(self) -> tuple[float, float]:
        self._engine.flush()
        ((loss, weight),) = self._on.fetch_rows(self._totals, self._totals.nbytes, 1, clears=True).tolist()
        return loss, weight

    def state(self) -> dict[str, NDArray[Any]]:
        self._engine.flush()
        return super().state()

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        self._engine.flush()
        super().load_state(state)

    def close(self) -> None:
        self._engine.close()


def state_bytes(layout: ParameterLayout, train: TrainConfig, loss_weights: int) -> int:
    """Return the bytes of a model's arrays in an arena."""
    floats = [layout.n_trainable] * (4 + len(MOMENTS[train.optimizer])) + [layout.n_buffers] * 2 + [loss_weights]
    return sum(aligned(4 * count) for count in floats) + aligned(2 * 8) + aligned(VALUES.size)


def rates_of_steps(train: TrainConfig, updates: int, steps: int, first: int, learning_rate: float) -> Rates:
    """Return the learning rate and Adam's bias corrections of each step; step `first` follows `updates` updates."""
    return Rates(learning_rate, _corrections(train.beta1, train.beta2, updates + 1 - first, steps))


@lru_cache(maxsize=8)  # most members of a cohort have the same
def _corrections(beta1: float, beta2: float, number: int, steps: int) -> NDArray[np.float32]:
    """Return Adam's bias corrections of updates number … number + steps - 1, (steps, 2); those below 1 count as 1."""
    numbers = np.maximum(number + np.arange(steps), 1).astype(np.float64)
    return np.stack([1.0 / (1.0 - beta**numbers) for beta in (beta1, beta2)], axis=1).astype(np.float32)
