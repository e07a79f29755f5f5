"""``gcnbatch compare-backends``: collects its options and prints the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gcnbatch.cli.configuration import (
    BatchSizeOption,
    ConfigArgument,
    DataOption,
    DeviceOption,
    ResidentOption,
    SeedOption,
    names_of,
    settings,
)

EPILOG = """\b
Examples:
  gcnbatch compare-backends                           the built-in quickstart
  gcnbatch compare-backends tox21 --data tox21.h5     a shipped configuration
  gcnbatch compare-backends --backends cpu,batched --timeline step.json
  gcnbatch compare-backends --quick --json | jq .parity.passed

Exit code 1 if a backend does not agree with the reference; then no speeds are shown.
"""


def compare_backends(
    config: ConfigArgument = None,
    data: DataOption = None,
    backends: Annotated[
        str, typer.Option("--backends", metavar="A,B,…", help="Backends to compare.", show_default="all")
    ] = "",
    device: DeviceOption = None,
    resident: ResidentOption = None,
    batch_size: BatchSizeOption = None,
    seed: SeedOption = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set any key of the configuration; see train --keys."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=0, help="Timed steps of a repetition; 0: a whole epoch.", show_default="50"),
    ] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", min=1, help="Repetitions.", show_default="5")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run a few steps only: for a quick look.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="DIR", help="Folder of the report.", show_default="runs/compare-<name>-<time>"
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="FILE", help="Trace of a step, for Perfetto or Chrome.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json.")] = False,
) -> None:
    """Check that backends agree, then measure them.

    It compares losses, all gradients, and the parameters after some steps. It times training, inference and each
    operation. The report goes to a folder; the last line on stdout is its path.
    """
    from gcnbatch.api import backends as comparisons
    from gcnbatch.cli.text_tables import facts, table
    from gcnbatch.lab.backend_comparison import report
    from gcnbatch.progress import write_line

    found = comparisons.compare_backends(
        config,
        data,
        backends=names_of(backends),
        out=out,
        timeline=timeline,
        device=device,
        resident=resident,
        batch_size=batch_size,
        seed=seed,
        steps=steps,
        repeats=repeats,
        quick=quick,
        settings=settings(assignments),
        say=write_line,
    )
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
