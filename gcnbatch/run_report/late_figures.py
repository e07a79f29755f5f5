"""Figures of all models of a finished run: training draws those of the first members only."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.run_report.record import Record
from gcnbatch.training import checkpoint, fit_report, run_files
from gcnbatch.training.fit_report import UNCERTAINTY
from gcnbatch.training.fitted import Fit
from gcnbatch.training.member_files import HISTORY
from gcnbatch.uncertainty.model import Uncertainty
from gcnbatch.worker import Workers


def draw(record: Record) -> None:
    """Draw the figures of every model of a run, with a process per core.

    Raises
    ------
    InputError
        When the run has test rows whose data set is gone or has changed, or a file of a model is damaged.
    """
    tests = [fit.split.test for fit in record.fits]
    if any(map(len, tests)) and record.tested is None:
        raise InputError("--figures", record.why_not, f"the data of {record.folder}")
    tested, rows = record.tested, np.unique(np.concatenate(tests))
    calls: list[tuple[Any, ...]] = [
        (fit, *((tested.header, tested.y[np.searchsorted(rows, test)]) if tested and len(test) else (None, None)))
        for fit, test in zip(record.fits, tests, strict=True)
    ]
    with Workers(min(len(calls), len(os.sched_getaffinity(0)))) as workers:
        for drawn in [workers.submit(draw_fit, *call) for call in calls]:
            drawn.result()


def draw_fit(fit: Fit, header: Header | None, y: NDArray[Any] | None) -> None:
    """Draw the figures of a model.

    Parameters
    ----------
    header, y
        Header of the data set, and the targets of the test rows as in `metrics.evaluate`; None: there are no test rows.

    Raises
    ------
    InputError
        When one of its files is damaged.
    """
    if (epochs := fit.metrics.get("epochs")) and (fit.folder / HISTORY).exists():
        fit_report.draw_curves(fit.folder, run_files.read_history(fit.folder / HISTORY, epochs)).result()
    if header is None or y is None:
        return
    outputs = fit.outputs(header)
    fit_report.draw(fit.folder, header, y, outputs, fit_report.evaluate(header, y, outputs)).result()
    if (path := fit.folder / UNCERTAINTY).is_file():
        stored = checkpoint.load(path)
        fitted = Uncertainty.read(str(path), header, stored.arrays, stored.about)
        fit_report.draw_uncertainty(fit.folder, fitted, y, outputs).result()
