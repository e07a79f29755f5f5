"""The summary of a run with several members: mean and standard deviation, and predictions of all test rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, metrics
from gcnbatch.data.graphs import Int64
from gcnbatch.moments import in_units, unit_of
from gcnbatch.predictions import Predictions, read_outputs, write_table
from gcnbatch.timeline import span
from gcnbatch.training import plots, reports, run_files
from gcnbatch.training.fit_files import HISTORY
from gcnbatch.training.fits import FitResult
from gcnbatch.training.plan import Planned
from gcnbatch.training.reports import ReportWriter


def summarise(
    folder: Path,
    planned: Sequence[Planned],
    fitted: Sequence[FitResult],
    writer: ReportWriter,
    histories: Sequence[tuple[Path, int]] | None = None,
) -> dict[str, Any]:
    """Write and return the run's metrics; write the predictions of its test rows in the data set's order, and plots.

    Parameters
    ----------
    folder : Path
        The run's folder, with a folder for every member.
    planned, fitted
        The members, or the cross-fitted models, and their results, in order. Reports of members may still be written
        meanwhile.
    writer : ReportWriter
        Writes files of the run.
    histories : sequence of (Path, int) or None
        Histories of the networks and their epochs; None: those of the members.
    """
    experiment = planned[0].experiment
    config, header = experiment.config, experiment.header
    pairs = zip(planned, fitted, strict=True)
    histories = histories or [(folder / one.name / HISTORY, found.epochs) for one, found in pairs]
    written = [writer.submit_call(draw_curves, folder, histories)]
    pool, figures = pooled_part(folder, planned, fitted, "test"), None
    if pool:
        y, part = pool.labels(experiment.measured), "test rows of all folds" if config.split.folds else "test rows"
        one_split = config.split.folds == 0 and config.split.repeats == 1
        writer.examine(experiment.dataset.path, pool.rows, pool.mean, one_split)
        figures = reports.evaluate(header, y, pool.mean)
        about = folder, header.target, header.class_names, y, pool.mean, figures, part
        written.append(writer.submit_call(plots.draw_tested, *about))
        predicted = Predictions(header, experiment.ids[pool.rows], pool.mean, pool.std)
        table = folder / reports.PREDICTIONS, predicted, config.parquet
        written.append(writer.submit_call(write_table, *table))
    with span("wait for reports"):
        summary = _summary(planned, [one.result() for one in fitted])
        for one in written:
            one.result()
    if figures:
        summary["out_of_fold"] = figures
    fileio.write_json(folder / reports.METRICS, summary)
    return summary


_FILES = {"test": reports.PREDICTIONS, "valid": reports.VALIDATION}


def pooled_part(folder: Path, planned: Sequence[Planned], fitted: Sequence[FitResult], part: str) -> Pooled | None:
    """Return the outputs for all "test" or "valid" rows, of each member from `fitted` or its file; None without rows.

    Members of a cross-fitted run alone have a file of validation rows.
    """
    rows = [one.split.parts()[part] for one in planned]
    if not any(map(len, rows)):
        return None
    outputs = [
        read_outputs(folder / one.name / _FILES[part], one.experiment.header, len(own)) if of is None else of
        for one, own, of in zip(planned, rows, (found.outputs.get(part) for found in fitted), strict=True)
    ]
    return pooled(rows, outputs)


def _summary(planned: Sequence[Planned], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the members' metrics, their mean and deviation, and what holds for all."""
    config = planned[0].experiment.config
    summary: dict[str, Any]
    if config.split.repeats == 1 and (config.split.cross_fit or config.train.ensemble == 1):
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


def draw_curves(folder: Path, histories: Sequence[tuple[Path, int]]) -> None:
    """Draw the learning curves of a fit, or of all members of a run into one figure.

    Parameters
    ----------
    folder : Path
        Of the fit or the run.
    histories : sequence of (Path, int)
        The histories, and the epochs in each.

    Raises
    ------
    InputError
        When a history is damaged.
    """
    rows = [run_files.read_history(path, epochs) for path, epochs in histories]
    plots.learning_curves(rows, folder / reports.CURVES)


def average(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and sample standard deviation (n - 1) of every metric over the results that define it.

    ``defined`` has the number of these results where some do not; the deviation of a single one is None.
    """
    mean: dict[str, Any] = {}
    std: dict[str, Any] = {}
    defined: dict[str, Any] = {}
    for part in ("train", "valid", "test", "uncertainty"):
        tables = [result.get(part, {}) for result in results]
        for name in dict.fromkeys(name for table in tables for name in table):
            values = [value for table in tables if isinstance(value := table.get(name), float)]
            if values:
                exponent = unit_of(known := np.array(values))
                (scaled,) = in_units(exponent, known)
                mean.setdefault(part, {})[name] = float(np.ldexp(np.mean(scaled), exponent))
                many = len(values) > 1
                std.setdefault(part, {})[name] = float(np.ldexp(np.std(scaled, ddof=1), exponent)) if many else None
            if values and len(values) < len(results):
                defined.setdefault(part, {})[name] = len(values)
    return {"mean": mean, "std": std, **({"defined": defined} if defined else {})}


class Pooled(NamedTuple):
    """The rows that models tested, and the mean and standard deviation of the outputs of those models.

    Parameters
    ----------
    rows : (R,) int64
        Ascending.
    mean : (R, K)
        Of a row that one model tested, that model's outputs to the bit; NaN where no model has the task.
    std : (R, K) or None
        With n - 1; NaN where one model tested a row, None if that is so for all rows.
    absent : bool, (R, K)
        Where no model has outputs, as the training rows could not teach the task.
    """

    rows: Int64
    mean: NDArray[np.floating]
    std: NDArray[np.floating] | None
    absent: NDArray[np.bool_]

    def labels(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the targets of these rows, of those of the whole set, without those that no model predicts."""
        own = y[self.rows]
        absent = self.absent if own.dtype.kind == "f" else self.absent.all(axis=1, keepdims=True)
        return metrics.without_tasks(own, np.asarray(absent))


def pooled(rows: Sequence[Int64], outputs: Sequence[NDArray[np.floating]]) -> Pooled:
    """Return the outputs of several models by row.

    Parameters
    ----------
    rows : sequence of (R,) int64
        Rows that each model tested.
    outputs : sequence of (R, K)
        Its outputs for them; a column of NaN is a task that it does not have.
    """
    kind, values = outputs[0].dtype, np.concatenate(outputs).astype(np.float64)
    lacks = np.concatenate([np.broadcast_to(np.isnan(own).all(axis=0), own.shape) for own in outputs])
    values[lacks] = 0.0
    tested, index, models = np.unique(np.concatenate(rows), return_inverse=True, return_counts=True)

    def sums(of: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sums over models, in their order, (tested, K); rows of a model are different."""
        total, end = np.zeros((len(tested), of.shape[1])), 0
        for own in rows:
            start, end = end, end + len(own)
            total[index[start:end]] += of[start:end]
        return total

    mean, count = sums(values), sums(~lacks)
    with np.errstate(invalid="ignore"):  # 0 / 0
        mean /= count
        if models.max() == 1:
            return Pooled(tested, mean.astype(kind), None, count == 0)
        exponent = unit_of(values)
        scaled, middle = in_units(exponent, values, mean)
        squares = sums(np.where(lacks, 0.0, scaled - middle[index]) ** 2)
        std = np.ldexp(np.sqrt(squares / np.where(count > 1, count - 1, np.nan)), exponent)
    return Pooled(tested, mean.astype(kind), std.astype(kind), count == 0)
