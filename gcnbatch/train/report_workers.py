"""Worker processes that evaluate and draw the report of a run.

scikit-learn and matplotlib take about a second to import. On a GPU a small model trains in that time while the other
processors are idle, so workers import them meanwhile: 50 epochs of Tox21 take about 2.1 s in all instead of 3.1 s. A
run on the CPU has no idle processors, so that its report is written in this process.

This module imports nothing large, because the workers must start before the command imports NumPy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gcnbatch.worker import Workers

if TYPE_CHECKING:
    from gcnbatch.train.report import Report

METRICS = ("sklearn.metrics", "scipy.special", "gcnbatch.train.metrics")
PLOTS = ("matplotlib.figure", "matplotlib.backends.backend_agg", "gcnbatch.train.plots")
PLOT_WORKERS = 2  # learning curves and the plot of the test rows are drawn side by side


@contextmanager
def report_workers(enabled: bool) -> Iterator[Callable[[Report], dict[str, Any]]]:
    """Yield a function that does what `Report.write` does, in workers if `enabled`; they have ended on leaving.

    Without workers, or if one of them fails, this process writes the report.
    """
    with ExitStack() as stack:
        workers = _start(stack) if enabled and sys.executable else []

        def write(report: Report) -> dict[str, Any]:
            if workers:
                try:
                    return report.write(*workers)
                except Exception:  # a worker has failed, or the report will fail below as it did there
                    workers.clear()
            return report.write()

        yield write


def _start(stack: ExitStack) -> list[Workers]:
    """Return workers for metrics and for plots, or none if a process or thread cannot be started."""
    pools = (1, METRICS), (PLOT_WORKERS, PLOTS)
    try:
        return [stack.enter_context(Workers(count, preload, modules, quiet=True)) for count, modules in pools]
    except (OSError, RuntimeError):
        return []


def preload(*modules: str) -> None:
    """Import what later calls need."""
    for name in modules:
        import_module(name)
