"""``gcnbatch benchmark``: collects its options and prints the table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command
from gcnbatch.options.lab import MoleculenetOptions

app = typer.Typer(no_args_is_help=True, help="Run published suites of data sets.", rich_markup_mode=None)

EPILOG = """\b
Examples:
  gcnbatch benchmark moleculenet --data tables -o suite
  gcnbatch benchmark moleculenet --data tables -o suite --sets esol,bace
  gcnbatch benchmark moleculenet --data tables -o small \\
      --models plain,baseline --seeds 2 --epochs 5

The same command goes on where it was stopped; finished runs are kept.
"""


@app.command("moleculenet", epilog=EPILOG)
@command(MoleculenetOptions)
def moleculenet(
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    **options: Any,
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

    found = benches.moleculenet(**options, quiet=quiet, say=say)
    if as_json:
        typer.echo((found.folder / results.JSON).read_text(encoding="utf-8"))
        return
    for line in table(results.HEADER, results.rows(load(), found.results), left=4):
        typer.echo(line)
    typer.echo(str(found.folder))
