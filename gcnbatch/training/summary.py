"""The summary of a run with several members: mean and standard deviation, and predictions of all test rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.predictions import Predictions, read_outputs, write_table
from gcnbatch.training import report
from gcnbatch.training.plan import Planned
from gcnbatch.training.report_workers import Writer


def summarise(
    folder: Path, planned: Sequence[Planned], results: Sequence[dict[str, Any]], write: Writer
) -> dict[str, Any]:
    """Write and return the run's metrics; write the predictions of its test rows in the data set's order.

    Parameters
    ----------
    folder : Path
        The run's folder, with a folder for every member.
    planned, results
        The members and their metrics, in order.
    write : Writer
        Draws the plot of all test rows.
    """
    experiment = planned[0].experiment
    config, header = experiment.config, experiment.header
    summary: dict[str, Any]
    if config.split.repeats == config.train.ensemble == 1:
        summary = {"folds": list(results)}
    else:
        named = zip(planned, results, strict=True)
        summary = {"members": [{"name": one.name, **result} for one, result in named]}
    summary |= average(results)
    summary["backend"] = results[-1]["backend"]
    summary["epochs"] = config.train.epochs
    summary["seconds"] = round(sum(result["seconds"] for result in results), 3)
    summary["split"] = {**results[0]["split"], "sizes": [result["split"]["sizes"] for result in results]}
    if any(len(one.split.test) for one in planned):
        rows, mean, std = _pooled(folder, planned)
        y = experiment.y[rows]
        summary["out_of_fold"] = report.evaluate(header, y, mean)
        predicted = Predictions(header, experiment.ids[rows], mean, std)
        write_table(folder / report.PREDICTIONS, predicted, config.parquet)
        part = "test rows of all folds" if config.split.folds else "test rows"
        write.call(_draw, folder, header, y, mean, summary["out_of_fold"], part)
    fileio.write_json(folder / report.METRICS, summary)
    return summary


def _draw(folder: Path, header: Header, *about: Any) -> None:
    y, outputs, figures, part = about
    report.draw(folder, header, y, outputs, figures, part=part).result()


def average(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and sample standard deviation (n - 1) of every metric that all results define."""
    mean: dict[str, Any] = {}
    std: dict[str, Any] = {}
    for part in ("train", "valid", "test", "uncertainty"):
        tables = [result.get(part, {}) for result in results]
        for name in tables[0]:
            values = [table.get(name) for table in tables]
            if all(isinstance(value, float) for value in values):
                mean.setdefault(part, {})[name] = float(np.mean(values))
                std.setdefault(part, {})[name] = float(np.std(values, ddof=1))
    return {"mean": mean, "std": std}


def _pooled(folder: Path, planned: Sequence[Planned]) -> tuple[Int64, NDArray[np.float32], NDArray[np.float32] | None]:
    """Return the rows that a member tested, ascending, and the mean and standard deviation of their outputs.

    Of a row that one member tested, the mean is that member's output to the bit. The deviation (n - 1) is NaN where one
    member tested, and None if that is so for all rows.
    """
    header = planned[0].experiment.header
    parts = [read_outputs(folder / one.name / report.PREDICTIONS, header, len(one.split.test)) for one in planned]
    rows = np.concatenate([one.split.test for one in planned])
    outputs = np.concatenate(parts).astype(np.float64)
    tested, at, count = np.unique(rows, return_inverse=True, return_counts=True)
    mean, squares = (np.zeros((len(tested), outputs.shape[1])) for _ in range(2))
    np.add.at(mean, at, outputs)
    mean /= count[:, None]
    if count.max() == 1:
        return tested, mean.astype(np.float32), None
    np.add.at(squares, at, (outputs - mean[at]) ** 2)
    with np.errstate(invalid="ignore"):  # 0 / 0
        std = np.sqrt(squares / (count - 1)[:, None])
    return tested, mean.astype(np.float32), std.astype(np.float32)
