"""What a finished fit leaves in its folder: metrics, predictions, plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.splits import split_seed
from gcnbatch.errors import InputError
from gcnbatch.predictions import Predictions, write_csv
from gcnbatch.train import metrics, plots
from gcnbatch.train.experiment import Experiment
from gcnbatch.train.loop import HISTORY, Fitted, Trainer

METRICS, PREDICTIONS = "metrics.json", "predictions.csv"


def write(trainer: Trainer, fitted: Fitted) -> dict[str, Any]:
    """Evaluate the best weights on every part; write metrics.json, predictions.csv and plots; return the metrics."""
    experiment, split, folder = trainer.experiment, trainer.split, trainer.folder
    outputs = {part: trainer.outputs(rows) for part, rows in split.parts().items() if len(rows)}
    summary = {part: evaluate(experiment, split.parts()[part], values) for part, values in outputs.items()}
    summary |= _course(fitted)
    summary["split"] = describe_split(experiment, split)
    history = read_history(folder)
    plots.learning_curves(history, folder / "learning_curves.png")
    if "test" in outputs:
        write_predictions(experiment, split.test, outputs["test"], folder)
    fileio.write_json(folder / METRICS, summary)
    return summary


def evaluate(experiment: Experiment, rows: Int64, outputs: NDArray[np.float32]) -> dict[str, Any]:
    """Return every figure of these rows' outputs."""
    header = experiment.header
    return metrics.evaluate(header.target, experiment.y[rows], outputs, header.task_names, header.class_names)


def write_predictions(experiment: Experiment, rows: Int64, outputs: NDArray[np.float32], folder: Path) -> None:
    """Write predictions.csv and the plot that suits the target: ROC and PR curves, a confusion matrix, or parity."""
    header, y = experiment.header, experiment.y[rows]
    write_csv(folder / PREDICTIONS, Predictions(header, experiment.ids[rows], outputs))
    if header.target == "binary":
        plots.roc_pr(y, outputs, header.task_names, folder / "roc_pr.png")
    elif header.target == "multiclass":
        plots.confusion(y, outputs, header.class_names, folder / "confusion.png")
    else:
        plots.parity(y, outputs, header.task_names, folder / "parity.png")


def describe_split(experiment: Experiment, split: Split) -> dict[str, Any]:
    """Return the name, seed and sizes of a split, for metrics.json."""
    config = experiment.config.split
    named = {"name": config.name or next(iter(experiment.dataset.splits))} if config.kind == "predefined" else {}
    return {
        "kind": config.kind,
        **named,
        "seed": split_seed(config, experiment.config.seed),
        "sizes": [len(rows) for rows in split.parts().values()],
    }


def _course(fitted: Fitted) -> dict[str, Any]:
    """Return how training went: backend, what its bits depend on, best epoch, epochs, seconds, the time of a step.

    A step's time is the host's: where a device runs behind, what it takes to ask for it.
    """
    at, steps = fitted.position, np.array(fitted.step_seconds) * 1e6
    course: dict[str, Any] = {"backend": fitted.runner.backend, **fitted.runner.about()}
    course |= {"best_epoch": at.best_epoch + 1, "epochs": at.epoch, "seconds": round(at.seconds, 3)}
    if len(steps):
        quantiles = np.quantile(steps, [0.5, 0.2, 0.8])
        course["step_us"] = {
            name: round(float(q), 1) for name, q in zip(("median", "p20", "p80"), quantiles, strict=True)
        }
        course["graphs_per_second"] = round(fitted.graphs / max(fitted.train_seconds, 1e-9), 1)
    return course


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of history.jsonl."""
    return [json.loads(line) for line in (folder / HISTORY).read_text(encoding="utf-8").splitlines()]


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return metrics.json of a finished run."""
    try:
        found: dict[str, Any] = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(folder / METRICS), "cannot be read", "the metrics of a finished run") from error
    return found


def summarise_folds(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation (of a sample, n - 1) over folds of every figure that all folds define."""
    mean: dict[str, Any] = {}
    std: dict[str, Any] = {}
    for part in ("train", "valid", "test"):
        tables = [fold.get(part, {}) for fold in folds]
        for name in tables[0]:
            values = [table.get(name) for table in tables]
            if all(isinstance(value, float) for value in values):
                mean.setdefault(part, {})[name] = float(np.mean(values))
                std.setdefault(part, {})[name] = float(np.std(values, ddof=1))
    return {"folds": folds, "mean": mean, "std": std}
