"""``gcnbatch benchmark``: collects its options and prints the table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcnbatch.cli.configuration import BACKENDS, DeviceOption, JobsOption, jobs_key, names_of

app = typer.Typer(no_args_is_help=True, help="Run published suites of data sets.", rich_markup_mode=None)

EPILOG = """\b
Examples:
  gcnbatch benchmark moleculenet --data tables -o suite
  gcnbatch benchmark moleculenet --data tables -o suite --sets esol,bace
  gcnbatch benchmark moleculenet --data tables -o small \\
      --models plain,baseline --seeds 2 --epochs 5

The same command goes on where it was stopped; finished runs are kept.
"""


def _names(option: str, what: str) -> typer.models.OptionInfo:
    return typer.Option(option, metavar="A,B,…", help=what, show_default="all")


@app.command("moleculenet", epilog=EPILOG)
def moleculenet(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Folder with the tables.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Folder of the runs.", show_default="runs/moleculenet-<time>"),
    ] = None,
    sets: Annotated[str, _names("--sets", "Sets, of those that are there.")] = "",
    splits: Annotated[str, _names("--splits", "random, scaffold.")] = "",
    models: Annotated[str, _names("--models", "plain, tuned, descriptors, ensemble, baseline, mean.")] = "",
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Splits; on the scaffold split, models.")] = 5,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Epochs of every run.", show_default="by configuration")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help=BACKENDS)] = "auto",
    device: DeviceOption = None,
    jobs: JobsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train on MoleculeNet's sets; compare with published scores.

    Tables: Tox21, BBBP, BACE, ClinTox, ESOL, FreeSolv, Lipophilicity, as DeepChem or chemprop package them.
    The last line on stdout is the folder.
    """
    from gcnbatch.api import benches
    from gcnbatch.cli.text_tables import table
    from gcnbatch.lab.benchmark import results
    from gcnbatch.lab.benchmark.suite import load
    from gcnbatch.text import printable

    def say(line: str) -> None:
        if not quiet:
            typer.echo(printable(line), err=True)

    found = benches.moleculenet(
        data,
        out=out,
        sets=names_of(sets),
        splits=names_of(splits),
        models=names_of(models),
        seeds=seeds,
        epochs=epochs,
        backend=backend,
        device=device or 0,
        jobs=jobs_key(jobs) or 0,
        quiet=quiet,
        say=say,
    )
    if as_json:
        typer.echo((found.folder / results.JSON).read_text(encoding="utf-8"))
        return
    for line in table(results.HEADER, results.rows(load(), found.results), left=4):
        typer.echo(line)
    typer.echo(str(found.folder))
