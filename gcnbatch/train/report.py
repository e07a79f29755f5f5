"""The report of a finished fit: metrics, predictions and plots in its folder."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.data.schema import Header
from gcnbatch.predictions import Predictions, write_csv
from gcnbatch.train import metrics, plots

METRICS, PREDICTIONS = "metrics.json", "predictions.csv"


class _InlineExecutor(Executor):
    """Runs each call at once in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


INLINE = _InlineExecutor()


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
    outputs : dict of float32, (R, K) or (R, C)
        Part -> outputs of the best weights: probabilities, or values in the unit of the targets.
    test_ids : (R,) str
    history : list of dict
        Rows of history.jsonl; empty for a model without epochs.
    course : dict
        Other entries of metrics.json: backend, epochs, seconds, split.
    """

    folder: Path
    header: Header
    labels: dict[str, NDArray[Any]]
    outputs: dict[str, NDArray[np.float32]]
    test_ids: NDArray[np.str_]
    history: list[dict[str, Any]]
    course: dict[str, Any]

    def write(self, evaluator: Executor = INLINE, plotter: Executor = INLINE) -> dict[str, Any]:
        """Evaluate every part; write metrics.json, predictions.csv and plots; return the metrics.

        Parameters
        ----------
        evaluator, plotter : concurrent.futures.Executor
            Run the functions of `metrics` and of `plots`.
        """
        plotted: list[Future[None]] = []
        if self.history:
            curves = self.folder / "learning_curves.png"
            plotted.append(plotter.submit(plots.learning_curves, self.history, curves))
        figures = {}
        for part in sorted(self.outputs, key="test".__ne__):  # test first: its plot overlaps with the other evaluations
            rows = self.labels[part], self.outputs[part]
            figures[part] = evaluate(self.header, *rows, evaluator)
            if part == "test":
                plotted.append(draw(self.folder, self.header, *rows, figures[part].result(), evaluator, plotter))
        if "test" in self.outputs:
            write_csv(self.folder / PREDICTIONS, Predictions(self.header, self.test_ids, self.outputs["test"]))
        summary = {part: figures[part].result() for part in self.outputs} | self.course
        for plot in plotted:
            plot.result()
        fileio.write_json(self.folder / METRICS, summary)
        return summary


def evaluate(
    header: Header, y: NDArray[Any], outputs: NDArray[np.float32], evaluator: Executor = INLINE
) -> Future[dict[str, Any]]:
    """Start the evaluation of these rows; `y` and `outputs` as in `metrics.evaluate`."""
    return evaluator.submit(metrics.evaluate, header.target, y, outputs, header.task_names, header.class_names)


def draw(
    folder: Path,
    header: Header,
    y: NDArray[Any],
    outputs: NDArray[np.float32],
    figures: dict[str, Any],
    evaluator: Executor = INLINE,
    plotter: Executor = INLINE,
    part: str = "test rows",
) -> Future[None]:
    """Start the plot of the target's kind: ROC and PR curves, confusion matrix, or parity.

    Parameters
    ----------
    folder : Path
    y, outputs, figures
        Arguments and result of `metrics.evaluate`.
    evaluator, plotter : concurrent.futures.Executor
        As in `Report.write`.
    part : str
        Rows that are drawn, for the title.
    """
    if header.target == "binary":
        curves = evaluator.submit(metrics.curves, y, outputs).result()
        return plotter.submit(plots.roc_pr, curves, figures["tasks"], folder / "roc_pr.png", part)
    if header.target == "multiclass":
        return plotter.submit(plots.confusion, y, outputs, header.class_names, folder / "confusion.png", part)
    return plotter.submit(plots.parity, y, outputs, figures["tasks"], folder / "parity.png", part)
