"""Writing reports in the worker processes that `gcnbatch.startup` starts, while training goes on.

One process draws each plot, one fits the uncertainty, one looks for copies of molecules and makes the page. Of the
page, only the assembly waits for the plots; test rows are examined beside them (`gcnbatch.run_report.tested`). Models
of a run of several have no plots: one process writes such a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gcnbatch import startup
from gcnbatch.data.copies import across_splits
from gcnbatch.data.graphs import Int64, Split
from gcnbatch.data.store import Dataset
from gcnbatch.errors import GcnbatchError
from gcnbatch.run_report.files import update
from gcnbatch.run_report.tested import Examined, examine_file
from gcnbatch.startup import Pools
from gcnbatch.training.reports import OpenWriter, Report, ReportWriter
from gcnbatch.training.summary import pooled
from gcnbatch.workers.pool import INLINE, WorkerDied

THREADS = 64  # that wait for worker processes
Result = TypeVar("Result")


@contextmanager
def open_writer(pools: Pools | None, models: int) -> Iterator[ParallelWriter]:
    """Yield what writes the reports of so many models in these processes; None: this process writes them."""
    if pools is None:
        yield ParallelWriter(None, models)
        return
    with ThreadPoolExecutor(min(models, THREADS)) as threads:
        yield ParallelWriter(pools, models, threads)


@contextmanager
def beside_training(models: int, sharing: int) -> Iterator[ParallelWriter]:
    """Start processes for the reports of so many models, and yield what writes these; see `ReportWriter.elsewhere`."""
    with startup.report_pools(models, sharing) as pools, open_writer(pools, models) as writer:
        yield writer


def copies_in(path: Path, memory_mb: int, splits: Mapping[str, Split]) -> list[str]:
    """Return `across_splits` of the data set at a path."""
    with Dataset(path, memory_mb, check=False) as dataset:
        return across_splits(dataset, splits)


class ParallelWriter(ReportWriter):
    """Writes reports in worker processes, if there are any. Where one fails, this process writes the report.

    Parameters
    ----------
    pools : Pools or None
        None: this process does everything.
    models : int
        Of the run. If it has one, its page is about the test rows of that model's report.
    threads : concurrent.futures.Executor
        Wait for the processes.
    """

    def __init__(self, pools: Pools | None, models: int = 1, threads: Executor = INLINE) -> None:
        super().__init__(threads)
        self._pools, self._alone = pools, models == 1
        self._examined: Future[Examined] | Examined | None = None
        self.elsewhere: OpenWriter | None = beside_training if pools else None

    def write(self, report: Report) -> dict[str, Any]:
        """Write the report of a fit; return its metrics."""
        if self._pools:
            try:
                if not report.has_figures:
                    return self._pools.fits.submit(Report.write, report).result()
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

    def examine(self, data: Path, rows: Int64, outputs: NDArray[np.floating], resampled: bool) -> None:
        """Start to examine the run's test rows for its page; without processes, examine them."""
        arguments = data, rows, outputs, resampled
        if self._pools:
            self._examined = self._pools.page.submit(examine_file, *arguments)
            return
        self._examined = None
        with suppress(GcnbatchError):  # the page reads the data set again, and says what is wrong with it
            self._examined = examine_file(*arguments)

    def copies(self, dataset: Dataset, splits: Mapping[str, Split]) -> list[str]:
        """Return notes on copies of molecules in different parts of splits."""
        if self._pools:
            try:
                return self._pools.page.submit(copies_in, dataset.path, dataset.memory_mb, splits).result()
            except WorkerDied:
                self._pools = None
        return super().copies(dataset, splits)

    def page(self, folder: Path) -> None:
        """Write the page of the run, whose reports are written."""
        if self._pools:
            for pool in (self._pools.fits, self._pools.plots):
                pool.shutdown(wait=False)  # they end while the page is written
        try:
            examined = self._examined.result() if isinstance(self._examined, Future) else self._examined
        except Exception:  # as above
            self._pools = examined = None
        self._call("page", update, folder, examined)

    def _examine_alone(self, report: Report) -> None:
        """Examine the test rows of the run's only model: the page need not read them back."""
        if self._alone and "test" in report.outputs:
            pool = pooled([report.test_rows], [report.outputs["test"]])  # in the order of the data set
            self.examine(report.data, pool.rows, pool.mean, True)

    def _call(self, pool: str, function: Callable[..., Result], *arguments: Any) -> Result:
        if self._pools:
            try:
                found: Result = getattr(self._pools, pool).submit(function, *arguments).result()
                return found
            except Exception:  # as above
                self._pools = None
        return function(*arguments)
