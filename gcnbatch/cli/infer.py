"""``gcnbatch infer``: collects its options and prints the metrics."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import RunsAndData, command, messages, runs_and_data
from gcnbatch.options.prediction import InferOptions
from gcnbatch.text import counted

# \b keeps the lines of a paragraph as they are.
EPILOG = """\b
Examples:
  gcnbatch infer runs/tox21 new.h5 -o predictions.csv
  gcnbatch infer runs/tox21 new.csv -o new.jsonl    straight from SMILES
  gcnbatch infer runs/tox21 'CC(=O)O'               one molecule
  head new.smi | gcnbatch infer runs/tox21 -        a table or SMILES lines
  gcnbatch infer runs/a runs/b new.h5 -o mean.csv   mean and deviation
  gcnbatch infer runs/tox21 new.csv.gz | head       CSV on stdout

A run with folds is the ensemble of its folds. Rows are in the order of the input; a molecule that cannot be read has a
blank row with the reason in the column 'error'. Columns of DATA that are named like the tasks give metrics.
Where the run had enough validation rows, there are calibrated probabilities (<name>_calibrated), intervals (<name>_low,
<name>_high) or sets of labels (<name>_set, such as 0|1) that hold the right value in a share --level of new rows.
"""


@command(InferOptions)
def infer(
    paths: RunsAndData,
    plain: Annotated[bool, typer.Option("--plain", help="Predictions alone, without calibration and sets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary with the metrics as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    **options: Any,
) -> None:
    """Predict with trained runs.

    For all rows of DATA, OUT has ids and probabilities, or values in the target's unit.
    """
    from gcnbatch.api import prediction
    from gcnbatch.errors import InputError

    runs, data = runs_and_data(paths)
    out = options["out"]
    if as_json and out == "-":
        raise InputError("--json", "predictions go to standard output too", "-o FILE beside it")
    if plain:
        options["level"] = None

    say = messages(quiet)
    try:
        summary = prediction.infer(runs, data, **options, quiet=quiet, say=say)
        if out == "-":
            sys.stdout.flush()
    except BrokenPipeError:
        if out != "-":
            raise
        # A reader such as head has what it wanted. Python must not find the closed pipe again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if as_json:
        typer.echo(json.dumps({**asdict(summary), "out": out}, indent=2, allow_nan=False))
    if summary.metrics is not None:
        from gcnbatch.cli.text_tables import by_task, table
        from gcnbatch.metrics import common_unit, label

        unit = common_unit(summary.metrics)
        figures = {name: value for name, value in summary.metrics.items() if value is None or isinstance(value, float)}
        for line in [
            *table([label(name, unit) for name in figures], [list(figures.values())], left=0),
            *by_task(summary.metrics, "by task"),
        ]:
            say(line)
    where = "" if out == "-" else f" in {out}"
    models = counted(summary.members, "model")
    say(f"{counted(summary.rows, 'row')} predicted by {models} in {summary.seconds:.1f} s{where}")
