"""The task of a runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from gcnbatch.config_sections import TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.model.gcn import Gcn, Loss


@dataclass(frozen=True)
class RunnerTask:
    """A model, a loss and the data that a runner trains or predicts on.

    Parameters
    ----------
    model : Gcn
    loss : Loss
    source : BatchSource
        The data.
    targets : (R, K)
        Targets of every row of the data set, in the types of `GraphSet.y`: standardised if the run says so, and
        missing (NaN, -1) for rows that must not train.
    train : TrainConfig
    seed : int
        Seed of the initial weights and of dropout.
    """

    model: Gcn
    loss: Loss
    source: BatchSource
    targets: NDArray[Any]
    train: TrainConfig
    seed: int
