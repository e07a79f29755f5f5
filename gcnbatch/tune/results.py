"""Results of a study: the best configuration, the table of trials, the report, and the summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import fileio, tables
from gcnbatch.figures import png
from gcnbatch.pages.document import REPORT, document
from gcnbatch.pages.elements import Html, paragraph, picture, section, table
from gcnbatch.train.experiment import Experiment
from gcnbatch.tune import charts, library
from gcnbatch.tune.record import value_of
from gcnbatch.tune.space import Space, configured
from gcnbatch.tune.study import Study

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BEST, TABLE = "best.toml", "trials.csv"
_LISTED = 10  # trials in the report's table
_DRAWN = 5  # learning curves


def write(
    folder: Path, study: Study, space: Space, experiment: Experiment, say: Callable[[str], object]
) -> dict[str, Any]:
    """Write best.toml, trials.csv and report.html; return the summary."""
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
        fileio.write_text(folder / BEST, _alone(configured(experiment.config, values)).to_toml())
    fileio.write_text(folder / REPORT, _report(folder.name, study, names, summary))
    return summary


def _alone(config: Any) -> Any:
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


# ------------------------------------------------------------------------------------------------ report


def _report(name: str, study: Study, names: Sequence[str], summary: dict[str, Any]) -> str:
    maximize, monitor = study.direction == "maximize", summary["objective"]
    counts = ", ".join(f"{summary[state]} {state}" for state in ("complete", "pruned", "failed"))
    lead = paragraph(f"{summary['trials']} trials: {counts}; {monitor}, {summary['direction']}d", "lead")
    complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not complete:
        return document(f"Study: {name}", [lead, paragraph("No trial is complete.", "verdict")], failed=True)
    best, shares = summary["best"], _importance(study)
    ranked = sorted(complete, key=value_of, reverse=maximize)
    drawn = {
        "History": charts.history(study.trials, maximize, monitor),
        "Importance": charts.importance(shares) if shares else None,
        "Parallel coordinates": charts.parallel(complete, names, maximize, monitor),
        "Learning curves": charts.curves(ranked[:_DRAWN], monitor),
    }
    return document(
        f"Study: {name}",
        [
            lead,
            paragraph(f"Best: {monitor} {best['value']:.4f} in trial {best['number']}.", "verdict"),
            section("Best trials", _best(ranked[:_LISTED], names)),
            *(section(title, picture(png(figure), title)) for title, figure in drawn.items() if figure),
        ],
    )


def _best(trials: Sequence[FrozenTrial], names: Sequence[str]) -> Html:
    rows = []
    for trial in trials:
        epochs = " ".join(str(epoch) for epoch in trial.user_attrs["epochs"])
        cells = [str(trial.user_attrs["number"]), f"{trial.value:.4f}", epochs]
        rows.append([*cells, *(_shown(trial.params.get(name)) for name in names)])
    return table(["trial", "value", "best epochs", *names], rows, words=())


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str("" if value is None else value)


def _importance(study: Study) -> dict[str, float]:
    """Return the share of each parameter in the objective's variance, largest first; empty if it is not defined."""
    optuna = library.optuna()
    memory = optuna.create_study(direction=study.direction)
    memory.add_trials(study.trials)
    try:
        return dict(
            optuna.importance.get_param_importances(
                memory, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
            )
        )
    except (ValueError, RuntimeError):  # fewer than two complete trials, or all equal
        return {}
