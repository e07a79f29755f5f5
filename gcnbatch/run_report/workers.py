"""Worker processes that write the report of a run on a GPU: fit the uncertainty, draw the plots, make the page.

matplotlib and SciPy's optimisers take half a second to import, plots about as long to draw. While a GPU trains a small
model, the CPU cores are idle, so worker processes import meanwhile. After the last step they work side by side: one
process per plot, one for the uncertainty, one for the page. Of the page, only the assembly waits for the plots; test
rows are examined beside them (`gcnbatch.run_report.tested`). Training on the CPU leaves no core idle, so the main
process writes that report. Of many members, most have no plots: a process writes such a report alone.

This module imports nothing large: the workers of few members start before the command imports NumPy.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gcnbatch.errors import GcnbatchError
from gcnbatch.figures import DRAWN_MEMBERS
from gcnbatch.worker import Workers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gcnbatch.data.graphs import Int64
    from gcnbatch.run_report.tested import Examined
    from gcnbatch.training.reports import OpenWriter, Report

Result = TypeVar("Result")

FITS = ("scipy.special", "scipy.optimize", "gcnbatch.uncertainty.model")
PLOTS = ("matplotlib.figure", "matplotlib.backends.backend_agg", "gcnbatch.training.plots", "gcnbatch.uncertainty.plot")
PAGE = ("gcnbatch.run_report.files", "rdkit.Chem.Draw.rdMolDraw2D")
PLOT_WORKERS = 3  # learning curves, the plot of the test rows, uncertainty


class Pools(NamedTuple):
    """The processes for uncertainty and reports without figures, for plots, and for the page."""

    fits: Workers
    plots: Workers
    page: Workers


class Writer:
    """Writes reports, in worker processes if there are any. Where one fails, this process writes the report.

    Parameters
    ----------
    pools : Pools or None
        None: this process does everything.
    alone : bool
        The run has one model, so its page is about the test rows of that model's report.
    """

    def __init__(self, pools: Pools | None, alone: bool) -> None:
        self._pools, self._alone = pools, alone
        self._examined: Future[Examined] | Examined | None = None

    @property
    def elsewhere(self) -> OpenWriter | None:
        """As `gcnbatch.training.reports.Writer`: worker processes there, too."""
        return beside_training if self._pools else None

    def __call__(self, report: Report) -> dict[str, Any]:
        """Write the report of a fit; return its metrics."""
        if self._pools:
            try:
                if not report.has_figures:
                    return self._pools.fits.submit(type(report).write, report).result()
                self._examine_alone(report)
                return report.write(self._pools.fits, self._pools.plots)
            except Exception:  # a worker failed; if the report itself is at fault, the call below raises again
                self._pools = None
        metrics = report.write()
        self._examine_alone(report)
        return metrics

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function returns that writes files of the run."""
        return self._call("plots", function, *arguments)

    def _examine_alone(self, report: Report) -> None:
        """Start to examine the test rows of the run's only model: the page need not read them back."""
        if self._alone and "test" in report.outputs:
            from gcnbatch.training.summary import pooled

            pool = pooled([report.test_rows], [report.outputs["test"]])  # in the order of the data set
            self.examine(report.data, pool.rows, pool.mean, True)

    def examine(self, data: Path, rows: Int64, outputs: NDArray[np.floating], resampled: bool) -> None:
        """Start to examine the run's test rows; see `gcnbatch.training.reports.Writer`."""
        from gcnbatch.run_report.tested import examine_file

        arguments = data, rows, outputs, resampled
        if self._pools:
            self._examined = self._pools.page.submit(examine_file, *arguments)
            return
        self._examined = None
        with suppress(GcnbatchError):  # the page reads the data set again, and says what is wrong with it
            self._examined = examine_file(*arguments)

    def _call(self, pool: str, function: Callable[..., Result], *arguments: Any) -> Result:
        if self._pools:
            try:
                found: Result = getattr(self._pools, pool).submit(function, *arguments).result()
                return found
            except Exception:  # as above
                self._pools = None
        return function(*arguments)

    def page(self, folder: Path) -> None:
        """Write the page of the run, whose reports are written."""
        from gcnbatch.run_report.files import update

        if self._pools:
            for pool in (self._pools.fits, self._pools.plots):
                pool.shutdown(wait=False)  # they end while the page is written
        try:
            examined = self._examined.result() if isinstance(self._examined, Future) else self._examined
        except Exception:  # as above
            self._pools = examined = None
        self._call("page", update, folder, examined)


@contextmanager
def report_workers(enabled: bool, members: int = 1, sharing: int = 1) -> Iterator[Writer]:
    """Yield what writes reports, in worker processes if `enabled`. They end with the context.

    Without workers, this process writes the reports. A worker takes a part of a report, or the whole of one without
    figures: the training process then only sends it. `sharing` processes of this host share its cores.
    """
    with ExitStack() as stack:
        yield Writer(_start(stack, members, sharing) if enabled and sys.executable else None, members == 1)


def beside_training(members: int, sharing: int) -> AbstractContextManager[Writer]:
    """Open what writes the reports of so many members; see `Writer.elsewhere`."""
    return report_workers(True, members, sharing)


def _start(stack: ExitStack, members: int, sharing: int) -> Pools | None:
    """Return the pools, or None if a process or thread cannot be started."""
    cores = max(len(os.sched_getaffinity(0)) // sharing, 1)
    plotters = max(PLOT_WORKERS, min(PLOT_WORKERS * min(members, DRAWN_MEMBERS), cores))
    kinds: list[tuple[int, Callable[..., object], tuple[str, ...]]] = [
        (min(members, max(cores // 2, 1)), preload, FITS),
        (plotters, prepare_plots, ()),
        (1, preload, PAGE),
    ]
    started: list[Workers] = []
    try:
        for count, prepare, modules in kinds:
            started.append(stack.enter_context(Workers(count, prepare, modules, quiet=True)))
    except (OSError, RuntimeError):
        return None
    for pool in started:
        stack.callback(pool.shutdown, wait=False)  # runs before any waiting shutdown: all pools end at the same time
    return Pools(*started)


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
