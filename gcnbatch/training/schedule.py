"""Learning-rate schedules. A schedule's state fits in JSON, so a resumed run continues it exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from gcnbatch.config_sections import TrainConfig


@dataclass
class Plateau:
    """State of ``schedule = "plateau"``: the current factor, and the epochs since the best validation value or cut."""

    factor: Annotated[float, Field(ge=0, le=1)] = 1.0
    waited: Annotated[int, Field(ge=0)] = 0

    def observe(self, improved: bool, train: TrainConfig) -> None:
        """Count an epoch; reduce the factor after `schedule_every` epochs without a better validation value."""
        self.waited = 0 if improved else self.waited + 1
        if self.waited >= train.schedule_every:
            self.factor *= train.schedule_factor
            self.waited = 0


def learning_rate(train: TrainConfig, epoch: int, plateau: Plateau) -> float:
    """Return the learning rate of `epoch` (from 0).

    - constant: `train.learning_rate`.
    - step: multiplied by `schedule_factor` every `schedule_every` epochs.
    - cosine: ``floor + (start - floor) (1 + cos(pi epoch / epochs)) / 2``. The floor is reached after the last epoch,
      which still trains.
    - plateau: multiplied by the factor of `plateau`.

    It never falls below `schedule_floor`, unless it starts there.

    Notes
    -----
    Cosine: equation 5 of Loshchilov and Hutter, SGDR (ICLR 2017, arXiv 1608.03983), without restarts. T_i is the number
    of epochs, T_cur counts whole epochs from 0.
    """
    start = train.learning_rate
    if train.schedule == "step":
        start *= train.schedule_factor ** (epoch // train.schedule_every)
    elif train.schedule == "cosine":
        floor = min(train.schedule_floor, start)
        return floor + (start - floor) * 0.5 * (1 + math.cos(math.pi * epoch / train.epochs))
    elif train.schedule == "plateau":
        start *= plateau.factor
    return max(start, min(train.schedule_floor, train.learning_rate))


def rates_differ(train: TrainConfig, history: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether past epochs had other learning rates than the schedule gives now.

    They have in a run that an earlier version began with the cosine schedule. The rates of a plateau schedule depend on
    the validation values and are not compared.

    Parameters
    ----------
    train : TrainConfig
    history : iterable of rows of history.jsonl
    """
    if train.schedule == "plateau":
        return False
    rates = (row.get("learning_rate") for row in history)
    return any(rate != learning_rate(train, epoch, Plateau()) for epoch, rate in enumerate(rates))
