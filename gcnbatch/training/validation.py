"""Scores of validation rows: the loss and the monitored metric after an epoch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cpu import CpuOps
from gcnbatch.data.graphs import Split
from gcnbatch.model.gcn import Loss, uniform_weights
from gcnbatch.training import metrics
from gcnbatch.training.experiment import Experiment, Scaling


class Score(NamedTuple):
    """Loss of the validation rows, and their monitored value; None without such rows, or where it is not defined."""

    loss: float | None = None
    monitored: float | None = None


class Validation:
    """The validation rows of a member. Its methods may be called in any thread.

    Parameters
    ----------
    experiment : Experiment
    split : Split
    scaling : Scaling
        Of the member's targets.
    """

    def __init__(self, experiment: Experiment, split: Split, scaling: Scaling) -> None:
        self._target, self._monitor, self._scaling = experiment.header.target, experiment.monitor, scaling
        self._y = experiment.y[split.valid]
        self._scaled = scaling.apply(self._y) if self._target == "regression" else self._y
        self._loss = Loss(self._target, uniform_weights(experiment.header))

    def score(self, logits: NDArray[np.float32] | None) -> Score:
        """Return the scores of logits (R, K). The loss is unweighted, and of regression standardised as in training."""
        if logits is None:
            return Score()
        # NumPy keeps this setting for each thread; a model that diverges may overflow in every operation.
        with np.errstate(over="ignore", invalid="ignore"):
            total, weight, _ = self._loss(CpuOps(), logits, self._scaled, self._loss.weights)
            mean = total / weight if weight and math.isfinite(total) else None
            if self._monitor == "loss":
                return Score(mean, mean)
            return Score(mean, metrics.score(self._monitor, self._target, self._y, self.outputs(logits)))

    def outputs(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the model's outputs for logits of any rows: probabilities, or values in the unit of the targets."""
        return self._scaling.undo(logits) if self._target == "regression" else metrics.activate(self._target, logits)
