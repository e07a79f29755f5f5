"""Trials in processes of their own, for backends on the host. A trial that ends its process fails, not the study."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gcnbatch.backends import registry
from gcnbatch.config import resolve
from gcnbatch.data.store import Dataset
from gcnbatch.train import warm_start
from gcnbatch.train.experiment import Experiment
from gcnbatch.train.plan import data_file
from gcnbatch.train.processes import run_calls
from gcnbatch.tune.splits import search_splits
from gcnbatch.tune.trials import FAILED, Asked, Outcome, Trials
from gcnbatch.worker import WorkerDied, Workers

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_ENDED = "its process ended, perhaps for lack of memory"


class TrialProcesses:
    """Runs trials in processes.

    Parameters
    ----------
    workers : Workers
    folder : Path
        The study's folder.
    config : str
        The base configuration as JSON; it names the backend.
    """

    def __init__(self, workers: Workers, folder: Path, config: str) -> None:
        self._workers, self._folder, self._config = workers, folder, config

    def run(self, asked: Sequence[Asked], complete: Sequence[FrozenTrial], done: Callable[[Outcome], object]) -> None:
        """Run these trials; see `Trials.run`."""
        calls = {str(one.number): (run_trial, str(self._folder), self._config, one, complete) for one in asked}
        run_calls(self._workers, calls, lambda name, outcome: done(outcome), _died)


def _died(name: str, error: WorkerDied) -> Outcome:
    return Outcome(int(name), FAILED, reason=_ENDED)


def run_trial(folder: str, config: str, asked: Asked, complete: Sequence[FrozenTrial]) -> Outcome:
    """Run a trial in this process and return its outcome."""
    outcomes: list[Outcome] = []
    _opened(folder, config).run([asked], complete, outcomes.append)
    return outcomes[0]


@lru_cache(maxsize=1)
def _opened(folder: str, config: str) -> Trials:
    """Open the data set and the backend of a study; they stay open for the next trial."""
    settings = resolve(json.loads(config))
    dataset = Dataset(data_file(settings, Path(folder)), settings.data.memory_mb, check=False)
    experiment = Experiment(settings, dataset, warm_start.weights(settings, dataset.header, Path(folder)))
    backend = registry.open_backend(settings.backend, settings.device, settings.cuda)
    return Trials(experiment, search_splits(settings, experiment.split_rows), backend)
