"""How far a fit is: epoch and step, the best epoch so far, and the learning rate's schedule.

Both fit in JSON, so a resumed run continues them exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


_MOST_SECONDS = 1e10  # 300 years


@dataclass
class Position:
    """Epoch and step, the best epoch so far, and whether training has ended; JSON can hold it.

    Parameters
    ----------
    epoch, step : int
        Finished epochs, and finished steps of the next one.
    best_epoch : int
        From 0; -1 before the first epoch has ended.
    best_value : float or None
        The monitored validation value of the best epoch.
    waited : int
        Epochs since then.
    seconds : float
        The fit's share of the time that its cohort has trained.
    ranks : int
        Number of ranks that trained the last step together.
    """

    epoch: Annotated[int, Field(ge=0)] = 0
    step: Annotated[int, Field(ge=0)] = 0
    best_epoch: Annotated[int, Field(ge=-1)] = -1
    best_value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    waited: Annotated[int, Field(ge=0)] = 0
    plateau: Plateau = field(default_factory=Plateau)
    seconds: Annotated[float, Field(ge=0, le=_MOST_SECONDS)] = 0.0
    finished: bool = False
    ranks: Annotated[int, Field(ge=1)] = 1

    def end_epoch(self, value: float | None, higher_is_better: bool, train: TrainConfig) -> bool:
        """Count the epoch and its monitored value; return whether it is the best so far."""
        improved = self._is_better(value, higher_is_better, train.min_delta)
        if improved:
            self.best_epoch, self.best_value = self.epoch, value
        self.waited = 0 if improved else self.waited + 1
        self.plateau.observe(improved, train)
        self.epoch, self.step = self.epoch + 1, 0
        return improved

    def stops_early(self, train: TrainConfig) -> bool:
        """Return whether `train.patience` epochs brought no better value."""
        return bool(train.patience) and self.waited >= train.patience

    def _is_better(self, value: float | None, higher_is_better: bool, min_delta: float) -> bool:
        """Return whether a value is the best so far: any epoch is, as long as no epoch has a monitored value."""
        best = self.best_value
        if value is None or best is None:
            return best is None
        return (value - best if higher_is_better else best - value) > min_delta
