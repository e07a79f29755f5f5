"""Results of a study: the best configuration, the table of trials, and the summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from gcnbatch import fileio, metrics, tables
from gcnbatch.config import Config
from gcnbatch.data.graphs import Split
from gcnbatch.moments import moments
from gcnbatch.pages.document import REPORT
from gcnbatch.training import run_files
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.targets import left_out
from gcnbatch.tuning import page
from gcnbatch.tuning.page import BEST
from gcnbatch.tuning.record import JOURNAL, value_of
from gcnbatch.tuning.space import configured
from gcnbatch.tuning.splits import splits_of
from gcnbatch.tuning.study import Study
from gcnbatch.workers.pool import INLINE

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
    folder: Path,
    study: Study,
    experiment: Experiment,
    say: Callable[[str], object],
    processes: Executor = INLINE,
) -> dict[str, Any]:
    """Write best.toml, trials.csv and report.html, whose charts `processes` draw; return the summary."""
    trials, best = study.trials, study.best
    tables.write(folder / TABLE, _table(trials, study.space.names), experiment.config.parquet)
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
        values = study.space.suggest(optuna.trial.FixedTrial(best.params))
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
        fileio.write_text(folder / BEST, _alone(configured(study.base, values)).to_toml())
    fileio.write_text(folder / REPORT, page.render(folder, study, experiment, summary, processes))
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


def constant_value(experiment: Experiment, splits: Sequence[Split]) -> float | None:
    """Return the objective of a model that learned nothing: it gives all rows the mean of the training labels.

    None for the loss, and where it is not defined.
    """
    if experiment.monitor == "loss":
        return None
    target, y = experiment.header.target, experiment.y
    values = []
    for split in splits:
        mean = _mean_labels(y[split.train], experiment.header.n_outputs)
        outputs = np.tile(mean, (len(split.valid), 1))
        labels = metrics.without_tasks(experiment.measured[split.valid], left_out(experiment.header, y[split.train]))
        values.append(metrics.score(experiment.monitor, target, labels, outputs))
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _mean_labels(y: NDArray[Any], outputs: int) -> NDArray[np.floating]:
    """Return the mean of each column, or the shares of the classes."""
    if y.dtype.kind == "i":
        counts = np.bincount(y[y >= 0], minlength=outputs)
        return (counts / max(counts.sum(), 1)).astype(np.float32)
    return moments(y)[0].astype(y.dtype)
