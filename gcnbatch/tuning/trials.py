"""Training of trials: those of one architecture train in one cohort, with the folds of each trial in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, Trial

from gcnbatch import metrics
from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.blas import one_of
from gcnbatch.data.graphs import Split
from gcnbatch.errors import BackendUnavailable, DeviceLost, GcnbatchError, InputError, MachineError
from gcnbatch.machine import cores
from gcnbatch.runners.choice import cohort_size, make_runner
from gcnbatch.runners.cohort import JoinedRunner, group
from gcnbatch.training import loop
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.fit import Fit
from gcnbatch.tuning.space import configured

Direction = Literal["maximize", "minimize"]
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
_STARTUP_TRIALS = 5  # complete trials before any is pruned
_WARM_UP = 0.1  # share of the epochs before a trial may be pruned


@dataclass(frozen=True)
class TrialRequest:
    """A trial to run: its number and the values of its keys."""

    number: int
    values: dict[str, Any]


@dataclass
class Outcome:
    """Result of a trial.

    Parameters
    ----------
    number : int
    state : {"complete", "pruned", "failed"}
    value : float or None
        Mean over the splits of the best validation value.
    values : list of float or None
        Per split.
    epochs : list of int
        Best epoch per split, from 1.
    curve : list of (int, float)
        After each epoch, the mean of the best validation values so far.
    seconds : float
        Its share of the training time.
    reason : str
        Why it failed.
    """

    number: int
    state: str
    value: float | None = None
    values: list[float | None] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""


class _Pruned(GcnbatchError):
    """The pruner stopped the trial."""


class _Run:
    """A trial in training."""

    def __init__(self, request: TrialRequest, members: list[Fit], trial: Trial) -> None:
        self.number, self.members, self.trial = request.number, members, trial
        self.curve: list[tuple[int, float]] = []

    def after_epoch(self) -> None:
        """Report the value after an epoch; stop the members if the pruner says so."""
        values = [member.position.best_value for member in self.members]
        known = [value for value in values if value is not None]
        if len(known) < len(values) or any(member.failure for member in self.members):
            return
        step = max(member.position.epoch for member in self.members)
        self.curve.append((step, fmean(known)))
        self.trial.report(self.curve[-1][1], step)
        if any(member.running for member in self.members) and self.trial.should_prune():
            for member in self.members:
                member.failure = _Pruned("pruned")

    def outcome(self, error: BaseException | None = None) -> Outcome:
        """Return the result; `error` is why the cohort failed."""
        values = [member.position.best_value for member in self.members]
        known = [value for value in values if value is not None]
        found = Outcome(self.number, COMPLETE, curve=self.curve, values=values)
        found.epochs = [member.position.best_epoch + 1 for member in self.members]
        found.seconds = round(sum(member.seconds for member in self.members), 3)
        failures = [error or member.failure for member in self.members]
        first = next((one for one in failures if one is not None and not isinstance(one, _Pruned)), None)
        if first is not None:
            found.state, found.reason = FAILED, str(first) or type(first).__name__
        elif len(known) < len(values):
            found.state, found.reason = FAILED, "the validation rows give no value"
        else:
            found.value = fmean(known)
            found.state = PRUNED if any(failures) else COMPLETE
        return found


class Trials:
    """Runs trials on one backend.

    Parameters
    ----------
    experiment : Experiment
        Of the base configuration, whose `jobs` bounds a cohort; 0: as many as the backend takes.
    splits : sequence of Split
    backend : Backend
    """

    def __init__(self, experiment: Experiment, splits: Sequence[Split], backend: Backend) -> None:
        self._experiment, self._splits, self._backend = experiment, splits, backend
        self._jobs = experiment.config.jobs

    def begin(
        self,
        requests: Sequence[TrialRequest],
        complete: Sequence[FrozenTrial],
        done: Callable[[Outcome], object],
        at_once: int = 0,
    ) -> None:
        """Run these trials to their ends, as `gcnbatch.tuning.study.Runs`.

        Raises
        ------
        Interrupted
            After Ctrl-C.
        MachineError
            When the device is lost.
        """
        judge = pruning_study(self._experiment, complete)
        runs = []
        for one in requests:
            try:
                runs.append(_Run(one, self._members(one), judge.ask()))
            except InputError as error:
                done(Outcome(one.number, FAILED, reason=str(error)))
        for numbers in group([run.members[0].task for run in runs]):
            together = [runs[number] for number in numbers]
            tasks = [member.task for run in together for member in run.members]
            size = cohort_size(self._backend, tasks, self._jobs)
            count = max(size // len(self._splits), 1)
            for start in range(0, len(together), count):
                self._train(together[start : start + count], requests, judge, done)

    def wait(self) -> None:
        """Refuse: trials have ended when `begin` returns."""
        raise AssertionError

    def _train(
        self, runs: Sequence[_Run], requests: Sequence[TrialRequest], judge: Any, done: Callable[[Outcome], object]
    ) -> None:
        """Train these trials in one cohort. If the machine fails, train each alone; the one that fails then failed."""
        error: BaseException | None = None
        try:
            members = [member for run in runs for member in run.members]
            with one_of(cores()):  # however many trials run side by side
                loop.fit(members, self._form, None, True, partial(_after_epoch, runs), tolerant=True)
        except (DeviceLost, BackendUnavailable):
            raise
        except (MachineError, MemoryError, InputError) as failure:
            error = failure
        if error is None or len(runs) == 1:
            for run in runs:
                done(run.outcome(error))
            return
        given = {one.number: one for one in requests}
        for run in runs:
            alone = given[run.number]
            self._train([_Run(alone, self._members(alone), judge.ask())], requests, judge, done)

    def _members(self, request: TrialRequest) -> list[Fit]:
        config = configured(self._experiment.config, request.values)
        experiment = self._experiment.like(config)
        return [Fit(experiment, split) for split in self._splits]

    def _form(self, waiting: Sequence[Fit]) -> Runner:
        """Return one cohort of all these members, so that the folds of a trial stay in lockstep."""
        runners: list[Runner] = []
        tasks = [member.task for member in waiting]
        try:
            while tasks:
                size = cohort_size(self._backend, tasks, self._jobs)
                runners.append(make_runner(self._backend, tasks[:size]))
                tasks = tasks[size:]
        except BaseException:
            for runner in runners:
                runner.close()
            raise
        return runners[0] if len(runners) == 1 else JoinedRunner(runners)


def _after_epoch(runs: Sequence[_Run], members: dict[int, Fit]) -> None:
    trained = set(members.values())
    for run in runs:
        if trained & set(run.members):
            run.after_epoch()


def direction(experiment: Experiment) -> Direction:
    """Return whether the objective is to be maximised or minimised, in Optuna's words."""
    return "maximize" if metrics.higher_is_better(experiment.monitor) else "minimize"


def pruning_study(experiment: Experiment, complete: Sequence[FrozenTrial]) -> Any:
    """Return a study in memory whose pruner compares trials with complete ones.

    A trial is pruned when its best value so far is worse than the median of theirs after as many epochs.
    """
    epochs = experiment.config.train.epochs
    pruner = optuna.pruners.MedianPruner(_STARTUP_TRIALS, n_warmup_steps=max(1, int(_WARM_UP * epochs)))
    study = optuna.create_study(direction=direction(experiment), pruner=pruner)
    study.add_trials(complete)
    return study
