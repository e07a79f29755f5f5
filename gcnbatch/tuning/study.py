"""The search: rounds of trials that a sampler asks for, each trial recorded when it ends.

A round begins when all trials of the one before have ended, and its sampler is seeded by its first trial. So a study
depends on its seed, its space and its data alone, not on the order in which trials end, on kills or on the processes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from gcnbatch.config import Config
from gcnbatch.tuning.record import Record, value_of
from gcnbatch.tuning.space import Space
from gcnbatch.tuning.trials import Direction, Outcome, TrialRequest

# Runs trials; takes the complete ones before, and a function that takes each outcome as it ends.
Run = Callable[[Sequence[TrialRequest], Sequence["FrozenTrial"], Callable[[Outcome], object]], object]
_SEEDS = 2**32


@dataclass(frozen=True)
class Rounds:
    """Sizes of the rounds, fixed when a study begins.

    Parameters
    ----------
    trials : int
        Trials that are asked for at once.
    alike : bool
        Whether the trials of a round have one architecture, so that they train together.
    """

    trials: int
    alike: bool


class Study:
    """A search in progress.

    Parameters
    ----------
    space : Space
    record : Record
    rounds : Rounds
    base : Config
        That the study began with, whatever machine goes on with it. Its seed is that of the search; the first trial
        has its values, as far as the space holds them.
    """

    def __init__(self, space: Space, record: Record, rounds: Rounds, base: Config, direction: Direction) -> None:
        self.space, self._record, self.rounds, self.base = space, record, rounds, base
        self.direction = direction
        self._study = optuna.create_study(direction=direction)  # in memory: trials are asked for and told here

    @property
    def trials(self) -> list[FrozenTrial]:
        """The finished trials in the order of their numbers."""
        return [self._record.trials[number] for number in sorted(self._record.trials)]

    @property
    def best(self) -> FrozenTrial | None:
        """The complete trial with the best value, the first of equals."""
        complete = [trial for trial in self.trials if trial.state.name == "COMPLETE"]
        sign = -1.0 if self.direction == "maximize" else 1.0
        return min(complete, key=lambda trial: sign * value_of(trial), default=None)

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value of the objective is better than another one."""
        return value > than if self.direction == "maximize" else value < than

    def search(self, count: int, deadline: float, run: Run, shown: Callable[[FrozenTrial], object]) -> None:
        """Run trials until there are `count` of them; begin no round after the deadline.

        Parameters
        ----------
        deadline : float
            On the clock `time.monotonic`.
        run : callable
        shown : callable
            Called with each trial that ends now.
        """
        known = self._record.trials
        for first in range(0, count, self.rounds.trials):
            numbers = range(first, min(first + self.rounds.trials, count))
            if not all(number in known for number in numbers):
                if time.monotonic() >= deadline:
                    return
                self._run(numbers, run, shown)
            self._study.add_trials([known[number] for number in numbers])

    def _run(self, numbers: range, run: Run, shown: Callable[[FrozenTrial], object]) -> None:
        """Run the trials of a round that are not recorded."""
        known, asked = self._record.trials, self._ask(numbers.start)
        missing = [TrialRequest(number, asked[number][0]) for number in numbers if number not in known]
        complete = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]

        def ended(outcome: Outcome) -> None:
            self._record.add(outcome, asked[outcome.number][1])
            shown(known[outcome.number])

        run(missing, complete, ended)

    def _ask(self, first: int) -> dict[int, tuple[dict[str, Any], FrozenTrial]]:
        """Return values and parameters of the trials of a whole round by number.

        They are asked of a copy of the study, so that the study holds finished trials only.
        """
        sampler = optuna.samplers.TPESampler(seed=(self.base.seed * 1_000_003 + first) % _SEEDS, constant_liar=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            copy = optuna.create_study(direction=self.direction, sampler=sampler)
        copy.add_trials(self._study.get_trials(deepcopy=False))
        asked: dict[int, tuple[dict[str, Any], FrozenTrial]] = {}
        common: dict[str, Any] = {}
        if not first:
            copy.enqueue_trial(self.space.start(self.base))
        for number in range(first, first + self.rounds.trials):
            if common:
                copy.enqueue_trial(common)
            trial = copy.ask()
            values = self.space.suggest(trial)
            if self.rounds.alike:
                common = self.space.architecture(trial.params)
            asked[number] = values, copy.get_trials(deepcopy=False)[trial.number]
        return asked
