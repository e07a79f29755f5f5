"""``gcnbatch bench spgemm``: measures sparse times sparse on matrix classes and Matrix Market files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gcnbatch.cli.configuration import DeviceOption, names_of

EPILOG = """\b
Classes, all at scale 1:
  molecules  8,000 molecules of the sizes of Tox21, block-diagonal
  power_law  200,000 nodes, 1 M entries, degrees ~ d^-3
  stencil    27 points, on a cube with 64 points per side
  uniform    500,000 rows of 8 random columns
\b
Examples:
  gcnbatch bench spgemm
  gcnbatch bench spgemm --classes stencil,uniform --scale 0.1 -o report
  gcnbatch bench spgemm cant.mtx pdb1HYS.mtx.gz tox21.h5
"""


def spgemm(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Matrix Market files or data sets (.h5).", show_default=False),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Matrix classes.", show_default="all, none beside files")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods", metavar="A,B,…", help="Methods: gcnbatch, cusparse, scipy.", show_default="all that can start"
        ),
    ] = None,
    scale: Annotated[float, typer.Option(help="Size of the classes, at most 16.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the classes.")] = 0,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Timed calls; a call above half a second is timed once.")
    ] = 20,
    device: DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Also write the rows (JSON) and a figure.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Multiply sparse matrices with sparse matrices.

    A A (A Aᵀ if A is not square) with our kernel, cuSPARSE and SciPy; every result is checked first.

    Exit code 1 if a result is wrong.
    """
    from gcnbatch.api import benches
    from gcnbatch.cli.text_tables import table
    from gcnbatch.lab.bench.spgemm import report
    from gcnbatch.progress import write_line

    rows = benches.bench_spgemm(
        files or [],
        classes=None if classes is None else names_of(classes),
        methods=names_of(methods) if methods else None,
        scale=scale,
        seed=seed,
        repeats=repeats,
        device=device or 0,
        out=out,
        say=write_line,
    )
    if as_json:
        print(json.dumps(report.as_json(rows), indent=2))
    else:
        print("\n".join([*table(report.HEADER, [report.cells(row) for row in rows]), *report.summary(rows)]))
