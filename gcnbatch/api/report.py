"""Pages of results, written again; and the command ``gcnbatch report``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcnbatch.fileio import StrPath


def report(folder: StrPath, say: Callable[[str], object] = lambda line: None) -> Path:
    """Write ``report.html`` of a run, and its ``model_card.md``; return the path of the page.

    Raises
    ------
    InputError
        When the folder holds no finished result.
    """
    from gcnbatch.run_report import files
    from gcnbatch.train.run_files import refuse_links

    place = Path(folder)
    refuse_links(place)
    return files.write(place, say=say)
