"""``gcnbatch export``: collects its options and prints the summary."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command, messages
from gcnbatch.options.results import ExportOptions
from gcnbatch.text import listed

EPILOG = """\b
Examples:
  gcnbatch export runs/lipo -o lipo.onnx
  python lipo.py 'CC(=O)O'                      RDKit, NumPy, onnxruntime
  gcnbatch export runs/lipo -o small.onnx --without kernel

The inputs are the graphs of a batch: features of nodes, edges into each node as a padded list, nodes of each graph, and
features of whole graphs. The outputs are values in the target's unit, or probabilities, and their standard deviation,
where several models give them. Where ONNX Runtime is installed, its predictions are compared with ours on rows of the
run's data.
"""


@command(ExportOptions)
def export(
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No messages.")] = False,
    **options: Any,
) -> None:
    """Write a run as an ONNX model.

    All its models are in one file: folds, ensembles, and the kernel and trees of a mixture. A Python file beside it
    makes the inputs from SMILES with RDKit and NumPy alone.
    """
    from gcnbatch.api.export import export

    say = messages(quiet)
    summary = export(**options, say=say)
    say(f"{listed(summary.members)}: {summary.bytes / 1e6:.1f} MB")
    if summary.python:
        say(f"{summary.python} makes the inputs from SMILES")
    typer.echo(json.dumps(asdict(summary), indent=2, allow_nan=False) if as_json else summary.model)
