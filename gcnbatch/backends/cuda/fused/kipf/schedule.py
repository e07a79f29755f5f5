"""The schedule of training steps on the device: each step's dropout counters and optimizer rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gcnbatch.backends.cuda.fused.shared.model import UpdateRule
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.sources import declared

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

SCHEDULED = 1024  # steps in a schedule
RATE = declared("dense/optimizer.cuh").layout("Rate").dtype
# int32 copies of the step's number: one per reader, and further ones that align the next arrays
PROGRESS = 4 * ceil_div(declared("fused/kipf/step.cu").enum("Reader")["READERS"], 4)


class TrainingStep(NamedTuple):
    """One step with its numbers in dropout and in the optimizer.

    Parameters
    ----------
    epoch, step : int
        The counters of dropout.
    steps : int
        Steps per epoch.
    learning_rate : float
    update : int
        Number of the update, from 1.
    """

    epoch: int
    step: int
    steps: int
    learning_rate: float
    update: int

    def later(self, steps: int) -> TrainingStep:
        """Return the step that comes `steps` steps later if the learning rate stays the same."""
        epochs, step = divmod(self.step + steps, self.steps)
        return TrainingStep(self.epoch + epochs, step, self.steps, self.learning_rate, self.update + steps)


class StepSchedule:
    """The next steps in device memory: the requested steps, then the expected ones.

    Steps that come as expected need no upload. Step i of the schedule uses buffer i % 2 of the double buffers.
    """

    def __init__(self, device: Device, rule: UpdateRule) -> None:
        self._device, self._rule = device, rule
        size = SCHEDULED + 2
        self._array = device.empty(PROGRESS + (2 + RATE.itemsize // 4) * size, np.int32)
        self.progress = self._array.view(0, PROGRESS)
        self.keys = self._array.view(PROGRESS, 2 * size)
        self.rates = self._array.view(PROGRESS + 2 * size, RATE.itemsize // 4 * size).astype_view(RATE)
        self._known: list[TrainingStep] = []  # the first steps; all others follow from the last of them
        self._next = 0
        self._staged: tuple[int, int] | None = None  # epoch and step whose U the device holds for step `_next`

    def _step(self, number: int) -> TrainingStep:
        beyond = number - len(self._known) + 1
        return self._known[-1].later(beyond) if beyond > 0 else self._known[number]

    def fits(self, steps: Sequence[TrainingStep]) -> bool:
        """Return whether these steps come next and the dropout of the first is staged."""
        if self._staged != steps[0][:2] or self._next + len(steps) > SCHEDULED:
            return False
        return all(self._step(self._next + i) == step for i, step in enumerate(steps))

    def replace(self, steps: Sequence[TrainingStep]) -> None:
        """Upload a schedule that begins with these steps. The dropout of the first must be staged before it runs."""
        self._next = self._next & 1
        self._known = [steps[0]] * self._next + list(steps)
        last, size = self._known[-1], SCHEDULED + 2
        beyond = np.arange(1, size - len(self._known) + 1)
        epochs, numbers = np.divmod(last.step + beyond, last.steps)
        same = np.ones(len(beyond))
        expected = (last.epoch + epochs, numbers, last.steps * same, last.learning_rate * same, last.update + beyond)
        table = np.concatenate([np.array(self._known, np.float64), np.column_stack(expected)])  # as TrainingStep
        keys, updates = table[:, :2].astype(np.int32), table[:, 4]
        rates = np.zeros(size, RATE)
        rates["learning_rate"] = table[:, 3]
        if not self._rule.sgd:
            rates["correction1"] = 1.0 / (1.0 - self._rule.beta1**updates)
            rates["correction2"] = 1.0 / (1.0 - self._rule.beta2**updates)
        before = np.full(PROGRESS, self._next - 1, np.int32)
        packed = np.concatenate([before, keys.ravel(), rates.view(np.int32)])
        self._device.upload(packed, self._array)

    def mark_staged(self) -> None:
        """Set the device's progress to the first step, whose dropout is staged."""
        self._device.upload(np.full(PROGRESS, self._next, np.int32), self.progress)
        self._staged = self._step(self._next)[:2]

    def advance(self, steps: int) -> None:
        """Advance by `steps` steps that the device runs; the last of them stages the next step."""
        self._next += steps
        self._staged = self._step(self._next)[:2]
