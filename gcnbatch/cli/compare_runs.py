"""``gcnbatch compare-runs``: collects its options and prints the differences."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command
from gcnbatch.options.results import CompareRunsOptions

EPILOG = """\b
Examples:
  gcnbatch compare-runs runs/gcn runs/gcn/baseline   a run and its baseline
  gcnbatch compare-runs runs/a runs/b runs/c -o out  all pairs, with a plot
  gcnbatch compare-runs runs/a runs/b --metric pr_auc --json

Train with --folds 5 for intervals that cover other splits. "No difference shown" is a result, too.
"""


@command(CompareRunsOptions)
def compare_runs(
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json.")] = False, **options: Any
) -> None:
    """Compare runs on the same data and splits.

    Writes differences with confidence intervals, Tukey's HSD and a plot.
    The last line on stdout is the path of the report.
    """
    from gcnbatch.api import comparison
    from gcnbatch.cli.text_tables import table
    from gcnbatch.metrics import label
    from gcnbatch.text import printable

    found = comparison.compare_runs(**options)
    report = found.content
    if as_json:
        typer.echo(json.dumps({**report, "folder": str(found.folder)}, indent=2))
        return
    rows = [[run["name"], run["model"], run["mean"], run["std"]] for run in report["runs"]]
    for line in table(["run", "model", f"test {label(report['metric'])}", "deviation"], rows, left=2):
        typer.echo(line)
    rows = [
        [f"{p['first']} - {p['second']}", p["difference"], *p["interval"], *p["joint_interval"], p["p"]]
        for p in report["pairs"]
    ]
    typer.echo("")
    for line in table(["pair", "difference", "low", "high", "joint low", "joint high", "p"], rows):
        typer.echo(line)
    typer.echo(f"\n{report['method']}.")
    for verdict in found.verdicts:
        typer.echo(printable(f"{verdict}."))
    typer.echo(str(found.folder))
