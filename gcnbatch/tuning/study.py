"""The search: rounds of trials that a sampler asks for, each trial recorded when it ends.

Later rounds may run beside those just before. The sampler of such a round takes their trials for running ones, also
where they have ended, and knows the results of all others. It is seeded by the round's first trial. So a study depends
on its seed, its space and its data alone, not on the order in which trials end, on kills or on the processes.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import optuna
from optuna.trial import FrozenTrial

from gcnbatch.config import Config
from gcnbatch.timeline import span, spanned
from gcnbatch.tuning.record import Record, brief, running, value_of
from gcnbatch.tuning.space import Space
from gcnbatch.tuning.trials import Direction, Outcome, TrialRequest

_SEEDS = 2**32
_KNOWN = 3  # rounds before a round, for each of them that it may run beside


class Runs(Protocol):
    """Runs trials."""

    def begin(
        self,
        requests: Sequence[TrialRequest],
        complete: Sequence[FrozenTrial],
        done: Callable[[Outcome], object],
        at_once: int,
    ) -> None:
        """Begin trials.

        Parameters
        ----------
        complete : sequence of FrozenTrial
            Trials that the pruner compares with.
        done : callable
            Called with each outcome.
        at_once : int
            How many trials may run now, with these.
        """

    def wait(self) -> None:
        """Wait until trials that have begun end."""


@dataclass(frozen=True)
class Rounds:
    """The rounds, fixed when a study begins.

    Parameters
    ----------
    trials : int
        Trials that are asked for at once.
    alike : bool
        Whether the trials of a round have one architecture, so that they train together.
    beside : int
        Most rounds before that may run beside a round. The first ones run alone: they teach most.
    """

    trials: int
    alike: bool
    beside: int = 0


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
        self._results: list[FrozenTrial] = []  # what samplers know
        self._asked: dict[int, FrozenTrial] = {}

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

    def search(self, count: int, deadline: float, runs: Runs, shown: Callable[[FrozenTrial], object]) -> None:
        """Run trials until there are `count` of them; begin no round after the deadline.

        Parameters
        ----------
        deadline : float
            On the clock `time.monotonic`.
        runs : Runs
        shown : callable
            Called with each trial that ends now.
        """
        known, beside = self._record.trials, deque[range]()
        for first in range(0, count, self.rounds.trials):
            while len(beside) > min(self.rounds.beside, first // self.rounds.trials // _KNOWN):
                self._end(beside.popleft(), runs)
            numbers = range(first, min(first + self.rounds.trials, count))
            if not all(number in known for number in numbers):
                if time.monotonic() >= deadline:
                    break
                self._begin(numbers, [number for own in beside for number in own], runs, shown)
            beside.append(numbers)
        for numbers in beside:
            self._end(numbers, runs)

    def _end(self, numbers: range, runs: Runs) -> None:
        """Wait for the trials of a round, and take their results into account from now on."""
        known = self._record.trials
        with span("wait for trials"):
            while not all(number in known for number in numbers):
                runs.wait()
        self._results += [known[number] for number in numbers]

    def _begin(self, numbers: range, beside: Sequence[int], runs: Runs, shown: Callable[[FrozenTrial], object]) -> None:
        """Begin the trials of a round that are not recorded; the trials `beside` are taken for running ones."""
        known, asked = self._record.trials, self._ask(numbers.start, beside)
        self._asked |= {number: trial for number, (_, trial) in asked.items()}
        missing = [TrialRequest(number, asked[number][0]) for number in numbers if number not in known]
        complete = [trial for trial in self._results if trial.state.name == "COMPLETE"]

        def ended(outcome: Outcome) -> None:
            with span("record a trial"):
                self._record.add(outcome, asked[outcome.number][1])
                shown(known[outcome.number])

        with span("begin a round of trials"):
            runs.begin(missing, complete, ended, len(beside) + len(missing))

    @spanned("ask for a round of trials")
    def _ask(self, first: int, beside: Sequence[int]) -> dict[int, tuple[dict[str, Any], FrozenTrial]]:
        """Return values and parameters of the trials of a whole round by number."""
        sampler = optuna.samplers.TPESampler(seed=(self.base.seed * 1_000_003 + first) % _SEEDS, constant_liar=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(direction=self.direction, sampler=sampler)
        study.add_trials([brief(trial) for trial in self._results])
        study.add_trials([running(self._asked.get(number) or self._record.trials[number]) for number in beside])
        asked: dict[int, tuple[dict[str, Any], FrozenTrial]] = {}
        common: dict[str, Any] = {}
        if not first:
            study.enqueue_trial(self.space.start(self.base))
        for number in range(first, first + self.rounds.trials):
            if common:
                study.enqueue_trial(common)
            trial = study.ask()
            values = self.space.suggest(trial)
            if self.rounds.alike:
                common = self.space.architecture(trial.params)
            asked[number] = values, study.get_trials(deepcopy=False)[trial.number]
        return asked
