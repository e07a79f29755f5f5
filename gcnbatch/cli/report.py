"""``gcnbatch report``: writes the page of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  gcnbatch report runs/tox21            after you changed or moved something
  gcnbatch report runs/tox21/baseline   the page of a run's baseline
"""


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run.", show_default=False)],
) -> None:
    """Write report.html and model_card.md of a finished run.

    Training writes both already. A model card that you edited is kept. The last line on stdout is the page's path.
    """
    from gcnbatch.api.report import report

    typer.echo(str(report(run, say=lambda line: typer.echo(line, err=True))))
