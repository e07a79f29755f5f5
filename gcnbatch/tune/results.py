"""Results of a study: the best configuration, the table of trials, the report, and the summary."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch import fileio
from gcnbatch.figures import image
from gcnbatch.text import csv_cell, html
from gcnbatch.train.experiment import Experiment
from gcnbatch.tune import charts, library
from gcnbatch.tune.record import value_of
from gcnbatch.tune.space import Space, configured
from gcnbatch.tune.study import Study
from gcnbatch.webpage import document

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BEST, TABLE, REPORT = "best.toml", "trials.csv", "report.html"
_LISTED = 10  # trials in the report's table
_DRAWN = 5  # learning curves


def write(
    folder: Path, study: Study, space: Space, experiment: Experiment, say: Callable[[str], object]
) -> dict[str, Any]:
    """Write best.toml, trials.csv and report.html; return the summary."""
    names = space.names
    trials, best = study.trials, study.best
    fileio.write_text(folder / TABLE, _table(trials, names))
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


def _table(trials: Sequence[FrozenTrial], names: Sequence[str]) -> str:
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["trial", "state", "value", "epochs", "seconds", *names, "reason"])
    for trial in trials:
        about = trial.user_attrs
        value = "" if trial.value is None else repr(trial.value)
        epochs = " ".join(str(epoch) for epoch in about["epochs"])
        cells = [csv_cell(str(trial.params.get(name, ""))) for name in names]
        row = [about["number"], _state(trial), value, epochs, about["seconds"], *cells, csv_cell(about["reason"])]
        writer.writerow(row)
    return stream.getvalue()


# ------------------------------------------------------------------------------------------------ report


def _report(name: str, study: Study, names: Sequence[str], summary: dict[str, Any]) -> str:
    maximize, monitor = study.direction == "maximize", summary["objective"]
    counts = ", ".join(f"{summary[state]} {state}" for state in ("complete", "pruned", "failed"))
    body = [
        f"<h1>Study: {html(name)}</h1>",
        f'<p class="soft">{summary["trials"]} trials: {counts}; {html(monitor)}, {summary["direction"]}d</p>',
    ]
    complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not complete:
        return document(f"Study: {name}", [*body, '<p class="verdict">No trial is complete.</p>'], "failed")
    best = summary["best"]
    body.append(f'<p class="verdict">Best: {html(monitor)} {best["value"]:.4f} in trial {best["number"]}.</p>')
    ranked = sorted(complete, key=value_of, reverse=maximize)
    body += ["<section><h2>Best trials</h2>", _html_table(ranked[:_LISTED], names), "</section>"]
    body += [
        "<section><h2>History</h2>",
        image(charts.history(study.trials, maximize, monitor), "History"),
        "</section>",
    ]
    if shares := _importance(study):
        drawn = image(charts.importance(shares), "Importance of each key")
        body += ["<section><h2>Importance</h2>", drawn, "</section>"]
    drawn = image(charts.parallel(complete, names, maximize, monitor), "Parallel coordinates")
    body += ["<section><h2>Parallel coordinates</h2>", drawn, "</section>"]
    body += ["<section><h2>Learning curves</h2>", image(charts.curves(ranked[:_DRAWN], monitor), "Learning curves")]
    return document(f"Study: {name}", [*body, "</section>"])


def _html_table(trials: Sequence[FrozenTrial], names: Sequence[str]) -> str:
    head = "".join(f"<th>{html(name)}</th>" for name in ("trial", "value", "best epochs", *names))
    rows = []
    for trial in trials:
        epochs = " ".join(str(epoch) for epoch in trial.user_attrs["epochs"])
        cells = [str(trial.user_attrs["number"]), f"{trial.value:.4f}", epochs]
        cells += [_shown(trial.params.get(name)) for name in names]
        rows.append("<tr>" + "".join(f"<td>{html(cell)}</td>" for cell in cells) + "</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>'


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
