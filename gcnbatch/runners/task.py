"""What a runner works on."""

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
        What the loss compares with, for every row of the data set: standardised where the run asks for it, missing
        (NaN, -1) where a row must not train. Kinds as in `GraphSet.y`.
    train : TrainConfig
    seed : int
        Of initial weights and dropout.
    """

    model: Gcn
    loss: Loss
    source: BatchSource
    targets: NDArray[Any]
    train: TrainConfig
    seed: int
