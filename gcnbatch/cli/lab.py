"""The commands that measure: ``compare-backends``, ``bench …`` and ``benchmark …``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcnbatch.cli.command import command, messages, print_result
from gcnbatch.options.lab import (
    AdmetOptions,
    BenchSpgemmOptions,
    BenchSpmmOptions,
    BenchTuneOptions,
    CompareBackendsOptions,
    MoleculeaceOptions,
    MoleculenetOptions,
)

if TYPE_CHECKING:
    from gcnbatch.api.lab import SuiteResults
    from gcnbatch.lab.bench.spmm.command import SpmmBench

_GO_ON = "The same command goes on where it was stopped; finished runs are kept."
_RESULTS, _QUIET = "Print results.json.", "No progress."

bench = typer.Typer(no_args_is_help=True, help="Measure single operations on this machine.", rich_markup_mode=None)
benchmark = typer.Typer(no_args_is_help=True, help="Run published suites of data sets.", rich_markup_mode=None)


@command(CompareBackendsOptions, as_json="Print report.json.")
def compare_backends(as_json: bool = False, **options: Any) -> None:
    """Check that backends agree, then measure them.

    It compares losses, all gradients, and the parameters after some steps. It times training, inference and each
    operation. The report goes to a folder; the last line on stdout is its path.

    Examples:
      gcnbatch compare-backends                           the built-in quickstart
      gcnbatch compare-backends tox21 --data tox21.h5     a shipped configuration
      gcnbatch compare-backends --backends cpu,batched --timeline step.json
      gcnbatch compare-backends --quick --json | jq .parity.passed

    Exit code 1 if a backend does not agree with the reference; then no speeds are shown.
    """
    from gcnbatch.api import lab
    from gcnbatch.cli.text_tables import facts, table
    from gcnbatch.lab.backend_comparison import report

    found = lab.compare_backends(**options, say=messages())
    if as_json:
        print_result(True, found.content, "")
    else:
        for shown in report.build(found.content):
            texts = shown.title == report.STATES
            lines = facts([(row[0], row[1]) for row in shown.rows]) if texts else table(shown.header, shown.rows)
            typer.echo("\n".join([shown.title, *lines, ""]))
        typer.echo(f"{found.verdict}\n{found.folder}")
    found.judge()


@command(BenchSpgemmOptions, group=bench, name="spgemm", as_json="Print JSON instead of text.")
def bench_spgemm(as_json: bool = False, **options: Any) -> None:
    """Multiply sparse matrices with sparse matrices.

    A A (A Aᵀ if A is not square) with our kernel, cuSPARSE and SciPy; every result is checked first.

    Exit code 1 if a result is wrong.

    Classes, all at scale 1:
      molecules  8,000 molecules of the sizes of Tox21, block-diagonal
      power_law  200,000 nodes, 1 M entries, degrees ~ d^-3
      stencil    27 points, on a cube with 64 points per side
      uniform    500,000 rows of 8 random columns

    Examples:
      gcnbatch bench spgemm
      gcnbatch bench spgemm --classes stencil,uniform --scale 0.1 -o report
      gcnbatch bench spgemm cant.mtx pdb1HYS.mtx.gz tox21.h5
    """
    from gcnbatch.api import lab
    from gcnbatch.cli.text_tables import table
    from gcnbatch.lab.bench.spgemm import report

    rows = lab.bench_spgemm(**options, say=messages())
    if as_json:
        print(json.dumps(report.as_json(rows), indent=2))
    else:
        print("\n".join([*table(report.HEADER, [report.cells(row) for row in rows]), *report.summary(rows)]))


@command(BenchSpmmOptions, group=bench, name="spmm", as_json="Print the records.")
def bench_spmm(as_json: bool = False, **options: Any) -> None:
    """Multiply batches of sparse matrices with all methods.

    Results are checked against float64, then times are measured.

    Random batches as in the papers' figures 8 to 10, or with your own --batch, --dim and --nnz-per-row, or a batch of
    a data set. Records (rows.jsonl) and plots (spmm.png) go to a folder; the last line on stdout is its path.

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

    Examples:
      gcnbatch bench spmm --figure all                   figures 8 to 10
      gcnbatch bench spmm --figure 8a --columns 64,512   two points of a figure
      gcnbatch bench spmm --batch 10000 --dim 50 --nnz-per-row 3 --columns 64
      gcnbatch bench spmm tox21.h5 --batch 50            a batch of your data
      gcnbatch bench spmm --figure 8b --compare runs/old/rows.jsonl
      gcnbatch bench spmm --figure 8b --methods naive,csr,fastest

    Exit code 1 if a result is wrong or a method became slower.
    """
    from gcnbatch.api import lab

    done = lab.bench_spmm(**options, say=messages())
    if as_json:
        typer.echo("\n".join(map(json.dumps, done.outcome.records)))
    else:
        _show_spmm(done)
    done.judge()


def _show_spmm(done: SpmmBench) -> None:
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


@command(BenchTuneOptions, group=bench, name="tune")
def bench_tune(
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The table's file.", show_default="in the cache folder"),
    ] = None,
    **options: Any,
) -> None:
    """Measure the candidates for adjacency products.

    The result is the table of this GPU that cuda.spmm = "auto" uses.

    Examples:
      gcnbatch bench tune                 into the user's cache folder
      gcnbatch bench tune -o table.json   to a file; nothing else changes
    """
    from gcnbatch.api import lab
    from gcnbatch.backends.cuda.spmm.table import output
    from gcnbatch.cli.text_tables import table
    from gcnbatch.lab.bench.spmm.tune import Check

    if out is not None:
        output(out)  # refused before the measurement
    found = lab.bench_tune(**options)
    worst = sorted(found.checks, key=lambda check: -check.ratio)[:5]
    for line in (*table(["kernel", "points"], found.counts()), "", *table(Check._fields, worst), ""):
        typer.echo(line)
    typer.echo(str(found.save(out)))


@command(MoleculenetOptions, group=benchmark, as_json=_RESULTS, quiet=_QUIET, epilog=_GO_ON)
def moleculenet(as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    r"""Train on MoleculeNet's sets; compare with published scores.

    Tables: Tox21, BBBP, BACE, ClinTox, ESOL, FreeSolv, Lipophilicity, as DeepChem or chemprop package them.
    The last line on stdout is the folder.

    Examples:
      gcnbatch benchmark moleculenet --data tables -o suite
      gcnbatch benchmark moleculenet --data tables -o suite --sets esol,bace
      gcnbatch benchmark moleculenet --data tables -o small \
          --models plain,baseline --seeds 2 --epochs 5
    """
    from gcnbatch.api import lab

    _show_suite(lab.moleculenet(**options, quiet=quiet, say=messages(quiet)), as_json)


@command(MoleculeaceOptions, group=benchmark, as_json=_RESULTS, quiet=_QUIET, epilog=_GO_ON)
def moleculeace(as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    """Train a recipe on MoleculeACE; compare with published scores.

    Tables: CHEMBL….csv.gz with columns smiles, y and split. All training rows train; the test rows give the score.
    The last line on stdout is the folder.

    Examples:
      gcnbatch benchmark moleculeace --data tables -o suite
      gcnbatch benchmark moleculeace --data tables -o suite --recipe gcn
      gcnbatch benchmark moleculeace --data tables --sets CHEMBL234_Ki
    """
    from gcnbatch.api import lab

    _show_suite(lab.moleculeace(**options, quiet=quiet, say=messages(quiet)), as_json)


@command(AdmetOptions, group=benchmark, as_json=_RESULTS, quiet=_QUIET, epilog=_GO_ON)
def admet(as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    """Train a recipe on TDC ADMET; compare with published scores.

    Tables: <set>.train_val.csv.gz and <set>.test.csv.gz with columns Drug and Y. All training rows train; the test
    rows give the score, in the metric of the set's leaderboard. The last line on stdout is the folder.

    Examples:
      gcnbatch benchmark admet --data tables -o suite
      gcnbatch benchmark admet --data tables -o suite --recipe gcn
      gcnbatch benchmark admet --data tables --sets herg,dili
    """
    from gcnbatch.api import lab

    _show_suite(lab.admet(**options, quiet=quiet, say=messages(quiet)), as_json)


def _show_suite(found: SuiteResults, as_json: bool) -> None:
    """Print the tables and the folder."""
    from gcnbatch.cli.text_tables import table
    from gcnbatch.lab.benchmark import report
    from gcnbatch.lab.benchmark.comparison import Against, against
    from gcnbatch.lab.benchmark.suite import load

    if as_json:
        typer.echo((found.folder / report.JSON).read_text(encoding="utf-8"))
        return
    suite = load(found.suite)
    for line in table(*report.table_of(suite, found.results), left=4):
        typer.echo(line)
    if beside := against(suite, found.results):
        for line in table(Against._fields, beside, left=3):
            typer.echo(line)
    typer.echo(str(found.folder))
