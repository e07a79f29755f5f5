"""Errors of a run's test rows against their distance from the training rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, tables
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.figures import BLUE, GREY, ORANGE, panels, save
from gcnbatch.inference.domain import Domain, training_data
from gcnbatch.inference.members import load_members
from gcnbatch.metrics import spearman
from gcnbatch.moments import moments
from gcnbatch.predictions import read_outputs
from gcnbatch.runners.choice import BackendChoice
from gcnbatch.training import run_files
from gcnbatch.training.fit_report import METRICS, PREDICTIONS
from gcnbatch.training.fits import SPLITS
from gcnbatch.training.fitted import read_split
from gcnbatch.training.run import read_config

TABLE, PICTURE = "applicability.csv", "applicability.png"
BINS = 5
LABELS = {
    "nearest_similarity": "similarity to the nearest training molecule",
    "embedding_distance": "embedding distance (dashed: median of training rows)",
}


def add_to_run(folder: Path, choice: BackendChoice, say: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
    """Write ``applicability.csv`` and ``applicability.png`` of a finished run; return its metrics with their figures.

    ``metrics.json`` then has an entry ``applicability``: for each measure the rank correlation (Spearman) of error and
    measure, and the mean error in five bins of equal numbers of test rows.

    Raises
    ------
    InputError
        See `Domain`; also for a run without test rows.
    """
    members = load_members([folder], say)
    header = members[0].header
    ids: list[str] = []
    measured: list[dict[str, NDArray[np.float32]]] = []
    for member in members:
        domain = Domain([member], choice)
        with training_data(member) as dataset:
            rows = read_split(member.place / SPLITS, len(dataset.y)).test
            if not len(rows):
                raise InputError(str(member.place), "no test rows", "some", "Set split.test above 0.")
            smiles = dataset.smiles()
            texts = None if smiles is None else [smiles[row] for row in rows.tolist()]
            measures = domain.columns(partial(BatchSource, dataset.read(rows)), texts)
            outputs = read_outputs(member.place / PREDICTIONS, header, len(rows))
            measured.append({**measures, "error": errors(header, dataset.measured, rows, outputs)})
            ids += dataset.ids[rows].tolist()
    columns = {name: np.concatenate([part[name] for part in measured]) for name in measured[0]}
    config = read_config(folder)
    tables.write(folder / TABLE, {"id": ids, **columns}, config.parquet)
    _draw(columns, folder / PICTURE)
    metrics = run_files.read_figures(folder / METRICS)
    metrics["applicability"] = {name: summary(columns[name], columns["error"]) for name in columns if name != "error"}
    fileio.write_json(folder / METRICS, metrics)
    return metrics


def errors(
    header: Header, y: NDArray[Any], rows: NDArray[np.int64], outputs: NDArray[np.floating]
) -> NDArray[np.float32]:
    """Return the error (n,) of these rows, the mean over their labelled tasks; NaN without labels.

    Binary: distance of probability and label; multiclass: one minus the probability of the class; regression: absolute
    error in standard deviations of the task's targets.
    """
    if header.target == "multiclass":
        labels = y[rows, 0]
        right = outputs[np.arange(len(rows)), np.maximum(labels, 0)]
        return np.where(labels >= 0, 1 - right, np.nan).astype(np.float32)
    error = np.abs(y[rows] - outputs).astype(np.float64)
    if header.target == "regression":
        _, deviation = moments(y)
        error /= np.where(deviation > 0, deviation, 1.0)
    known = ~np.isnan(error)
    total = np.where(known, error, 0.0).sum(axis=1)
    mean = np.divide(total, known.sum(axis=1), out=np.full(len(rows), np.nan), where=known.any(axis=1))
    return mean.astype(np.float32)


def summary(measure: NDArray[np.float32], error: NDArray[np.float32]) -> dict[str, Any]:
    """Return rank correlation, and mean measure and mean error of bins of equal numbers of rows."""
    known = np.isfinite(measure) & np.isfinite(error)
    order = np.argsort(measure[known], kind="stable")
    x, y = measure[known][order].astype(np.float64), error[known][order].astype(np.float64)
    bins = [part for part in np.array_split(np.arange(len(x)), BINS) if len(part)]
    return {
        "spearman": spearman(x, y),
        "bins": [{"mean": float(x[part].mean()), "error": float(y[part].mean()), "rows": len(part)} for part in bins],
    }


def _size(rows: int) -> float:
    """Return the area of a point, so that few are seen and many do not cover each other."""
    return float(np.clip(3000 / max(rows, 1), 5, 24))


def _draw(columns: dict[str, NDArray[np.float32]], path: Path) -> None:
    names = [name for name in columns if name != "error"]
    figure, axes = panels(1, len(names), width=4.6, height=3.8)
    for ax, name in zip(axes, names, strict=True):
        found = summary(columns[name], columns["error"])
        ax.scatter(columns[name], columns["error"], s=_size(len(columns["error"])), color=GREY, alpha=0.6, linewidths=0)
        ax.plot([one["mean"] for one in found["bins"]], [one["error"] for one in found["bins"]], "o-", color=BLUE)
        rank = "–" if found["spearman"] is None else f"{found['spearman']:+.2f}"
        ax.set_title(f"rank correlation {rank}; line: fifths of the rows", loc="left", fontsize=9)
        ax.set(xlabel=LABELS[name], ylabel="error of test rows")
        if name == "embedding_distance":
            ax.axvline(1.0, color=ORANGE, linewidth=1.0, linestyle="--")
    save(figure, path)
