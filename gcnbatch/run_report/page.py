"""The sections of a run's page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np

from gcnbatch.metrics import common_unit, label
from gcnbatch.pages.document import document
from gcnbatch.pages.elements import (
    MISSING,
    Cell,
    Html,
    Pictures,
    cards,
    code,
    details,
    facts,
    paragraph,
    section,
    table,
)
from gcnbatch.pages.origin import started
from gcnbatch.run_report.figures import Figures, environment, number, training_facts
from gcnbatch.run_report.record import Record
from gcnbatch.run_report.tested import Example
from gcnbatch.text import counted, printable
from gcnbatch.training.plots import TESTED
from gcnbatch.training.reports import CURVES, RELIABILITY
from gcnbatch.training.run_files import CONFIG

LISTED = 500  # tasks or classes in a table
_CALIBRATIONS = {"identity": "none is better", "temperature": "temperature", "isotonic": "isotonic"}
PLOTS = {
    TESTED["binary"]: "ROC and precision-recall curves",
    TESTED["multiclass"]: "Confusion matrix",
    TESTED["regression"]: "Predicted against measured values",
}


def render(figures: Figures) -> str:
    """Return the page of a run."""
    record, pictures = figures.record, Pictures()
    verdict = figures.headline() or "The run has no figures of test rows."
    against = "verdict against" if record.baseline.get("winner") == "baseline" else "verdict"
    plots = [
        section(title, pictures.show(record.folder / name, title)) for name, title in PLOTS.items()
    ]  # before those of the folds: they matter more
    body = [
        paragraph(_about(record), "lead"),
        paragraph(verdict, "verdict"),
        paragraph(record.baseline["verdict"], against) if record.baseline else Html(""),
        section("What was trained", facts(training_facts(record))),
        _metrics(figures),
        _members(figures),
        _by_task(figures),
        _by_class(record),
        *plots,
        _confusion(record),
        _uncertainty(record, pictures),
        section(
            "Applicability", pictures.show(record.folder / "applicability.png", "Test errors by distance from training")
        ),
        _courses(record, pictures),
        *_examples(record),
        section("Environment", facts(environment(record))),
        _repeat(record),
    ]
    return document(f"Run {record.name}", body)


def _about(record: Record) -> str:
    kind = record.config.model.kind if record.config else record.metrics.get("model", "")
    data = record.tested.header.name if record.tested else record.data.name
    return f"{kind} on {data} · {record.folder.resolve().name}"


def _metrics(figures: Figures) -> Html:
    rows = [(part, *cells) for part, cells in figures.parts()]
    header = ["", *figures.labels]
    return (
        section("Metrics", table(header, rows, sortable=False), paragraph(figures.spread, "note")) if rows else Html("")
    )


def _members(figures: Figures) -> Html:
    """Return the members of a mixture: weights, and figures alone."""
    record = figures.record
    if not record.members:
        return Html("")
    metric = record.metrics["metric"]
    name = label(metric, common_unit(record.test or record.metrics.get("valid", {})))
    header = ["member alone", "weight", f"{name}, out of fold", f"{name}, test"]
    rows = [
        (of["name"], f"{of['weight']:.3f}", *(number(of[key], metric) for key in ("out_of_fold", "test")))
        for of in record.members
    ]
    note = "Weights are found on out-of-fold predictions of the training rows. A member of weight 0 is not used."
    several = "" if len(figures.tasks()) < 2 else " Of several tasks, weights are the means; metrics.json has each."
    return section("Members of the mixture", table(header, rows, sortable=False), paragraph(note + several, "note"))


def _by_task(figures: Figures) -> Html:
    tasks, metrics = figures.tasks(), figures.task_metrics
    if len(tasks) < 2 or not metrics:
        return Html("")
    counts = [key for key in ("labelled", "positives") if any(key in of for of in tasks.values())]
    rows: list[list[Cell]] = []
    for name, of in list(tasks.items())[:LISTED]:
        cells = (*(number(of.get(key)) for key in counts), *(figures.of_task(name, m) for m in metrics))
        rows.append([f"{name}, {of['unit']}" if "unit" in of else name, *cells])
    shown = table(["task", *counts, *map(label, metrics)], rows)
    return section("Test rows by task", shown, _more(len(tasks), "tasks"))


def _by_class(record: Record) -> Html:
    if not (classes := record.test.get("classes")):
        return Html("")
    rows: list[list[Cell]] = []
    for name, of in list(classes.items())[:LISTED]:
        true, found, right = (of[key] for key in ("labelled", "predicted", "correct"))
        rows.append([name, number(true), number(found), number(right), _share(right, true), _share(right, found)])
    header = ["class", "labelled", "predicted", "correct", "recall", "precision"]
    return section("Test rows by class", table(header, rows), _more(len(classes), "classes"))


def _confusion(record: Record) -> Html:
    """Return right and wrong predictions of a binary set by task."""
    tested = record.tested
    if not tested or tested.header.target != "binary":
        return Html("")
    y, outputs = tested.y, tested.outputs
    positive, negative, predicted = (y == 1) & ~np.isnan(outputs), (y == 0) & ~np.isnan(outputs), outputs >= 0.5
    cells = (positive & predicted, negative & predicted, positive & ~predicted, negative & ~predicted)
    counts = np.stack([np.count_nonzero(cell, axis=0) for cell in cells])[:, :LISTED].tolist()
    rows = []
    for name, tp, fp, fn, tn in zip(tested.header.task_names, *counts, strict=False):
        rows.append([name, *(f"{count:,}" for count in (tp, fp, fn, tn)), _share(tp, tp + fp), _share(tp, tp + fn)])
    header = ["task", "true positive", "false positive", "false negative", "true negative", "precision", "recall"]
    return section("Confusion at probability 0.5", table(header, rows), _more(len(tested.header.task_names), "tasks"))


def _uncertainty(record: Record, pictures: Pictures) -> Html:
    """Return calibration and coverage, if the run has them."""
    own: dict[str, Any] = record.metrics.get("mean", record.metrics).get("uncertainty", {})
    tasks = own.get("tasks", {})
    every = f"mean of {len(record.fits)}" if len(record.fits) > 1 else "all"
    lines: dict[str, Any] = {**({} if len(tasks) == 1 else {every: own}), **tasks}
    names = list(dict.fromkeys(key for of in lines.values() for key, value in of.items() if type(value) is float))
    names = [name for name in names if name != "level"]
    chosen = any("calibration" in of for of in lines.values())
    rows = [
        [
            task,
            *([_CALIBRATIONS.get(of.get("calibration"), MISSING)] if chosen else []),
            *(_three_digits(of.get(name)) for name in names),
        ]
        for task, of in list(lines.items())[: LISTED + 1]
    ]
    header = ["", *(["calibration"] if chosen else []), *map(_uncertainty_name, names)]
    said = own.get("notes", [])[:20]
    if level := own.get("level"):
        said.insert(0, f"Coverage, width and size are those of conformal intervals or sets at the level {level:.0%}.")
    plots = [
        details(fit.folder.name, plot)
        for fit in (record.fits if len(record.fits) > 1 else ())
        if (plot := pictures.show(fit.folder / RELIABILITY, f"Reliability of {fit.folder.name} on its test rows"))
    ]
    return section(
        "Reliability",
        pictures.show(record.folder / RELIABILITY, "Reliability on the test rows"),
        *plots,
        table(header, rows, (0, 1) if chosen else (0,)) if names else Html(""),
        *(paragraph(text, "note") for text in said),
    )


def _uncertainty_name(key: str) -> str:
    words = key.split("_")
    return " ".join([{"ece": "ECE", "ence": "ENCE", "brier": "Brier score"}.get(words[0], words[0]), *words[1:]])


def _three_digits(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3g}"


def _courses(record: Record, pictures: Pictures) -> Html:
    """Return the learning curves; of several models in one figure, then one after the other."""
    together = pictures.show(record.folder / CURVES, "Learning curves")
    shown = []
    for fit in record.fits if len(record.fits) > 1 else ():
        name, best = fit.folder.name, fit.metrics.get("best_epoch")
        curves = pictures.show(fit.folder / CURVES, f"Learning curves of {name}")
        if curves:
            shown.append(details(f"{name}: best epoch {number(best)} of {number(fit.metrics.get('epochs'))}", curves))
    note = ""
    if len(shown) < len(record.fits) > 1:
        command = shlex.join(["gcnbatch", "report", str(record.folder.resolve()), "--figures"])
        note = f"Plots of all {counted(len(record.fits), 'model')}: {command}"
    return section("Learning curves", together, *shown, paragraph(note, "note") if note else Html(""))


def _examples(record: Record) -> Iterator[Html]:
    """Yield the worst errors and the best hits, drawn where the set has molecules."""
    if not record.examined:
        return
    tested, found = record.examined.rows, record.examined.examples

    def lines(one: Example) -> tuple[Html, list[str]]:
        below = [printable(tested.smiles[one.row], 120)] if tested.smiles is not None else []
        return Html(found.drawings[one.row]), [str(tested.ids[one.row]), one.text, *below]

    for title, part in (("Worst errors", found.worst), ("Best hits", found.best)):
        yield section(title, cards(lines(one) for one in part))
    if found.note:
        yield paragraph(found.note, "note")


def _repeat(record: Record) -> Html:
    command = started(record.environment, "run")
    if record.config is None:
        return section("Repeat it", *command)
    again = ["gcnbatch", "train", str(record.folder.resolve() / CONFIG), "-o", "NEW_RUN_DIR"]
    return section(
        "Repeat it",
        *command,
        paragraph("With the resolved configuration, which has every default:"),
        code(shlex.join(again)),
        details(CONFIG, code(record.config.to_toml())),
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else MISSING


def _more(count: int, what: str) -> Html:
    return paragraph(f"The first {LISTED} of {count:,} {what}.", "note") if count > LISTED else Html("")
