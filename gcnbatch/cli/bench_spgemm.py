"""``gcnbatch bench spgemm``: measures sparse times sparse on matrix classes and Matrix Market files."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command
from gcnbatch.options.lab import BenchSpgemmOptions

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


@command(BenchSpgemmOptions)
def spgemm(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False, **options: Any
) -> None:
    """Multiply sparse matrices with sparse matrices.

    A A (A Aᵀ if A is not square) with our kernel, cuSPARSE and SciPy; every result is checked first.

    Exit code 1 if a result is wrong.
    """
    from gcnbatch.api import benches
    from gcnbatch.cli.text_tables import table
    from gcnbatch.lab.bench.spgemm import report
    from gcnbatch.progress import write_line

    rows = benches.bench_spgemm(**options, say=write_line)
    if as_json:
        print(json.dumps(report.as_json(rows), indent=2))
    else:
        print("\n".join([*table(report.HEADER, [report.cells(row) for row in rows]), *report.summary(rows)]))
