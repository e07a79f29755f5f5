"""What a finished fit leaves in its folder: metrics, predictions, plots."""

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


class _Here(Executor):
    """Does what it is asked for at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


HERE = _Here()


@dataclass(frozen=True)
class Report:
    """All that is known when a fit has ended, in plain arrays: no device and no open file is needed to write it.

    Parameters
    ----------
    folder : Path
        Receives metrics.json, predictions.csv and plots.
    header : Header
    labels : dict of array
        Part ("train", "valid", "test") -> targets of its rows, as the data set has them; (R, K), or (R, 1) of classes.
    outputs : dict of float32, (R, K) or (R, C)
        Part -> what the best weights make of its rows: probabilities, or values in the targets' unit.
    test_ids : (R,) str
    history : list of dict
        Rows of history.jsonl.
    course : dict
        What else metrics.json says: backend, epochs, seconds, the split.
    """

    folder: Path
    header: Header
    labels: dict[str, NDArray[Any]]
    outputs: dict[str, NDArray[np.float32]]
    test_ids: NDArray[np.str_]
    history: list[dict[str, Any]]
    course: dict[str, Any]

    def write(self, numbers: Executor = HERE, pictures: Executor = HERE) -> dict[str, Any]:
        """Evaluate every part; write metrics.json, predictions.csv and plots; return the metrics.

        Parameters
        ----------
        numbers, pictures : concurrent.futures.Executor
            Call the functions of `metrics`, and those of `plots`.
        """
        drawn = [pictures.submit(plots.learning_curves, self.history, self.folder / "learning_curves.png")]
        figures = {}
        for part in sorted(self.outputs, key="test".__ne__):  # its plot is drawn while the others are evaluated
            rows = self.labels[part], self.outputs[part]
            figures[part] = evaluate(self.header, *rows, numbers)
            if part == "test":
                drawn.append(draw(self.folder, self.header, *rows, figures[part].result(), numbers, pictures))
        if "test" in self.outputs:
            write_csv(self.folder / PREDICTIONS, Predictions(self.header, self.test_ids, self.outputs["test"]))
        summary = {part: figures[part].result() for part in self.outputs} | self.course
        for picture in drawn:
            picture.result()
        fileio.write_json(self.folder / METRICS, summary)
        return summary


def evaluate(
    header: Header, y: NDArray[Any], outputs: NDArray[np.float32], numbers: Executor = HERE
) -> Future[dict[str, Any]]:
    """Begin to find every figure of these rows' outputs; `y` and `outputs` as `metrics.evaluate` takes them."""
    return numbers.submit(metrics.evaluate, header.target, y, outputs, header.task_names, header.class_names)


def draw(
    folder: Path,
    header: Header,
    y: NDArray[Any],
    outputs: NDArray[np.float32],
    figures: dict[str, Any],
    numbers: Executor = HERE,
    pictures: Executor = HERE,
) -> Future[None]:
    """Begin the plot that suits the target: ROC and PR curves, a confusion matrix, or parity.

    Parameters
    ----------
    folder : Path
    y, outputs, figures
        As `metrics.evaluate` takes and returns them.
    numbers, pictures : concurrent.futures.Executor
        As in `Report.write`.
    """
    if header.target == "binary":
        curves = numbers.submit(metrics.curves, y, outputs).result()
        return pictures.submit(plots.roc_pr, curves, figures["tasks"], folder / "roc_pr.png")
    if header.target == "multiclass":
        return pictures.submit(plots.confusion, y, outputs, header.class_names, folder / "confusion.png")
    return pictures.submit(plots.parity, y, outputs, figures["tasks"], folder / "parity.png")


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
