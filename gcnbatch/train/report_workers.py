"""Worker processes that fit the uncertainty and draw the plots of a run's report.

matplotlib and SciPy's optimisers take half a second to import, plots about as long to draw. While a GPU trains a small
model, the CPU cores are idle, so worker processes import meanwhile and draw side by side. Training on the CPU leaves no
core idle, so the main process writes that report.

This module imports nothing large: the workers start before the command imports NumPy.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gcnbatch.worker import Workers

if TYPE_CHECKING:
    from gcnbatch.train.report import Report

FITS = ("scipy.special", "scipy.optimize", "gcnbatch.uncertainty.model")
PLOTS = ("matplotlib.figure", "matplotlib.backends.backend_agg", "gcnbatch.train.plots", "gcnbatch.uncertainty.plot")
FIT_WORKERS = 4  # at most, for several members
PLOT_WORKERS = 3  # learning curves, the plot of the test rows, uncertainty


@contextmanager
def report_workers(enabled: bool, members: int = 1) -> Iterator[Callable[[Report], dict[str, Any]]]:
    """Yield a function that writes a report, in worker processes if `enabled`. They end with the context.

    If there are no workers, or one fails, this process writes the report. Several members' reports are written at the
    same time, so there are more workers for them, up to one per core.
    """
    with ExitStack() as stack:
        workers = _start(stack, members) if enabled and sys.executable else []

        def write(report: Report) -> dict[str, Any]:
            if workers:
                try:
                    return report.write(*workers)
                except Exception:  # a worker failed; if the report itself is at fault, the call below raises again
                    workers.clear()
            return report.write()

        yield write


def _start(stack: ExitStack, members: int) -> list[Workers]:
    """Return the pools for fits and for plots, or an empty list if a process or thread cannot be started."""
    started: list[Workers] = []
    plotters = max(PLOT_WORKERS, min(PLOT_WORKERS * members, len(os.sched_getaffinity(0))))
    try:
        started.append(stack.enter_context(Workers(min(members, FIT_WORKERS), preload, FITS, quiet=True)))
        started.append(stack.enter_context(Workers(plotters, prepare_plots, quiet=True)))
    except (OSError, RuntimeError):
        return []
    for pool in started:
        stack.callback(pool.shutdown, wait=False)  # runs before any waiting shutdown: all pools end at the same time
    return started


def prepare_plots() -> None:
    """Import what plots need, and draw a first figure."""
    preload(*PLOTS)
    from gcnbatch.figures import rehearse

    rehearse()


def preload(*modules: str) -> None:
    """Import the modules that later calls need, without the garbage collector, which takes a tenth of that time."""
    gc.disable()
    for name in modules:
        import_module(name)
    gc.enable()
