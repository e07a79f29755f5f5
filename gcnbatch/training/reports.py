"""The report of a finished fit: metrics, predictions and plots in its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, metrics
from gcnbatch.data.copies import across_splits
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.predictions import Predictions, write_table
from gcnbatch.timeline import spanned
from gcnbatch.training import checkpoint, plots, run_files
from gcnbatch.training.checkpoint import Checkpoint
from gcnbatch.uncertainty import figures as uncertainty_figures
from gcnbatch.uncertainty import plot as uncertainty_plot
from gcnbatch.uncertainty.model import LEVEL, Uncertainty
from gcnbatch.workers.pool import INLINE

METRICS, PREDICTIONS, UNCERTAINTY = "metrics.json", "predictions.csv", "uncertainty.safetensors"
VALIDATION = "validation.csv"
CURVES, RELIABILITY = "learning_curves.png", "uncertainty.png"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Report:
    """Results of a fit as plain arrays. Writing them needs no device and no open file.

    Parameters
    ----------
    folder : Path
        Receives metrics.json, predictions.csv and plots.
    header : Header
    labels : dict of array
        Part ("train", "valid", "test") -> targets of its rows as in the data set: (R, K), or (R, 1) of classes.
    outputs : dict of (R, K) or (R, C)
        Part -> outputs of the best weights: probabilities, or values in the unit of the targets.
    data : Path
        The data set.
    test_rows : (R,) int64
        Its rows that are tested.
    test_ids : (R,) str
    history : list of dict
        Rows of history.jsonl; empty for a model without epochs.
    course : dict
        Other entries of metrics.json: backend, epochs, seconds, split.
    level : float
        Level of conformal intervals and sets, for the figures of the test rows and as the default of `infer`.
    parquet : bool
        Also write predictions.parquet.
    has_figures : bool
        Draw plots. Otherwise those of an earlier report are removed.
    left_out_ids : (R,) str or None
        Ids of the validation rows of a member of a cross-fitted run: their outputs go to validation.csv, and the run
        fits the uncertainty.
    """

    folder: Path
    header: Header
    labels: dict[str, NDArray[Any]]
    outputs: dict[str, NDArray[np.floating]]
    data: Path
    test_rows: Int64
    test_ids: NDArray[np.str_]
    history: list[dict[str, Any]]
    course: dict[str, Any]
    level: float = LEVEL
    parquet: bool = False
    has_figures: bool = True
    left_out_ids: NDArray[np.str_] | None = None

    @spanned("write a report")
    def write(self, fitter: Executor = INLINE, plotter: Executor = INLINE) -> dict[str, Any]:
        """Evaluate every part; write metrics, predictions, uncertainty and plots; return the metrics.

        Parameters
        ----------
        fitter, plotter : concurrent.futures.Executor
            Run `Uncertainty.fit` and the functions of `plots`.
        """
        plotted: list[Future[None]] = []
        if not self.has_figures:
            for name in (CURVES, RELIABILITY, plots.TESTED[self.header.target]):
                run_files.remove(self.folder / name)
        elif self.history:
            plotted.append(plotter.submit(plots.learning_curves, [self.history], self.folder / CURVES))
        uncertainty = self._uncertainty(fitter)
        figures = {}
        for part in sorted(self.outputs, key="test".__ne__):  # test first: its plot overlaps with the other evaluations
            rows = self.labels[part], self.outputs[part]
            figures[part] = evaluate(self.header, *rows)
            if part == "test" and self.has_figures:
                about = self.folder, self.header.target, self.header.class_names
                plotted.append(plotter.submit(plots.draw_tested, *about, *rows, figures[part]))
        if "test" in self.outputs:
            predicted = Predictions(self.header, self.test_ids, self.outputs["test"])
            write_table(self.folder / PREDICTIONS, predicted, self.parquet)
        if self.left_out_ids is not None:
            left_out = Predictions(self.header, self.left_out_ids, self.outputs["valid"])
            write_table(self.folder / VALIDATION, left_out, parquet=False)
        summary = {part: figures[part] for part in self.outputs} | self.course
        if uncertainty is not None:
            fitted = uncertainty.result()
            checkpoint.save(self.folder / UNCERTAINTY, Checkpoint(fitted.arrays(), fitted.about()))
            if "test" in self.outputs:
                rows = self.labels["test"], self.outputs["test"]
                if self.has_figures:
                    plotted.append(plotter.submit(uncertainty_plot.draw, fitted, *rows, self.folder / RELIABILITY))
                summary["uncertainty"] = uncertainty_figures.evaluate(fitted, *rows, self.level)
        for plot in plotted:
            plot.result()
        fileio.write_json(self.folder / METRICS, summary)
        return summary

    def _uncertainty(self, fitter: Executor) -> Future[Uncertainty] | None:
        """Start to fit the uncertainty to the validation rows, if there are any."""
        if "valid" not in self.outputs or self.left_out_ids is not None:
            return None
        return fitter.submit(Uncertainty.fit, self.header, self.labels["valid"], self.outputs["valid"], self.level)


def evaluate(header: Header, y: NDArray[Any], outputs: NDArray[np.floating]) -> dict[str, Any]:
    """Return the metrics of these rows, and the units of tasks; `y` and `outputs` as in `metrics.evaluate`."""
    found = metrics.evaluate(header.target, y, outputs, header.task_names, header.class_names)
    for name, unit in header.units.items():
        found["tasks"][name]["unit"] = unit
    return found


class ReportWriter:
    """Writes reports and other files of a run in this process, at once.

    `gcnbatch.run_report.writer.ParallelWriter` writes them in worker processes, while training goes on.

    Parameters
    ----------
    threads : concurrent.futures.Executor
        Runs what is submitted.
    """

    # Opens, in another process, what writes the reports of the members that it fits; None: that process itself.
    elsewhere: OpenWriter | None = None

    def __init__(self, threads: Executor = INLINE) -> None:
        self._threads = threads

    def submit(
        self, report: Report, before: Callable[[], object], then: Callable[[dict[str, Any]], object]
    ) -> Future[dict[str, Any]]:
        """Start to write the report of a fit, after a call of `before`; return metrics, which `then` takes first."""
        return self._threads.submit(self._written, report, before, then)

    def submit_call(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Start to call a function that writes files of the run."""
        return self._threads.submit(self.call, function, *arguments)

    def write(self, report: Report) -> dict[str, Any]:
        """Write the report of a fit; return its metrics."""
        return report.write()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function returns that writes files of the run."""
        return function(*arguments)

    def examine(self, data: Path, rows: Int64, outputs: NDArray[np.floating], resampled: bool) -> None:
        """Start to examine the run's test rows for its page, if that is quicker than later.

        Parameters
        ----------
        data : Path
            The data set.
        rows, outputs, resampled
            As `gcnbatch.run_report.tested.examine`.
        """

    def copies(self, dataset: Dataset, splits: Mapping[str, Split]) -> list[str]:
        """Return notes on copies of molecules in different parts of splits; see `across_splits`."""
        return across_splits(dataset, splits)

    def _written(
        self, report: Report, before: Callable[[], object], then: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        before()
        metrics = self.write(report)
        then(metrics)
        return metrics


# Called with the number of members that a process fits, and of processes that share the cores of a host.
OpenWriter = Callable[[int, int], AbstractContextManager[ReportWriter]]
