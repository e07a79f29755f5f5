"""Processes beside training that make the reports of a run.

What a report needs, scikit-learn and matplotlib, takes longer to import than a small model takes to train on a GPU,
while the host's processors but one are idle: `Aside` lets two other processes import one of them each meanwhile. They
know no device and open no data; they are sent functions of `gcnbatch.train.metrics` and `gcnbatch.train.plots`, with
arrays. If anything keeps them from that, the report is written here.

This module imports little, as the sooner the two start, the better.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gcnbatch.worker import Worker, serve

if TYPE_CHECKING:
    from gcnbatch.train.report import Report


class Aside:
    """Writes reports; with the help of two processes if `apart`. A context, at whose end these are gone."""

    def __init__(self, apart: bool) -> None:
        self._helpers: list[_Helper] = []
        if apart and sys.executable:
            try:
                for function in (numbers, pictures):
                    self._helpers.append(_Helper(function))
            except OSError:
                self.close()

    def write(self, report: Report) -> dict[str, Any]:
        """Return what `report.write` does."""
        if self._helpers:
            try:
                return report.write(*self._helpers)
            except Exception:  # a process died, or met an error, as this one will if it is the report's
                self.close()
        return report.write()

    def close(self) -> None:
        """End the processes."""
        for helper in self._helpers:
            helper.shutdown()
        self._helpers = []

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Failed(Exception):
    """What was asked for met an error."""


class _Helper(Executor):
    """Calls functions of modules in a process of its own, one after the other."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.worker, self._thread = Worker(function, quiet=True), ThreadPoolExecutor(1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._thread.submit(self._ask, fn, args, kwargs)

    def _ask(self, *call: Any) -> Any:
        answer = self.worker.ask(call)
        if isinstance(answer, _Failed):
            raise answer
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        self.worker.stop()
        self._thread.shutdown(wait, cancel_futures=cancel_futures)


# ------------------------------------------------------------------------------------------------ in these processes


def numbers() -> None:
    """Be the process that knows scikit-learn."""
    _serve(_rehearse_numbers)


def pictures() -> None:
    """Be the process that knows matplotlib."""
    _serve(_rehearse_pictures)


def _serve(rehearse: Callable[[], object]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # no temporary file stays behind
    with suppress(Exception):
        serve(_call, prepare=rehearse)


def _call(question: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> Any:
    function, arguments, named = question
    try:
        return function(*arguments, **named)
    except Exception as error:
        return _Failed(str(error))


def _rehearse_numbers() -> None:
    """Evaluate a little, so that all that evaluating takes is imported."""
    import numpy as np

    sys.modules["pandas"] = None  # type: ignore[assignment]  # where it is, scikit-learn waits half a second for it
    import_module("sklearn.metrics")
    del sys.modules["pandas"]  # where scikit-learn looks to see whether it was given a table

    from gcnbatch.train import metrics

    labels, outputs = np.eye(2, dtype=np.float32), np.full((2, 2), 0.5, np.float32)
    metrics.evaluate("binary", labels, outputs, ("a", "b"))
    metrics.curves(labels, outputs)


def _rehearse_pictures() -> None:
    """Draw a little, so that all that drawing takes is imported."""
    from gcnbatch.train import plots

    history = [{"epoch": 1, "train_loss": 1.0, "valid_loss": 1.0, "learning_rate": 1e-3}]
    with tempfile.TemporaryDirectory() as folder:
        plots.learning_curves(history, Path(folder) / "rehearsal.png")
