"""``gcnbatch explain``: collects its options and prints the summary."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
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

EPILOG = """\b
Examples:
  gcnbatch explain runs/tox21 new.csv -o why             all rows, all tasks
  gcnbatch explain runs/tox21 library.smi --task NR-AR --top 50 -o why
  gcnbatch explain runs/a runs/b set.h5 -o why           mean of the models

DIR gets index.html, which sorts and filters without network; atoms.csv, bonds.csv and molecules.csv; and an SVG per
molecule in molecules/. The method is integrated gradients from a molecule without features and bonds. For every
molecule, molecules.csv has the completeness error: what the sum of all attributions misses.
"""


def explain(
    paths: RunsAndData,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="A new folder.", show_default="runs/explain-<time>"),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="T", help="Task or class; may be given several times.", show_default="all"),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            "--top", min=0, metavar="N", help="Only the N rows with the highest prediction.", show_default="all"
        ),
    ] = 0,
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            min=0,
            max=100_000,
            metavar="S",
            help="Positions on the path.",
            show_default="16 to 432, by the completeness error",
        ),
    ] = 0,
    backend: BackendOption = "auto",
    device: DeviceOption = 0,
    resident: ResidentOption = None,
    assignments: CudaOption = None,
    batch_nodes: Annotated[
        int | None,
        typer.Option(
            "--batch-nodes",
            min=1,
            metavar="N",
            help="Nodes per batch, over all copies.",
            show_default="chosen by the backend",
        ),
    ] = None,
    on_bad_row: Annotated[
        OnBadRow, typer.Option("--on-bad-row", help="For a molecule that cannot be read: note the reason, or fail.")
    ] = OnBadRow.keep,
    smiles_column: SmilesColumnOption = "",
    id_column: IdColumnOption = "",
    delimiter: DelimiterOption = "",
    encoding: EncodingOption = "",
    processes: ProcessesOption = 0,
    no_drawings: Annotated[bool, typer.Option("--no-drawings", help="No SVG files.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="Tables as Parquet in place of CSV.")] = False,
    spreadsheet: SpreadsheetOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Show what each atom and bond adds to predictions.

    The last line on stdout is the path of the folder.
    """
    from gcnbatch.api import explanation
    from gcnbatch.data.tables.layout import TableFormat
    from gcnbatch.errors import InputError
    from gcnbatch.explanation.command import Output
    from gcnbatch.inference.molecules import CsvOptions
    from gcnbatch.progress import write_line

    *runs, data = paths
    if not runs:
        raise InputError("DATA", "missing", f"a data set or a file of molecules after the run {data}")

    def say(line: str) -> None:
        if not quiet:
            write_line(line)

    summary = explanation.explain(
        runs,
        data,
        out,
        tasks=task or [],
        top=top,
        steps=steps,
        backend=backend,
        device=device,
        resident=resident,
        settings=settings(assignments),
        batch_nodes=batch_nodes,
        table=CsvOptions(smiles_column, id_column, processes, (), TableFormat(delimiter, "", encoding)),
        on_bad_row=on_bad_row.value,
        output=Output(not no_drawings, parquet, spreadsheet),
        quiet=quiet,
        say=say,
    )
    if summary.unreadable:
        say(f"{counted(summary.unreadable, 'row')} could not be read; see column error of molecules")
    say(summary.text())
    typer.echo(json.dumps(asdict(summary), indent=2, allow_nan=False) if as_json else summary.folder)
