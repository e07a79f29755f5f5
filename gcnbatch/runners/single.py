"""The base class of runners of one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend, Clock, MemberEpoch
from gcnbatch.backends.ops import Array
from gcnbatch.data.graphs import Int64
from gcnbatch.runners.state import ModelState
from gcnbatch.runners.task import RunnerTask

EVAL_BATCH_SIZE = 200  # graphs per batch in prediction, as in the papers


class SingleRunner:
    """A `gcnbatch.backends.base.Runner` with K = 1: a subclass computes, this class keeps the state of the model."""

    size = 1

    def __init__(self, backend: Backend, task: RunnerTask) -> None:
        self.backend = backend.name
        self._backend, self._task, self._model = backend, task, ModelState(backend, task)
        self._epoch = MemberEpoch(0, (), 0.0)
        self._steps = range(0)  # of the epoch

    @property
    def eval_batch_size(self) -> int:
        return EVAL_BATCH_SIZE

    def about(self) -> dict[str, Any]:
        return {}

    def begin_epoch(self, epochs: Sequence[MemberEpoch | None]) -> None:
        (own,) = epochs
        self._steps = range(0) if own is None else own.steps
        if own is not None:
            self._epoch = own
            self._begin(own.batches)

    def _begin(self, batches: Sequence[Int64]) -> None:
        """Begin an epoch of these batches, `_epoch`."""

    def expect(self, batches: Sequence[Sequence[Int64] | None]) -> None:
        pass

    def step(self, index: int) -> None:
        if index in self._steps:
            self._step(Clock(self._epoch.epoch, index))

    def _step(self, clock: Clock) -> None:
        """Run a step of `_epoch`."""
        raise NotImplementedError

    def gradients(self, graphs: Int64) -> tuple[float, dict[str, NDArray[Any]]]:
        return read_gradients(self._backend, partial(self._backward, graphs))

    def _backward(self, graphs: Int64, totals: Array) -> dict[str, Array]:
        """Return the gradients of these graphs by name; add their loss and its weight to `totals`, (2,) float64."""
        raise NotImplementedError

    def take_losses(self) -> list[tuple[float, float]]:
        return [self._model.take_loss()]

    def predict(
        self, graphs: Sequence[Int64 | None], rows: Sequence[Int64 | None] | None = None
    ) -> list[NDArray[np.float32] | None]:
        (own,), (asked,) = graphs, rows or (None,)
        return [None if own is None else self._predict(own, asked)]

    def _predict(self, graphs: Int64, rows: Int64 | None) -> NDArray[np.float32]:
        """Return the logits of these graphs, or those rows of them."""
        raise NotImplementedError

    def state(self, member: int = 0) -> dict[str, NDArray[Any]]:
        return self._model.read()

    def weights(self, member: int = 0) -> dict[str, NDArray[Any]]:
        return self._model.weights()

    def load_state(self, state: dict[str, NDArray[Any]], member: int = 0) -> None:
        self._model.write(state)

    def close(self) -> None:
        raise NotImplementedError


def read_gradients(
    backend: Backend, backward: Callable[[Array], dict[str, Array]]
) -> tuple[float, dict[str, NDArray[Any]]]:
    """Return the mean loss, and host copies of the gradients.

    `backward` returns the gradients, and adds the loss and its weight to its argument, (2,) float64.
    """
    totals = backend.zeros(2, np.float64)
    gradients = backward(totals)
    total, count = (float(value) for value in backend.read(totals))
    return total / count if count else 0.0, {name: backend.read(value) for name, value in gradients.items()}
