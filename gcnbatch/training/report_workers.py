"""Worker processes that fit the uncertainty, draw the plots and write the page of a run's report.

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
from typing import TYPE_CHECKING, Any, TypeVar

from gcnbatch.worker import Workers

if TYPE_CHECKING:
    from gcnbatch.training.report import Report

PAGE = ("gcnbatch.run_report.files", "rdkit.Chem.Draw.rdMolDraw2D")
FITS = ("scipy.special", "scipy.optimize", "gcnbatch.uncertainty.model")
PLOTS = ("matplotlib.figure", "matplotlib.backends.backend_agg", "gcnbatch.training.plots", "gcnbatch.uncertainty.plot")
FIT_WORKERS = 4  # at most, for several members
PLOT_WORKERS = 3  # learning curves, the plot of the test rows, uncertainty

Result = TypeVar("Result")


class Writer:
    """Writes reports, in worker processes if there are any.

    Parameters
    ----------
    workers : list of Workers
        Pools for fits and for plots, or one pool that writes whole reports. Empty: this process does everything.
    """

    def __init__(self, workers: list[Workers] | None = None) -> None:
        self._workers = workers or []

    def __call__(self, report: Report) -> dict[str, Any]:
        """Write the report of a fit; return its metrics."""
        if self._workers:
            try:
                if len(self._workers) > 1:
                    return report.write(*self._workers)
                return self._workers[0].submit(type(report).write, report).result()
            except Exception:  # a worker failed; if the report itself is at fault, the call below raises again
                self._workers.clear()
        return report.write()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function returns that writes files of a run; the first pool has nothing else to do."""
        if self._workers:
            try:
                return self._workers[0].submit(function, *arguments).result()
            except Exception:  # as above
                self._workers.clear()
        return function(*arguments)


@contextmanager
def report_workers(enabled: bool, members: int = 1) -> Iterator[Writer]:
    """Yield what writes reports, in worker processes if `enabled`. They end with the context.

    If there are no workers, or one fails, this process writes the report. A worker takes a part of a report. With at
    least as many members as cores, a worker takes a whole report: the training process then only sends it.
    """
    with ExitStack() as stack:
        yield Writer(_start(stack, members) if enabled and sys.executable else [])


def _start(stack: ExitStack, members: int) -> list[Workers]:
    """Return the pools, or an empty list if a process or thread cannot be started."""
    cores = len(os.sched_getaffinity(0))
    started: list[Workers] = []
    pools: list[tuple[int, Callable[..., object], tuple[str, ...]]] = [(cores, prepare_reports, (*FITS, *PAGE))]
    if members < max(cores, 2):
        plotters = max(PLOT_WORKERS, min(PLOT_WORKERS * members, cores))
        pools = [(min(members, FIT_WORKERS), preload, (*FITS, *PAGE)), (plotters, prepare_plots, ())]
    try:
        for count, prepare, modules in pools:
            started.append(stack.enter_context(Workers(count, prepare, modules, quiet=True)))
    except (OSError, RuntimeError):
        return []
    for workers in started:
        stack.callback(workers.shutdown, wait=False)  # runs before any waiting shutdown: all pools end at the same time
    return started


def prepare_reports(*modules: str) -> None:
    """Import these modules and what plots need."""
    preload(*modules)
    prepare_plots()


def prepare_plots() -> None:
    """Import what plots need, and draw a first figure."""
    preload(*PLOTS)
    from gcnbatch.figures import rehearse

    rehearse()


def preload(*modules: str) -> None:
    """Import the modules that later calls need, without the garbage collector, which takes a tenth of that time."""
    gc.disable()
    try:
        for name in modules:
            import_module(name)
    finally:
        gc.enable()
