"""The summary of a run with several members: mean and standard deviation, and predictions of all test rows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.data.graphs import Int64
from gcnbatch.data.schema import Header
from gcnbatch.predictions import Predictions, read_outputs, write_table
from gcnbatch.training import fit_report, plots, run_files
from gcnbatch.training.fit_report import Writer
from gcnbatch.training.fits import Fitted
from gcnbatch.training.member_files import HISTORY
from gcnbatch.training.plan import Planned


def summarise(
    folder: Path, planned: Sequence[Planned], fitted: Sequence[Fitted], write: Writer, writers: Executor
) -> dict[str, Any]:
    """Write and return the run's metrics; write the predictions of its test rows in the data set's order, and plots.

    Parameters
    ----------
    folder : Path
        The run's folder, with a folder for every member.
    planned, fitted
        The members and their results, in order. Reports of members may still be written meanwhile.
    write : Writer
        Writes files of the run.
    writers : concurrent.futures.Executor
        Runs `write`.
    """
    experiment = planned[0].experiment
    config, header = experiment.config, experiment.header
    histories = [(folder / one.name / HISTORY, found.epochs) for one, found in zip(planned, fitted, strict=True)]
    written = [writers.submit(write.call, draw_curves, folder, histories)]
    pool, figures = _tested(folder, planned, fitted), None
    if pool:
        y, part = experiment.y[pool.rows], "test rows of all folds" if config.split.folds else "test rows"
        one_split = config.split.folds == 0 and config.split.repeats == 1
        write.examine(experiment.dataset.path, pool.rows, pool.mean, one_split)
        figures = fit_report.evaluate(header, y, pool.mean)
        written.append(writers.submit(write.call, _draw, folder, header, y, pool.mean, figures, part))
        predicted = Predictions(header, experiment.ids[pool.rows], pool.mean, pool.std)
        table = folder / fit_report.PREDICTIONS, predicted, config.parquet
        written.append(writers.submit(write.call, write_table, *table))
    summary = _summary(planned, [one.result() for one in fitted])
    if figures:
        summary["out_of_fold"] = figures
    for one in written:
        one.result()
    fileio.write_json(folder / fit_report.METRICS, summary)
    return summary


def _tested(folder: Path, planned: Sequence[Planned], fitted: Sequence[Fitted]) -> Pooled | None:
    """Return the outputs for all test rows; None if there are none."""
    rows = [one.split.test for one in planned]
    if not any(map(len, rows)):
        return None
    header, outputs = planned[0].experiment.header, []
    for one, found in zip(planned, fitted, strict=True):
        path = folder / one.name / fit_report.PREDICTIONS
        outputs.append(read_outputs(path, header, len(one.split.test)) if found.tested is None else found.tested)
    return pooled(rows, outputs)


def _summary(planned: Sequence[Planned], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the members' metrics, their mean and deviation, and what holds for all."""
    config = planned[0].experiment.config
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
    return summary


def _draw(folder: Path, header: Header, *about: Any) -> None:
    y, outputs, figures, part = about
    fit_report.draw(folder, header, y, outputs, figures, part=part).result()


def draw_curves(folder: Path, histories: Sequence[tuple[Path, int]]) -> None:
    """Draw the learning curves of all members of a run into one figure.

    Parameters
    ----------
    folder : Path
        The run's folder.
    histories : sequence of (Path, int)
        The members' histories, and the epochs in each.

    Raises
    ------
    InputError
        When a history is damaged.
    """
    rows = [run_files.read_history(path, epochs) for path, epochs in histories]
    plots.members_curves(rows, folder / fit_report.CURVES)


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
