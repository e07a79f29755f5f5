"""Writing the report of a run into its folder: ``report.html``, ``model_card.md``, and figures of all its models.

Training draws the figures of the whole run only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.machine import cores
from gcnbatch.pages.document import REPORT
from gcnbatch.run_report import model_card, page
from gcnbatch.run_report.figures import Figures
from gcnbatch.run_report.record import Record, read
from gcnbatch.run_report.tested import Examined
from gcnbatch.training import checkpoint, plots, reports, run_files
from gcnbatch.training.finished import FinishedFit
from gcnbatch.training.fit_files import HISTORY
from gcnbatch.training.reports import METRICS, UNCERTAINTY
from gcnbatch.training.summary import draw_curves
from gcnbatch.uncertainty import plot as uncertainty_plot
from gcnbatch.uncertainty.model import Uncertainty
from gcnbatch.workers.pool import Workers


def draw_all(record: Record) -> None:
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
    with Workers(min(len(calls), cores())) as workers:
        for drawn in [workers.submit(draw_fit, *call) for call in calls]:
            drawn.result()


def draw_fit(fit: FinishedFit, header: Header | None, y: NDArray[Any] | None) -> None:
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
        draw_curves(fit.folder, [(fit.folder / HISTORY, epochs)])
    if header is None or y is None:
        return
    outputs = fit.outputs(header)
    about = fit.folder, header.target, header.class_names, y, outputs
    plots.draw_tested(*about, reports.evaluate(header, y, outputs))
    if (path := fit.folder / UNCERTAINTY).is_file():
        stored = checkpoint.load(path)
        fitted = Uncertainty.read(str(path), header, stored.arrays, stored.about)
        uncertainty_plot.draw(fitted, y, outputs, fit.folder / reports.RELIABILITY)


CARD = "model_card.md"
Say = Callable[[str], object]


def write(
    folder: Path,
    check_data: bool = True,
    say: Say = lambda line: None,
    examined: Examined | None = None,
    all_figures: bool = False,
) -> Path:
    """Write the page and the model card of a finished run; return the path of the page.

    A model card that somebody has edited is kept.

    Parameters
    ----------
    folder : Path
    check_data : bool
        Compare the data set with its digest, which reads all of it. A data set that is gone or has changed leaves the
        page without intervals and examples, and the page says so.
    say : callable
        Called with each message for the user.
    examined : Examined or None
        Its test rows, if they are examined already.
    all_figures : bool
        Draw the figures of every model; see `gcnbatch.run_report.files`.

    Raises
    ------
    InputError
        When the folder is not that of a finished run, or a file in it is damaged.
    """
    record = read(folder, check_data, examined)
    if all_figures:
        draw_all(record)
    with run_files.damaged(folder / METRICS, "the metrics of a finished run"):
        texts = page.render(Figures(record)), model_card.render(Figures(record))
    fileio.write_text(folder / REPORT, texts[0])
    if _edited(folder / CARD):
        say(f"{folder / CARD} was edited and is kept")
    else:
        fileio.write_text(folder / CARD, texts[1])
    return folder / REPORT


def card(folder: Path) -> str:
    """Return the model card of a finished run: that in its folder if somebody has edited it, else a new one.

    Raises
    ------
    InputError
        As `write`.
    """
    if text := _edited(folder / CARD):
        return text
    record = read(folder, check_data=True)
    with run_files.damaged(folder / METRICS, "the metrics of a finished run"):
        return model_card.render(Figures(record))


def _edited(path: Path) -> str:
    """Return a model card that somebody has edited; "" if it is not there or as it was generated."""
    text = run_files.read_text(path, "a model card") if path.exists() else ""
    return "" if not text or model_card.is_unedited(text) else text


def update(folder: Path, examined: Examined | None = None) -> None:
    """Write the report of a run that trained just now, as `write`; nothing if the page is newer than the metrics."""
    page_file, metrics = folder / REPORT, folder / METRICS
    if not page_file.exists() or page_file.stat().st_mtime_ns < metrics.stat().st_mtime_ns:
        write(folder, check_data=False, examined=examined)
