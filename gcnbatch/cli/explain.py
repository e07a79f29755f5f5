"""``gcnbatch explain``: collects its options and prints the summary."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import RunsAndData, command, messages, runs_and_data
from gcnbatch.options.prediction import ExplainOptions
from gcnbatch.text import counted

EPILOG = """\b
Examples:
  gcnbatch explain runs/tox21 new.csv -o why             all rows, all tasks
  gcnbatch explain runs/tox21 library.smi --task NR-AR --top 50 -o why
  gcnbatch explain runs/a runs/b set.h5 -o why           mean of the models

DIR gets index.html, which sorts and filters without network; atoms.csv, bonds.csv and molecules.csv; and an SVG per
molecule in molecules/. The method is integrated gradients from a molecule without features and bonds. For every
molecule, molecules.csv has the completeness error: what the sum of all attributions misses.
"""


@command(ExplainOptions)
def explain(
    paths: RunsAndData,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    **options: Any,
) -> None:
    """Show what each atom and bond adds to predictions.

    The last line on stdout is the path of the folder.
    """
    from gcnbatch.api import prediction

    runs, data = runs_and_data(paths)

    say = messages(quiet)
    summary = prediction.explain(runs, data, **options, quiet=quiet, say=say)
    if summary.unreadable:
        say(f"{counted(summary.unreadable, 'row')} could not be read; see column error of molecules")
    say(summary.text())
    typer.echo(json.dumps(asdict(summary), indent=2, allow_nan=False) if as_json else summary.folder)
