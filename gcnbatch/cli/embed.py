"""``gcnbatch embed``: collects its options and prints the summary."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import RunsAndData, command, messages, runs_and_data
from gcnbatch.options.prediction import EmbedOptions
from gcnbatch.text import counted

EPILOG = """\b
Examples:
  gcnbatch embed runs/lipo new.csv -o vectors.parquet
  gcnbatch embed runs/lipo new.csv -o vectors.npy      ids in vectors.ids.csv
  gcnbatch embed runs/lipo new.csv -o all.csv --fingerprint --descriptors
  gcnbatch embed runs/lipo new.csv -o v.npy --map map.html

The vector of a molecule has the values that enter the output layer, columns e0, e1, …; those of several networks stand
side by side, because their columns mean different things. Rows are in the order of the input; a molecule that cannot be
read has a blank row. The map places similar vectors near each other; colours are targets, errors and predictions.
"""


@command(EmbedOptions)
def embed(
    paths: RunsAndData,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    **options: Any,
) -> None:
    """Write the embedding of each molecule: a vector of each network."""
    from gcnbatch.api.prediction import embed

    runs, data = runs_and_data(paths)

    say = messages(quiet)
    summary = embed(runs, data, **options, quiet=quiet, say=say)
    more = f" and {counted(summary.features, 'feature')}" if summary.features else ""
    say(f"{counted(summary.rows, 'row')} of {counted(summary.embedding, 'value')}{more}")
    typer.echo(json.dumps(asdict(summary), indent=2, allow_nan=False) if as_json else summary.out)
