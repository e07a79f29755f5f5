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
    from gcnbatch.cli.text_tables import table
    from gcnbatch.compare_runs.session import compare
    from gcnbatch.text import printable

    folder, found = compare(runs, out, metric, level, parquet)
    report = found.as_dict()
    if as_json:
        typer.echo(json.dumps({**report, "folder": str(folder)}, indent=2))
        return
    rows = [[run["name"], run["model"], run["mean"], run["std"]] for run in report["runs"]]
    for line in table(["run", "model", f"test {found.metric}", "deviation"], rows, left=2):
        typer.echo(line)
    names = [run.name for run in found.runs]
    rows = [
        [f"{names[p.first]} - {names[p.second]}", p.mean, p.low, p.high, p.joint_low, p.joint_high, p.p]
        for p in found.pairs
    ]
    typer.echo("")
    for line in table(["pair", "difference", "low", "high", "joint low", "joint high", "p"], rows):
        typer.echo(line)
    typer.echo(f"\n{found.method}.")
    for pair in found.pairs:
        typer.echo(printable(f"{found.verdict(pair)}."))
    typer.echo(str(folder))
