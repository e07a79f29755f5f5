"""A process beside training that writes the report of a run.

What a report needs, scikit-learn and matplotlib, takes longer to import than a small model takes to train on a GPU.
Meanwhile the host has processors to spare: `Aside` lets another process import it. That process knows no device and
opens no data; it is sent a `Report` through a pipe and sends the metrics back. If it cannot, for whatever reason, the
report is written here.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from gcnbatch.data.schema import Header
from gcnbatch.train.report import Report

_ANSWERS = (OSError, EOFError, pickle.UnpicklingError)  # of a process that has ended


class Aside:
    """Writes reports; in a process of its own if `apart`. A context, at whose end that process is gone."""

    def __init__(self, apart: bool) -> None:
        self._process = _started() if apart else None

    def write(self, report: Report) -> dict[str, Any]:
        """Return what `report.write` does."""
        summary = self._asked(report)
        return report.write() if summary is None else summary

    def _asked(self, report: Report) -> dict[str, Any] | None:
        if self._process is None:
            return None
        with suppress(*_ANSWERS):
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            pickle.dump(report, self._process.stdin)
            self._process.stdin.flush()
            summary: dict[str, Any] | None = pickle.load(self._process.stdout)
            return summary
        self.close()
        return None

    def close(self) -> None:
        """End the process; what it was asked for it has answered."""
        if self._process is not None:
            self._process.kill()
            with suppress(OSError):
                self._process.communicate()
        self._process = None

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _started() -> subprocess.Popen[bytes] | None:
    command = [sys.executable, "-m", __name__]
    pipe = subprocess.PIPE
    with suppress(OSError):  # such as a program that Python is embedded in; away from the terminal's Ctrl-C
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)
    return None


def _rehearse() -> None:
    """Write a small report, so that all that writing takes is imported."""
    header = Header(
        name="rehearsal", level="graph", target="binary", task_names=("a", "b"), n_features=1, channel_names=("bond",)
    )
    labels, outputs = np.eye(2, dtype=np.float32), np.full((2, 2), 0.5, np.float32)
    history = [{"epoch": 1, "train_loss": 1.0, "valid_loss": 1.0, "learning_rate": 1e-3}]
    with tempfile.TemporaryDirectory() as folder:
        Report(Path(folder), header, {"test": labels}, {"test": outputs}, np.array(["0", "1"]), history, {}).write()


def _answer(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Write each report that is sent; answer with its metrics, or with nothing: who asked meets the error again."""
    while True:
        report, summary = pickle.load(questions), None
        with suppress(Exception):
            summary = report.write()
        pickle.dump(summary, answers)
        answers.flush()


def main() -> None:
    """Be the process: answer until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between
    with suppress(Exception):
        _rehearse()
    with suppress(*_ANSWERS):
        _answer(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
