"""A process beside training that writes the reports of a run.

What a report needs, scikit-learn and matplotlib, takes longer to import than a small model takes to train on a GPU,
while the host's processors but one are idle: `Aside` lets another process import it meanwhile. That process knows no
device and opens no data; it is sent a `Report` and sends the metrics back. If anything keeps it from that, the report
is written here.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from gcnbatch import worker
from gcnbatch.data.schema import Header
from gcnbatch.train.report import Report


class Aside:
    """Writes reports; in a process of its own if `apart`. A context, at whose end that process is gone."""

    def __init__(self, apart: bool) -> None:
        self._worker: worker.Worker | None = None
        if apart and sys.executable:
            with suppress(OSError):
                self._worker = worker.Worker(__name__, quiet=True)

    def write(self, report: Report) -> dict[str, Any]:
        """Return what `report.write` does."""
        summary: dict[str, Any] | None = None
        if self._worker is not None:
            try:
                summary = self._worker.ask(report)
            except Exception:  # it died, or what it sent is no answer: training is done, and the report can be written
                self.close()
        return report.write() if summary is None else summary

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.stop()
        self._worker = None

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def rehearse() -> None:
    """Write a small report, so that all that writing takes is imported."""
    header = Header(
        name="rehearsal", level="graph", target="binary", task_names=("a", "b"), n_features=1, channel_names=("bond",)
    )
    labels, outputs = np.eye(2, dtype=np.float32), np.full((2, 2), 0.5, np.float32)
    history = [{"epoch": 1, "train_loss": 1.0, "valid_loss": 1.0, "learning_rate": 1e-3}]
    with tempfile.TemporaryDirectory() as folder:
        Report(Path(folder), header, {"test": labels}, {"test": outputs}, np.array(["0", "1"]), history, {}).write()


def _write(report: Report) -> dict[str, Any] | None:
    """Return the metrics, or nothing if there was an error: who asked writes the report himself, and meets it, too."""
    with suppress(Exception):
        return report.write()
    return None


def serve() -> None:
    """Be the process that writes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # no temporary file stays behind
    with suppress(Exception):
        worker.serve(_write, prepare=rehearse)
