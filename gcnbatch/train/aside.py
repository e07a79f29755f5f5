"""Processes beside training that make the report of a run.

What a report needs, scikit-learn and matplotlib, takes longer to import than a small model takes to train on a GPU,
while the host's processors but one are idle: `Aside` has other processes import them meanwhile, and then has them call
what `Report.write` takes from `gcnbatch.train.metrics` and `gcnbatch.train.plots`. They know no device and open no
data. If anything keeps them from it, the report is written here.

This module imports little, as the sooner they start, the better.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gcnbatch.worker import Workers

if TYPE_CHECKING:
    from gcnbatch.train.report import Report

PICTURES = 2  # of a report that are drawn at a time


class Aside:
    """Writes reports; with the help of other processes if `apart`. A context, at whose end these are gone."""

    def __init__(self, apart: bool) -> None:
        self._helpers: list[Workers] = []  # for numbers, for pictures
        if apart and sys.executable:
            try:
                for rehearse, count in ((rehearse_numbers, 1), (rehearse_pictures, PICTURES)):
                    self._helpers.append(Workers(count, quiet=True))
                    for _ in range(count):
                        self._helpers[-1].submit(rehearse)
            except (OSError, RuntimeError):  # no process, no thread
                self.close()

    def write(self, report: Report) -> dict[str, Any]:
        """Return what `report.write` does."""
        if self._helpers:
            try:
                return report.write(*self._helpers)
            except Exception:  # a process died, or met an error that this one will meet, too, if it is the report's
                self.close()
        return report.write()

    def close(self) -> None:
        """End the processes, side by side."""
        for wait in (False, True):
            for helper in self._helpers:
                helper.shutdown(wait)
        self._helpers = []

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def rehearse_numbers() -> None:
    """Evaluate a little, so that all that evaluating takes is imported."""
    gc.disable()  # a tenth of importing

    import numpy as np

    sys.modules["pandas"] = None  # type: ignore[assignment]  # where it is, scikit-learn waits half a second for it
    import_module("sklearn.metrics")
    del sys.modules["pandas"]  # where scikit-learn looks to see whether it was given a table

    from gcnbatch.train import metrics

    labels, outputs = np.eye(2, dtype=np.float32), np.full((2, 2), 0.5, np.float32)
    metrics.evaluate("binary", labels, outputs, ("a", "b"))
    metrics.curves(labels, outputs)
    gc.enable()


def rehearse_pictures() -> None:
    """Draw a little, so that all that drawing takes is imported; curves, too, for which a run waits last."""
    gc.disable()

    import numpy as np

    from gcnbatch.train import metrics, plots

    history = [{"epoch": 1, "train_loss": 1.0, "valid_loss": 1.0, "learning_rate": 1e-3}]
    curve = metrics.Curves(*np.tile([0.0, 0.5, 1.0], (4, 1)))
    tasks = {name: {"roc_auc": 0.5, "pr_auc": 0.5, "labelled": 2, "positives": 1} for name in "ab"}
    with tempfile.TemporaryDirectory() as folder:
        plots.learning_curves(history, Path(folder) / "rehearsal.png")
        plots.roc_pr([curve, curve], tasks, Path(folder) / "rehearsal.png")
    gc.enable()
