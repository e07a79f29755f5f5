"""The page of a study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from gcnbatch.metrics import label
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import Html, code, details, facts, paragraph, picture, section, table
from gcnbatch.pages.origin import software, started
from gcnbatch.text import counted, figure
from gcnbatch.training import run_files
from gcnbatch.training.experiment import Experiment
from gcnbatch.training.run import read_config
from gcnbatch.training.run_files import CONFIG
from gcnbatch.tuning import charts
from gcnbatch.tuning.record import value_of
from gcnbatch.tuning.space import Space
from gcnbatch.tuning.study import Study
from gcnbatch.workers.pool import INLINE

SPACE, BEST = "space.toml", "best.toml"
_LISTED = 10  # trials in the table


def objective(summary: dict[str, Any]) -> str:
    """Return the name of the objective for readers."""
    part, metric = summary["objective"].split(" ")
    return f"{part} {label(metric)}"


def not_learned(summary: dict[str, Any]) -> str:
    """Return a sentence if the best trial is no better than constant outputs, else ""."""
    if summary["learned"]:
        return ""
    best, constant = (f"{value:.4g}" for value in (summary["best"]["value"], summary["constant"]))
    return (
        f"No trial learned: the best {objective(summary)}, {best}, is not better than {constant}, that of the mean "
        f"label for every row. {BEST} has the keys of the best trial all the same; check the data, epochs and space."
    )


def render(
    folder: Path, study: Study, experiment: Experiment, summary: dict[str, Any], processes: Executor = INLINE
) -> str:
    """Return the page.

    Parameters
    ----------
    folder : Path
        Has the study's config.toml and env.json.
    summary : dict
        Of `gcnbatch.tuning.results.write`.
    processes : Executor
        Draws the charts.
    """
    names, title = study.space.names, f"Study: {folder.name}"
    maximize, monitor = study.direction == "maximize", objective(summary)
    counts = ", ".join(f"{summary[state]} {state}" for state in ("complete", "pruned", "failed"))
    lead = paragraph(f"{counted(summary['trials'], 'trial')}: {counts}; {monitor}, {summary['direction']}d", "lead")
    complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not complete:
        failed = [lead, paragraph("No trial is complete.", "verdict"), *_origin(folder, study.space, experiment)]
        return document(title, failed, failed=True)
    best = summary["best"]
    found = f"Best: {monitor} {figure(best['value'])} in trial {best['number']}."
    ranked = sorted(complete, key=value_of, reverse=maximize)
    drawn = charts.draw(study.trials, names, maximize, monitor, processes)
    return document(
        title,
        [
            lead,
            paragraph(not_learned(summary) or found, "verdict"),
            section("Best trials", _best(ranked[:_LISTED], names)),
            *(section(title, picture(chart, title)) for title, chart in drawn.items()),
            *_origin(folder, study.space, experiment),
        ],
    )


def _origin(folder: Path, space: Space, experiment: Experiment) -> list[Html]:
    """Return what was searched on what, the environment and the command."""
    dataset, config = experiment.dataset, read_config(folder)
    about, split = run_files.read_environment(folder), config.split
    count = f", {split.folds} folds" if split.folds else f", {split.repeats} repeats" if split.repeats > 1 else ""
    searched = [
        ("Data", f"{dataset.header.name}: {counted(dataset.n_graphs, 'graph')}"),
        ("File", f"{dataset.path}, sha256 {experiment.fingerprint}"),
        ("Validation", f"{split.kind}{count}, seed {config.seed}; test rows are never used"),
        ("Backend", config.backend),
        *((one.key, one.describe()) for one in space.dimensions),
    ]
    again = ["gcnbatch", "tune", str(folder.resolve() / CONFIG), "--space", str(folder.resolve() / SPACE)]
    return [
        section("What was searched", facts(searched)),
        section("Environment", facts(software(about))),
        section(
            "Repeat it",
            *started(about, "study"),
            paragraph("With the resolved configuration and its space:"),
            code(shlex.join([*again, "-o", "NEW_STUDY_DIR"])),
            details(CONFIG, code(config.to_toml())),
        ),
    ]


def _best(trials: Sequence[FrozenTrial], names: Sequence[str]) -> Html:
    rows = []
    for trial in trials:
        epochs = " ".join(str(epoch) for epoch in trial.user_attrs["epochs"])
        cells = [str(trial.user_attrs["number"]), figure(value_of(trial)), epochs]
        rows.append([*cells, *(_shown(trial.params.get(name)) for name in names)])
    return table(["trial", "value", "best epochs", *names], rows, words=())


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str("" if value is None else value)
