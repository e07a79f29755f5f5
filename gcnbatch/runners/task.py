"""The task of a runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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
    initial : mapping
        Parameters and running statistics by name that start with these values instead of those of the seed.
    """

    model: Gcn
    loss: Loss
    source: BatchSource
    targets: NDArray[Any]
    train: TrainConfig
    seed: int
    initial: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
