"""Results of a study: the best configuration, the table of trials, and the summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import fileio, tables
from gcnbatch.config import Config
from gcnbatch.pages.document import REPORT
from gcnbatch.training import run_files
from gcnbatch.training.experiment import Experiment
from gcnbatch.tuning import library, page
from gcnbatch.tuning.constant import constant_value
from gcnbatch.tuning.page import BEST
from gcnbatch.tuning.record import JOURNAL, value_of
from gcnbatch.tuning.space import Space, configured
from gcnbatch.tuning.splits import splits_of
from gcnbatch.tuning.study import Study

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

TABLE = "trials.csv"


def lost_trials(folder: Path, study: Study) -> tuple[str, str, str] | None:
    """Return subject, found and expected where the journal has fewer trials than the results of an earlier search."""
    count, source = 0, BEST
    if (folder / TABLE).exists():
        count, source = run_files.read_text(folder / TABLE, "the table of trials").count("\n") - 1, TABLE
    elif (folder / BEST).exists():
        count = 1
    if len(study.trials) >= count:
        return None
    return str(folder / JOURNAL), f"{len(study.trials)} trials", f"at least {count}, as {source} has"


def write(
    folder: Path, study: Study, space: Space, experiment: Experiment, base: Config, say: Callable[[str], object]
) -> dict[str, Any]:
    """Write best.toml, trials.csv and report.html; return the summary.

    `base` is the configuration that the study began with, whatever machine goes on with it.
    """
    names = space.names
    trials, best = study.trials, study.best
    tables.write(folder / TABLE, _table(trials, names), experiment.config.parquet)
    summary: dict[str, Any] = {
        "objective": f"valid {experiment.monitor}",
        "direction": study.direction,
        "trials": len(trials),
        **{state: sum(_state(trial) == state for trial in trials) for state in ("complete", "pruned", "failed")},
        "seconds": round(sum(trial.user_attrs["seconds"] for trial in trials), 3),
    }
    if best is None:
        say("no trial is complete; trials.csv has the reasons")
    else:
        values = space.suggest(library.optuna().trial.FixedTrial(best.params))
        summary["best"] = {
            "number": best.user_attrs["number"],
            "value": best.value,
            "values": best.user_attrs["values"],
            "epochs": best.user_attrs["epochs"],
            "parameters": values,
        }
        constant = constant_value(experiment, splits_of(experiment))
        summary["constant"] = constant
        summary["learned"] = constant is None or study.is_better(value_of(best), constant)
        if line := page.not_learned(summary):
            say(line)
        fileio.write_text(folder / BEST, _alone(configured(base, values)).to_toml())
    fileio.write_text(folder / REPORT, page.render(folder, study, space, experiment, summary))
    return summary


def _alone(config: Config) -> Config:
    """Return the configuration of a run on the split whose test rows the search left out."""
    split = config.split.model_copy(update={"folds": 0, "repeats": 1})
    return config.model_copy(update={"split": split})


def _state(trial: FrozenTrial) -> str:
    return "failed" if trial.state.name == "FAIL" else str(trial.state.name).lower()


def _table(trials: Sequence[FrozenTrial], names: Sequence[str]) -> tables.Columns:
    about = [trial.user_attrs for trial in trials]
    return {
        "trial": [one["number"] for one in about],
        "state": [_state(trial) for trial in trials],
        "value": [trial.value for trial in trials],
        "epochs": [" ".join(map(str, one["epochs"])) for one in about],
        "seconds": [one["seconds"] for one in about],
        **{name: [trial.params.get(name) for trial in trials] for name in names},
        "reason": [one["reason"] for one in about],
    }
