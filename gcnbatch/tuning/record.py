"""The record of a study: finished trials in an Optuna journal, one line each. A kill at any moment loses none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial
from pydantic import BaseModel, ConfigDict, Field

from gcnbatch import fileio
from gcnbatch.errors import InputError
from gcnbatch.machine import blame
from gcnbatch.training import run_files
from gcnbatch.tuning.space import Space
from gcnbatch.tuning.trials import COMPLETE, FAILED, PRUNED, Direction, Outcome

JOURNAL, STUDY = "study.journal", "gcnbatch"
_EXPECTED = "the journal of a study"
_MOST = 2**53  # of a trial's numbers and seconds


class Record:
    """Finished trials by number, in the study folder. The folder is locked, so the journal needs no lock of its own.

    Parameters
    ----------
    folder : Path
    direction : {"maximize", "minimize"}
    space : Space

    Raises
    ------
    InputError
        When the journal is damaged, or of another space or objective.
    MachineError
        When the disk is full or fails.
    """

    def __init__(self, folder: Path, direction: Direction, space: Space) -> None:
        path = self._path = folder / JOURNAL
        lock: Any = _Locked()
        _cut(path)
        try:
            with fileio.write_errors(path):
                backend = JournalFileBackend(str(path), lock_obj=lock)
                storage = optuna.storages.JournalStorage(backend)
                self._study = optuna.create_study(
                    storage=storage, study_name=STUDY, direction=direction, load_if_exists=True
                )
            trials = self._study.get_trials(deepcopy=False)
            kept = self._study.direction.name.lower()
        except Exception as error:  # whatever Optuna raises on lines that are not its own
            blame(error)
            reason = f"damaged ({type(error).__name__})"
            raise InputError(str(path), reason, _EXPECTED, "Restore it, or start a new study.") from error
        if kept != direction:
            raise InputError(str(path), f"a study that {kept}s its objective", f"one that {direction}s it")
        asked = optuna.create_study().ask()
        space.suggest(asked)
        self.trials = {_number(str(path), trial, asked.distributions): trial for trial in trials}

    def add(self, outcome: Outcome, asked: FrozenTrial) -> None:
        """Write a finished trial."""
        trial = frozen(outcome, asked)
        with fileio.write_errors(self._path):
            self._study.add_trial(trial)
        self.trials[outcome.number] = trial


class _About(BaseModel):
    """What is kept of a trial beside Optuna's entries."""

    model_config = ConfigDict(extra="allow", strict=True)
    number: int = Field(ge=0, le=_MOST)
    values: list[run_files.Number | None]
    epochs: list[Annotated[int, Field(ge=0, le=_MOST)]]
    seconds: Annotated[float, Field(ge=0, le=_MOST)]
    reason: str


class _Finished(BaseModel):
    """What Optuna keeps of a trial."""

    model_config = ConfigDict(strict=True)
    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    values: Annotated[list[run_files.Number], Field(min_length=1, max_length=1)] | None
    intermediate_values: dict[Annotated[int, Field(ge=0, le=_MOST)], run_files.Number]


def _number(place: str, trial: FrozenTrial, space: Mapping[str, BaseDistribution]) -> int:
    """Return the number of a trial of the journal, which may be damaged or a stranger's."""
    place = f"{place}, trial {trial.number}"
    found = run_files.checked(place, trial.user_attrs, _About, _EXPECTED)
    kept = {"values": trial.values, "intermediate_values": trial.intermediate_values}
    run_files.checked(place, {"state": trial.state.name, **kept}, _Finished, _EXPECTED)
    try:  # also of a value that is missing, or outside of the space
        optuna.trial.create_trial(state=trial.state, **kept, params=trial.params, distributions=dict(space))
        is_of_space = trial.distributions == space
    except Exception:  # whatever Optuna raises
        is_of_space = False
    if not is_of_space:
        raise InputError(place, "not a finished trial of this space", _EXPECTED, "Restore it, or start a new study.")
    return found.number


def frozen(outcome: Outcome, asked: FrozenTrial) -> FrozenTrial:
    """Return a finished trial as Optuna keeps it."""
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state={COMPLETE: states.COMPLETE, PRUNED: states.PRUNED, FAILED: states.FAIL}[outcome.state],
        value=None if outcome.state == FAILED else outcome.value,
        params=asked.params,
        distributions=asked.distributions,
        user_attrs={
            "number": outcome.number,
            "values": outcome.values,
            "epochs": outcome.epochs,
            "seconds": outcome.seconds,
            "reason": outcome.reason,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        intermediate_values=dict(outcome.curve),
    )


def running(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial as it was before it ended."""
    state = optuna.trial.TrialState.RUNNING
    return optuna.trial.create_trial(state=state, params=trial.params, distributions=trial.distributions)


def brief(trial: FrozenTrial) -> FrozenTrial:
    """Return what a sampler reads of a finished trial. Optuna copies trials; curves are most of them."""
    if trial.state.name == "PRUNED":
        return trial
    return optuna.trial.create_trial(
        state=trial.state, value=trial.value, params=trial.params, distributions=trial.distributions
    )


class _Locked:
    """The lock of a journal that the folder's lock protects."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _cut(path: Path) -> None:
    """Remove an incomplete last line, which a kill may have left."""
    if not path.exists():
        return
    text = run_files.read_text(path, _EXPECTED)
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        fileio.write_text(path, whole)


def value_of(trial: FrozenTrial) -> float:
    """Return the value of a trial that has one."""
    assert trial.value is not None
    return float(trial.value)
