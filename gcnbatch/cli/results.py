"""The commands that read finished runs: ``compare-runs``, ``report``, ``export`` and ``card``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from gcnbatch.cli.command import command, messages, print_result
from gcnbatch.options.results import CardOptions, CompareRunsOptions, ExportOptions, ReportOptions
from gcnbatch.text import listed, printable


@command(CompareRunsOptions, as_json="Print comparison.json.")
def compare_runs(as_json: bool = False, **options: Any) -> None:
    """Compare runs on the same data and splits.

    Writes differences with confidence intervals, Tukey's HSD and a plot.
    The last line on stdout is the path of the report.

    Examples:
      gcnbatch compare-runs runs/gcn runs/gcn/baseline   a run and its baseline
      gcnbatch compare-runs runs/a runs/b runs/c -o out  all pairs, with a plot
      gcnbatch compare-runs runs/a runs/b --metric pr_auc --json

    Train with --folds 5 for intervals that cover other splits. "No difference shown" is a result, too.
    """
    from gcnbatch.api import results
    from gcnbatch.cli.text_tables import table
    from gcnbatch.metrics import label

    found = results.compare_runs(**options)
    report = found.content
    if as_json:
        print_result(True, {**report, "folder": str(found.folder)}, "")
        return
    runs = [[run["name"], run["model"], run["mean"], run["std"]] for run in report["runs"]]
    pairs = [
        [f"{p['first']} - {p['second']}", p["difference"], *p["interval"], *p["joint_interval"], p["p"]]
        for p in report["pairs"]
    ]
    lines = [
        *table(["run", "model", f"test {label(report['metric'])}", "deviation"], runs, left=2),
        "",
        *table(["pair", "difference", "low", "high", "joint low", "joint high", "p"], pairs),
        f"\n{report['method']}.",
        *(printable(f"{verdict}.") for verdict in found.verdicts),
        str(found.folder),
    ]
    typer.echo("\n".join(lines))


@command(ReportOptions)
def report(**options: Any) -> None:
    """Write the page of a run, a study or a comparison.

    It is report.html; a run gets its model_card.md, too. Their commands write both already. A model card that you
    edited is kept. The last line on stdout is the page's path.

    Examples:
      gcnbatch report runs/tox21            after you changed or moved something
      gcnbatch report runs/tox21/baseline   the page of a run's baseline
      gcnbatch report runs/cv --figures     also the figures of all models
      gcnbatch report study                 the page and the tables of a study
      gcnbatch report runs/compare-mine     the page of a comparison
    """
    from gcnbatch.api import results

    typer.echo(str(results.report(**options, say=messages())))


@command(ExportOptions, as_json="Print a summary as JSON.", quiet="No messages.")
def export(as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    """Write a run as an ONNX model.

    All its models are in one file: folds, ensembles, and the kernel and trees of a mixture. A Python file beside it
    makes the inputs from SMILES with RDKit and NumPy alone.

    Examples:
      gcnbatch export runs/lipo -o lipo.onnx
      python lipo.py 'CC(=O)O'                      RDKit, NumPy, onnxruntime
      gcnbatch export runs/lipo -o small.onnx --without kernel

    The inputs are the graphs of a batch: features of nodes, edges into each node as a padded list, nodes of each
    graph, and features of whole graphs. The outputs are values in the target's unit, or probabilities, and their
    standard deviation, where several models give them. Where ONNX Runtime is installed, its predictions are
    compared with ours on rows of the run's data.
    """
    from gcnbatch.api import results

    say = messages(quiet)
    summary = results.export(**options, say=say)
    say(f"{listed(summary.members)}: {summary.bytes / 1e6:.1f} MB")
    if summary.python:
        say(f"{summary.python} makes the inputs from SMILES")
    print_result(as_json, asdict(summary), summary.model)


@command(CardOptions)
def card(**options: Any) -> None:
    """Print the model card of a run.

    Examples:
      gcnbatch card runs/lipo              Markdown on standard output
      gcnbatch card runs/lipo -o README.md

    The card has data, split, scores with intervals, applicability, limits and the command that made the run. Purpose,
    licences and contact are fields to fill: edit model_card.md in the folder of the run, and you get the edited card.
    """
    from gcnbatch.api import results

    text = results.card(**options)
    if options["out"] == "-":
        typer.echo(text, nl=False)
