"""Model state that a fused engine updates: the base class of the fused runners."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from gcnbatch.backends.cuda.fused.shared.model import DeviceModel, UpdateRule
from gcnbatch.runners.state import ModelState


class Engine(Protocol):
    """An engine that queues steps and launches several together."""

    def flush(self) -> None:
        """Launch the queued steps."""

    def close(self) -> None:
        """Release the engine's resources."""


class FusedState(ModelState):
    """`ModelState` that an engine updates. Every read or write launches the queued steps first."""

    _engine: Engine

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
            packed=(),
        )

    def _optimizer(self) -> UpdateRule:
        """Return the optimiser's settings."""
        train = self._task.train
        is_sgd, decays = train.optimizer == "sgd", bool(train.weight_decay or train.l2)
        beta1 = train.momentum if is_sgd else train.beta1
        return UpdateRule(is_sgd, beta1, train.beta2, train.epsilon, train.clip_norm, decays)

    def take_loss(self) -> tuple[float, float]:
        self._engine.flush()
        return super().take_loss()

    def state(self) -> dict[str, NDArray[Any]]:
        self._engine.flush()
        return super().state()

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        self._engine.flush()
        super().load_state(state)

    def close(self) -> None:
        self._engine.close()
