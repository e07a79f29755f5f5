"""Pages of results, written again; and the command ``gcnbatch report``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcnbatch.fileio import StrPath


def report(folder: StrPath, say: Callable[[str], object] = lambda line: None, *, figures: bool = False) -> Path:
    """Write ``report.html`` of a run, a study or a comparison of runs or backends; return its path.

    Parameters
    ----------
    folder : path
        Of a run, which also gets its ``model_card.md``; of a study, which also gets its tables; or of a comparison of
        runs or of backends.
    say : callable
        Called with each message for the user.
    figures : bool
        Draw the figures of every model of a run. Training draws those of the whole run only.

    Raises
    ------
    InputError
        When the folder holds no finished result, a file in it is damaged, or figures are asked for of something other
        than a run, or of a run whose data set is gone or has changed.

    Examples
    --------
    >>> import gcnbatch
    >>> run = gcnbatch.train(epochs=1, settings={"model.widths": [4]}, out="quickstart")
    >>> gcnbatch.report("quickstart").name
    'report.html'
    """
    from gcnbatch.errors import InputError
    from gcnbatch.lab.backend_comparison.report import JSON
    from gcnbatch.run_comparison.comparison import CONTENT
    from gcnbatch.training.run_files import STUDY, refuse_links

    place = Path(folder)
    if any((place / name).is_file() for name in (STUDY, CONTENT, JSON)):
        refuse_links(place)
        if figures:
            raise InputError("--figures", f"given with {place}", "the folder of a run")
    if (place / STUDY).is_file():
        from gcnbatch.tuning import search

        return search.report(place, say)
    if (place / CONTENT).is_file():
        from gcnbatch.run_comparison import comparison

        return comparison.report(place)
    if (place / JSON).is_file():
        from gcnbatch.lab.backend_comparison import report as backends_report

        return backends_report.rewrite(place)
    from gcnbatch.run_report import files

    return files.write(place, say=say, all_figures=figures)
