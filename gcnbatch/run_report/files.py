"""Writing the report of a run into its folder: ``report.html`` and ``model_card.md``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gcnbatch import fileio
from gcnbatch.pages.document import REPORT
from gcnbatch.run_report import late_figures, model_card, page
from gcnbatch.run_report.examined import Examined
from gcnbatch.run_report.figures import Figures
from gcnbatch.run_report.record import read
from gcnbatch.training import run_files
from gcnbatch.training.fit_report import METRICS

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
        Draw the figures of every model; see `gcnbatch.run_report.late_figures`.

    Raises
    ------
    InputError
        When the folder is not that of a finished run, or a file in it is damaged.
    """
    record = read(folder, check_data, examined)
    if all_figures:
        late_figures.draw(record)
    figures = Figures(record)
    fileio.write_text(folder / REPORT, page.render(figures))
    card = folder / CARD
    if card.exists() and not model_card.is_unedited(run_files.read_text(card, "a model card")):
        say(f"{card} was edited and is kept")
    else:
        fileio.write_text(card, model_card.render(figures))
    return folder / REPORT


def update(folder: Path, examined: Examined | None = None) -> None:
    """Write the report of a run that trained just now, as `write`; nothing if the page is newer than the metrics."""
    page_file, metrics = folder / REPORT, folder / METRICS
    if not page_file.exists() or page_file.stat().st_mtime_ns < metrics.stat().st_mtime_ns:
        write(folder, check_data=False, examined=examined)
