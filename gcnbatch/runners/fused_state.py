"""A model's arrays and optimizer as a fused engine takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend
from gcnbatch.backends.cuda.fused.shared.epoch import Rates
from gcnbatch.backends.cuda.fused.shared.model import VALUES, DeviceModel, UpdateRule, member_values
from gcnbatch.backends.cuda.runtime.copies import aligned
from gcnbatch.backends.ops import Array
from gcnbatch.config_sections import TrainConfig
from gcnbatch.model.layers import Dropout
from gcnbatch.model.parameters import ParameterLayout
from gcnbatch.runners.state import MOMENTS, ModelState
from gcnbatch.runners.task import RunnerTask


def device_model(backend: Backend, state: ModelState, task: RunnerTask, zeros: Callable[..., Array]) -> DeviceModel:
    """Return the arrays of a model that an engine works on; `zeros` allocates those that are not in its `state`."""
    rates = [layer.rate for layer in task.model.layers if isinstance(layer, Dropout)]
    values = member_values(task.seed, max(rates, default=0.0), task.train.clip_norm)
    shifts, uploaded = zeros(state.layout.n_buffers), zeros(len(values), np.uint8)
    backend.write(uploaded, values)
    return DeviceModel(
        state.flat,
        state.buffers,
        state.gradients,
        tuple(state.moments.values()),
        state.weight_decay,
        state.l2,
        state.loss_weights,
        state.totals,
        shifts,
        uploaded,
    )


def update_rule(train: TrainConfig) -> UpdateRule:
    """Return the optimizer's settings."""
    is_sgd, decays = train.optimizer == "sgd", bool(train.weight_decay or train.l2)
    beta1 = train.momentum if is_sgd else train.beta1
    return UpdateRule(is_sgd, beta1, train.beta2, train.epsilon, train.clip_norm > 0, decays)


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
