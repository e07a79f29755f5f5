"""``gcnbatch compare-backends``: collects its options and prints the results."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command
from gcnbatch.options.lab import CompareBackendsOptions

EPILOG = """\b
Examples:
  gcnbatch compare-backends                           the built-in quickstart
  gcnbatch compare-backends tox21 --data tox21.h5     a shipped configuration
  gcnbatch compare-backends --backends cpu,batched --timeline step.json
  gcnbatch compare-backends --quick --json | jq .parity.passed

Exit code 1 if a backend does not agree with the reference; then no speeds are shown.
"""


@command(CompareBackendsOptions)
def compare_backends(
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json.")] = False, **options: Any
) -> None:
    """Check that backends agree, then measure them.

    It compares losses, all gradients, and the parameters after some steps. It times training, inference and each
    operation. The report goes to a folder; the last line on stdout is its path.
    """
    from gcnbatch.api import backends as comparisons
    from gcnbatch.cli.text_tables import facts, table
    from gcnbatch.lab.backend_comparison import report
    from gcnbatch.progress import write_line

    found = comparisons.compare_backends(**options, say=write_line)
    if as_json:
        typer.echo(json.dumps(found.content, indent=2, allow_nan=False))
    else:
        for shown in report.build(found.content):
            texts = shown.title == report.STATES
            lines = facts([(row[0], row[1]) for row in shown.rows]) if texts else table(shown.header, shown.rows)
            typer.echo("\n".join([shown.title, *lines, ""]))
        typer.echo(found.verdict)
        typer.echo(str(found.folder))
    found.judge()
