"""``gcnbatch infer``: collects its options and prints the metrics."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from gcnbatch.cli.configuration import ResidentOption, settings
from gcnbatch.cli.prediction_options import (
    BackendOption,
    CudaOption,
    DelimiterOption,
    DeviceOption,
    EncodingOption,
    IdColumnOption,
    OnBadRow,
    ProcessesOption,
    RunsAndData,
    SmilesColumnOption,
    SpreadsheetOption,
)
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


def infer(
    paths: RunsAndData,
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="OUT", help=".csv, .jsonl, .h5 or .parquet file; - for CSV on stdout.")
    ] = "-",
    backend: BackendOption = "auto",
    device: DeviceOption = 0,
    resident: ResidentOption = None,
    assignments: CudaOption = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Graphs per batch.", show_default="chosen by the backend")
    ] = None,
    on_bad_row: Annotated[
        OnBadRow, typer.Option("--on-bad-row", help="For a molecule that cannot be read: keep a blank row, or fail.")
    ] = OnBadRow.keep,
    smiles_column: SmilesColumnOption = "",
    id_column: IdColumnOption = "",
    keep_columns: Annotated[
        str | None,
        typer.Option(
            "--keep-columns",
            metavar="A,B,…|all",
            help="Columns of DATA, such as SMILES, to copy to OUT.",
            show_default="none",
        ),
    ] = None,
    delimiter: DelimiterOption = "",
    decimal: Annotated[
        str, typer.Option(help="CSV: decimal sign of measured values: . or ,", show_default="detected")
    ] = "",
    missing: Annotated[
        str, typer.Option(metavar="A,B,…", help="CSV: further texts of missing values.", show_default="none")
    ] = "",
    encoding: EncodingOption = "",
    processes: ProcessesOption = 0,
    spreadsheet: SpreadsheetOption = False,
    top: Annotated[
        int, typer.Option("--top", min=0, metavar="N", help="Write only the N rows with the highest values, sorted.")
    ] = 0,
    threshold: Annotated[
        float | None, typer.Option("--threshold", metavar="X", help="Write only rows with a value of at least X.")
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="TASK", help="Whose value --top and --threshold take.", show_default="the only one"
        ),
    ] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a killed prediction was stopped (.csv, .jsonl).")
    ] = False,
    level: Annotated[
        float | None,
        typer.Option(
            "--level",
            metavar="P",
            help="Level of intervals and sets: share of right ones.",
            show_default="as in training",
        ),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Predictions alone, without calibration and sets.")] = False,
    applicability: Annotated[
        bool, typer.Option("--applicability", help="Add nearness to the run's training molecules, from its data set.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary with the metrics as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Predict with trained runs.

    For all rows of DATA, OUT has ids and probabilities, or values in the target's unit.
    """
    from gcnbatch.api import prediction
    from gcnbatch.data.importers.cells import split_names
    from gcnbatch.data.tables.layout import TableFormat
    from gcnbatch.errors import InputError
    from gcnbatch.inference.molecules import CsvOptions
    from gcnbatch.inference.tabulation import Selection
    from gcnbatch.progress import write_line

    *runs, data = paths
    if not runs:
        raise InputError("DATA", "missing", f"a data set or a file of molecules after the run {data}")
    if as_json and out == "-":
        raise InputError("--json", "predictions go to standard output too", "-o FILE beside it")

    def say(line: str) -> None:
        if not quiet:
            write_line(line)

    try:
        summary = prediction.infer(
            runs,
            data,
            out,
            backend=backend,
            device=device,
            resident=resident,
            settings=settings(assignments),
            batch_size=batch_size,
            on_bad_row=on_bad_row.value,
            table=CsvOptions(
                smiles_column,
                id_column,
                processes,
                tuple(split_names(keep_columns or "")),
                TableFormat(delimiter, decimal, encoding, tuple(split_names(missing))),
            ),
            spreadsheet=spreadsheet,
            selection=Selection(top, threshold, by),
            resume=resume,
            level=None if plain else "training" if level is None else level,
            applicability=applicability,
            quiet=quiet,
            say=say,
        )
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
        from gcnbatch.training.metrics import common_unit, label

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
