"""The summary of a run with several members: mean and standard deviation, and predictions of all test rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.predictions import Predictions, read_outputs, write_table
from gcnbatch.training import fit_report
from gcnbatch.training.fit_report import Writer
from gcnbatch.training.plan import Planned


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
        places = [folder / one.name / fit_report.PREDICTIONS for one in planned]
        tested = [one.split.test for one in planned]
        rows, mean, std = pooled(
            tested, [read_outputs(path, header, len(part)) for path, part in zip(places, tested, strict=True)]
        )
        y = experiment.y[rows]
        summary["out_of_fold"] = fit_report.evaluate(header, y, mean)
        predicted = Predictions(header, experiment.ids[rows], mean, std)
        write_table(folder / fit_report.PREDICTIONS, predicted, config.parquet)
        part = "test rows of all folds" if config.split.folds else "test rows"
        write.call(_draw, folder, header, y, mean, summary["out_of_fold"], part)
    fileio.write_json(folder / fit_report.METRICS, summary)
    return summary


def _draw(folder: Path, header: Header, *about: Any) -> None:
    y, outputs, figures, part = about
    fit_report.draw(folder, header, y, outputs, figures, part=part).result()


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


class Pooled(NamedTuple):
    """The rows that models tested, and the mean and standard deviation of the outputs of those models.

    Parameters
    ----------
    rows : (R,) int64
        Ascending.
    mean : (R, K) float32
        Of a row that one model tested, that model's outputs to the bit.
    std : (R, K) float32 or None
        With n - 1; NaN where one model tested a row, None if that is so for all rows.
    """

    rows: Int64
    mean: NDArray[np.float32]
    std: NDArray[np.float32] | None


def pooled(rows: Sequence[Int64], outputs: Sequence[NDArray[np.float32]]) -> Pooled:
    """Return the outputs of several models by row.

    Parameters
    ----------
    rows : sequence of (R,) int64
        Rows that each model tested.
    outputs : sequence of (R, K) float32
        Its outputs for them.
    """
    values = np.concatenate(outputs).astype(np.float64)
    tested, at, count = np.unique(np.concatenate(rows), return_inverse=True, return_counts=True)
    mean, squares = (np.zeros((len(tested), values.shape[1])) for _ in range(2))
    np.add.at(mean, at, values)
    mean /= count[:, None]
    if count.max() == 1:
        return Pooled(tested, mean.astype(np.float32), None)
    np.add.at(squares, at, (values - mean[at]) ** 2)
    with np.errstate(invalid="ignore"):  # 0 / 0
        std = np.sqrt(squares / (count - 1)[:, None])
    return Pooled(tested, mean.astype(np.float32), std.astype(np.float32))
