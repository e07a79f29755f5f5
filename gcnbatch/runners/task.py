"""The task of a runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.config_sections import TrainConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.schema import Header
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
        Targets of every row of the data set as the model sees them: float32, standardised if the run says so, or int32
        of classes; missing (NaN, -1) for rows that must not train. Of a weighted loss, weighted targets of these.
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


def no_targets(header: Header, rows: int) -> NDArray[Any]:
    """Return missing targets (R, K) of a task that only predicts."""
    if header.target == "multiclass":
        return np.full((rows, 1), -1, np.int32)
    return np.full((rows, header.n_outputs), np.nan, np.float32)
