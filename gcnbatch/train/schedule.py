"""Learning-rate schedules. A schedule's state fits in JSON, so a resumed run continues it exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gcnbatch.config_sections import TrainConfig


@dataclass
class Plateau:
    """State of ``schedule = "plateau"``: the current factor, and the epochs since the best validation value or cut."""

    factor: float = 1.0
    waited: int = 0

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
    - cosine: half a cosine period from the start value to `schedule_floor` over all epochs.
    - plateau: multiplied by the factor of `plateau`.

    It never falls below `schedule_floor`, unless it starts there.
    """
    start = train.learning_rate
    if train.schedule == "step":
        start *= train.schedule_factor ** (epoch // train.schedule_every)
    elif train.schedule == "cosine":
        turn = epoch / max(train.epochs - 1, 1)
        floor = min(train.schedule_floor, start)
        return floor + (start - floor) * 0.5 * (1 + math.cos(math.pi * turn))
    elif train.schedule == "plateau":
        start *= plateau.factor
    return max(start, min(train.schedule_floor, train.learning_rate))
