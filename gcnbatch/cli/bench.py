"""``gcnbatch bench``: measures single operations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcnbatch.cli import bench_spgemm
from gcnbatch.cli.command import command
from gcnbatch.options.lab import BenchSpmmOptions, BenchTuneOptions

if TYPE_CHECKING:
    from gcnbatch.lab.bench.spmm.command import SpmmBench

app = typer.Typer(no_args_is_help=True, help="Measure single operations on this machine.", rich_markup_mode=None)
app.command("spgemm", epilog=bench_spgemm.EPILOG)(bench_spgemm.spgemm)

SPMM_EPILOG = """\b
Methods:
  scipy          SciPy on the CPU
  tf-loop        TensorFlow's kernel for a SparseTensor, one call per matrix
  cusparse-loop  cuSPARSE on CSR, one call per matrix; its fastest algorithm
  cublas         cuBLAS gemmBatched on the matrices in dense form
  cusparse       cuSPARSE on the block-diagonal matrix; its fastest algorithm
  swa-coo        the papers' batched kernel for SparseTensors
  swa-csr        the papers' batched kernel for CSR
  naive          one thread per output, the first kernel to read; only by name
  csr            our general kernel, the second to read; only by name
  fastest        our kernel that cuda.spmm = "auto" chooses
cuSPARSE and cuBLAS need pip install 'gcnbatch[bench]'. Methods that cannot
run are listed with the reason.

\b
Examples:
  gcnbatch bench spmm --figure all                   figures 8 to 10
  gcnbatch bench spmm --figure 8a --columns 64,512   two points of a figure
  gcnbatch bench spmm --batch 10000 --dim 50 --nnz-per-row 3 --columns 64
  gcnbatch bench spmm tox21.h5 --batch 50            a batch of your data
  gcnbatch bench spmm --figure 8b --compare runs/old/rows.jsonl
  gcnbatch bench spmm --figure 8b --methods naive,csr,fastest

Exit code 1 if a result is wrong or a method became slower.
"""
TUNE_EPILOG = """\b
Examples:
  gcnbatch bench tune                 into the user's cache folder
  gcnbatch bench tune -o table.json   to a file; nothing else changes
"""


@app.command("spmm", epilog=SPMM_EPILOG)
@command(BenchSpmmOptions)
def spmm(as_json: Annotated[bool, typer.Option("--json", help="Print the records.")] = False, **options: Any) -> None:
    """Multiply batches of sparse matrices with all methods.

    Results are checked against float64, then times are measured.

    Random batches as in the papers' figures 8 to 10, or with your own --batch, --dim and --nnz-per-row, or a batch of
    a data set. Records (rows.jsonl) and plots (spmm.png) go to a folder; the last line on stdout is its path.
    """
    from gcnbatch.api import benches
    from gcnbatch.progress import write_line

    done = benches.bench_spmm(**options, say=write_line)
    if as_json:
        typer.echo("\n".join(map(json.dumps, done.outcome.records)))
    else:
        _show(done)
    done.judge()


def _show(done: SpmmBench) -> None:
    from gcnbatch.cli.text_tables import table
    from gcnbatch.lab.bench.spmm import tables

    records = done.outcome.records
    typer.echo(f"{tables.caption(records)}\n")
    for shown in (tables.times(records), tables.ratios(records), tables.slower(done.changes)):
        if shown.rows:
            typer.echo("\n".join([*table(shown.header, shown.rows), ""]))
    if done.changes:
        typer.echo(f"{tables.changed(done.changes)}\n")
    if done.outcome.absent:
        typer.echo("\n".join([*tables.absent(done.outcome.absent), ""]))
    typer.echo(str(done.folder))


@app.command("tune", epilog=TUNE_EPILOG)
@command(BenchTuneOptions)
def tune(
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The table's file.", show_default="in the cache folder"),
    ] = None,
    **options: Any,
) -> None:
    """Measure the candidates for adjacency products.

    The result is the table of this GPU that cuda.spmm = "auto" uses.
    """
    from gcnbatch.api import benches
    from gcnbatch.backends.cuda.spmm.table import output
    from gcnbatch.cli.text_tables import table
    from gcnbatch.lab.bench.spmm.tune import Check

    if out is not None:
        output(out)  # refused before the measurement
    found = benches.bench_tune(**options)
    worst = sorted(found.checks, key=lambda check: -check.ratio)[:5]
    for line in (*table(["kernel", "points"], found.counts()), "", *table(Check._fields, worst), ""):
        typer.echo(line)
    typer.echo(str(found.save(out)))
