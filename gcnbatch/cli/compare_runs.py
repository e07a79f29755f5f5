"""``gcnbatch compare-runs``: collects its options and prints the differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  gcnbatch compare-runs runs/gcn runs/gcn/baseline   a run and its baseline
  gcnbatch compare-runs runs/a runs/b runs/c -o out  all pairs, with a plot
  gcnbatch compare-runs runs/a runs/b --metric pr_auc --json

Train with --folds 5 for intervals that cover other splits. "No difference shown" is a result, too.
"""


def compare_runs(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR RUN_DIR...", help="Folders of runs.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="DIR", help="Folder of the report.", show_default="runs/compare-runs-<time>"
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option("--metric", help="Figure of the test rows.", show_default="roc_auc, accuracy or rmse by target"),
    ] = "",
    level: Annotated[float, typer.Option("--level", min=0.5, max=0.999, help="Confidence level.")] = 0.95,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write scores.parquet beside scores.csv.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json.")] = False,
) -> None:
    """Compare runs on the same data and splits.

    Writes differences with confidence intervals, Tukey's HSD and a plot.
    The last line on stdout is the path of the report.
    """
    from gcnbatch.api import comparison
    from gcnbatch.cli.text_tables import table
    from gcnbatch.metrics import label
    from gcnbatch.text import printable

    found = comparison.compare_runs(runs, out=out, metric=metric, level=level, parquet=parquet)
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
