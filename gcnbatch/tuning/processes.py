"""Trials in processes of their own, for backends on the host, or on ranks, for all backends.

On the host, a trial that ends its process fails, not the study.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from pathlib import Path

from optuna.trial import FrozenTrial

from gcnbatch.timeline import span
from gcnbatch.training.processes import Calls, open_again
from gcnbatch.tuning.splits import splits_of
from gcnbatch.tuning.trials import FAILED, Outcome, TrialRequest, Trials
from gcnbatch.workers.pool import WorkerDied

_ENDED = "its process ended, perhaps for lack of memory"


class TrialsInProcesses:
    """As `gcnbatch.tuning.trials.Trials`, in processes.

    Parameters
    ----------
    calls : Calls
    folder : Path
        The study's folder.
    config : str
        The base configuration as JSON; it names the backend.
    devices : int
        Processes that train several trials at once, and share those that may run now; 0: a process takes one trial.
    """

    def __init__(self, calls: Calls, folder: Path, config: str, devices: int) -> None:
        self._calls, self._about, self._devices = calls, (str(folder), config), devices

    def begin(
        self,
        requests: Sequence[TrialRequest],
        complete: Sequence[FrozenTrial],
        done: Callable[[Outcome], object],
        at_once: int,
    ) -> None:
        """Begin these trials, as `gcnbatch.tuning.study.Runs`."""

        def ended(group: Sequence[TrialRequest], call: Future[list[Outcome]]) -> None:
            try:
                outcomes = call.result()
            except WorkerDied:
                outcomes = [Outcome(one.number, FAILED, reason=_ENDED) for one in group]
            assert len(outcomes) == len(group), "every trial has an outcome"
            for outcome in outcomes:
                done(outcome)

        together = -(-at_once // self._devices) if self._devices else 1
        for start in range(0, len(requests), together):
            group = requests[start : start + together]
            self._calls.begin(partial(ended, group), run_trials, *self._about, group, complete)

    def wait(self) -> None:
        """Wait until trials end."""
        self._calls.wait()


def run_trials(
    folder: str, config: str, requests: Sequence[TrialRequest], complete: Sequence[FrozenTrial]
) -> list[Outcome]:
    """Run trials in this process and return their outcomes."""
    outcomes: list[Outcome] = []
    with span("open the study again"):
        trials = _opened(folder, config)
    trials.begin(requests, complete, outcomes.append)
    return outcomes


@lru_cache(maxsize=1)
def _opened(folder: str, config: str) -> Trials:
    """Open the data set and the backend of a study; they stay open for the next trial."""
    experiment, backend = open_again(Path(folder), config)
    return Trials(experiment, splits_of(experiment), backend)
