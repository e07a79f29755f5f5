"""``gcnbatch benchmark``: collects its options and prints the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcnbatch.cli.command import command, messages
from gcnbatch.options.lab import AdmetOptions, MoleculeaceOptions, MoleculenetOptions

if TYPE_CHECKING:
    from gcnbatch.api.benches import SuiteResults

app = typer.Typer(no_args_is_help=True, help="Run published suites of data sets.", rich_markup_mode=None)

_GO_ON = "The same command goes on where it was stopped; finished runs are kept."
AsJson = Annotated[bool, typer.Option("--json", help="Print results.json.")]
Quietly = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@app.command(
    "moleculenet",
    epilog=f"""\b
Examples:
  gcnbatch benchmark moleculenet --data tables -o suite
  gcnbatch benchmark moleculenet --data tables -o suite --sets esol,bace
  gcnbatch benchmark moleculenet --data tables -o small \\
      --models plain,baseline --seeds 2 --epochs 5

{_GO_ON}
""",
)
@command(MoleculenetOptions)
def moleculenet(as_json: AsJson = False, quiet: Quietly = False, **options: Any) -> None:
    """Train on MoleculeNet's sets; compare with published scores.

    Tables: Tox21, BBBP, BACE, ClinTox, ESOL, FreeSolv, Lipophilicity, as DeepChem or chemprop package them.
    The last line on stdout is the folder.
    """
    from gcnbatch.api import benches

    _show(benches.moleculenet(**options, quiet=quiet, say=messages(quiet)), as_json)


@app.command(
    "moleculeace",
    epilog=f"""\b
Examples:
  gcnbatch benchmark moleculeace --data tables -o suite
  gcnbatch benchmark moleculeace --data tables -o suite --recipe gcn
  gcnbatch benchmark moleculeace --data tables --sets CHEMBL234_Ki

{_GO_ON}
""",
)
@command(MoleculeaceOptions)
def moleculeace(as_json: AsJson = False, quiet: Quietly = False, **options: Any) -> None:
    """Train a recipe on MoleculeACE; compare with published scores.

    Tables: CHEMBL….csv.gz with columns smiles, y and split. All training rows train; the test rows give the score.
    The last line on stdout is the folder.
    """
    from gcnbatch.api import benches

    _show(benches.moleculeace(**options, quiet=quiet, say=messages(quiet)), as_json)


@app.command(
    "admet",
    epilog=f"""\b
Examples:
  gcnbatch benchmark admet --data tables -o suite
  gcnbatch benchmark admet --data tables -o suite --recipe gcn
  gcnbatch benchmark admet --data tables --sets herg,dili

{_GO_ON}
""",
)
@command(AdmetOptions)
def admet(as_json: AsJson = False, quiet: Quietly = False, **options: Any) -> None:
    """Train a recipe on TDC ADMET; compare with published scores.

    Tables: <set>.train_val.csv.gz and <set>.test.csv.gz with columns Drug and Y. All training rows train; the test
    rows give the score, in the metric of the set's leaderboard. The last line on stdout is the folder.
    """
    from gcnbatch.api import benches

    _show(benches.admet(**options, quiet=quiet, say=messages(quiet)), as_json)


def _show(found: SuiteResults, as_json: bool) -> None:
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
