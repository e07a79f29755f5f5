"""Progress of a fit: all that a resumed run needs besides the arrays, and the decisions after an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from gcnbatch.config_sections import TrainConfig
from gcnbatch.training.schedule import Plateau

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
