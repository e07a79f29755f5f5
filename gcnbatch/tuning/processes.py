"""Trials in processes of their own, for backends on the host, or on ranks, for all backends.

On the host, a trial that ends its process fails, not the study.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from optuna.trial import FrozenTrial

from gcnbatch.ranks.pool import RankWorkers
from gcnbatch.training.processes import open_again, run_calls
from gcnbatch.tuning.splits import splits_of
from gcnbatch.tuning.trials import FAILED, Outcome, TrialRequest, Trials
from gcnbatch.worker import WorkerDied, Workers

_ENDED = "its process ended, perhaps for lack of memory"


def run_in_processes(
    workers: RankWorkers | Workers,
    folder: Path,
    config: str,
    together: int,
    requests: Sequence[TrialRequest],
    complete: Sequence[FrozenTrial],
    done: Callable[[Outcome], object],
) -> None:
    """Run trials in processes; `requests`, `complete` and `done` as in `Trials.run`.

    Parameters
    ----------
    folder : Path
        The study's folder.
    config : str
        The base configuration as JSON; it names the backend.
    together : int
        Trials that a process takes at once.
    """
    groups = {
        str(requests[start].number): requests[start : start + together] for start in range(0, len(requests), together)
    }
    calls = {name: (run_trials, str(folder), config, group, complete) for name, group in groups.items()}

    def ended(name: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            done(outcome)

    def died(name: str, error: WorkerDied) -> list[Outcome]:
        return [Outcome(one.number, FAILED, reason=_ENDED) for one in groups[name]]

    run_calls(workers, calls, ended, died)


def run_trials(
    folder: str, config: str, requests: Sequence[TrialRequest], complete: Sequence[FrozenTrial]
) -> list[Outcome]:
    """Run trials in this process and return their outcomes."""
    outcomes: list[Outcome] = []
    _opened(folder, config).run(requests, complete, outcomes.append)
    return outcomes


@lru_cache(maxsize=1)
def _opened(folder: str, config: str) -> Trials:
    """Open the data set and the backend of a study; they stay open for the next trial."""
    experiment, backend = open_again(Path(folder), config)
    return Trials(experiment, splits_of(experiment), backend)
