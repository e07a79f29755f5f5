"""``gcnbatch report``: writes the page of results again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  gcnbatch report runs/tox21            after you changed or moved something
  gcnbatch report runs/tox21/baseline   the page of a run's baseline
  gcnbatch report runs/cv --figures     also the figures of all models
  gcnbatch report study                 the page and the tables of a study
  gcnbatch report runs/compare-mine     the page of a comparison
"""


def report(
    run: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a run, a study or a comparison.", show_default=False)
    ],
    figures: Annotated[
        bool, typer.Option("--figures", help="Draw the figures of all models of a run, not of five.")
    ] = False,
) -> None:
    """Write the page of a run, a study or a comparison.

    It is report.html; a run gets its model_card.md, too. Their commands write both already. A model card that you
    edited is kept. The last line on stdout is the page's path.
    """
    from gcnbatch.api.report import report
    from gcnbatch.progress import write_line

    typer.echo(str(report(run, figures=figures, say=write_line)))
