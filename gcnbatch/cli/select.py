"""``gcnbatch select``: collects its options and prints what was chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command, messages, runs_and_data
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import parameters
from gcnbatch.options.selection import CampaignOptions, SelectCommandOptions, SelectOptions

EPILOG = """\b
Examples:
  gcnbatch select runs/assay pool.csv --n 96 -o next.csv
  gcnbatch select runs/assay pool.csv --where "MW < 500" -o next.csv
  gcnbatch select runs/a runs/b pool.csv --maximise pIC50 --below hERG=5
  gcnbatch select --campaign measured.csv --maximise pIC50 -o campaign

Molecules are taken in the order of their score. Left out: molecules of the run's data set, molecules for which a
condition or bound does not hold, and molecules too similar to one that is taken. Several runs that have equal tasks:
<run>.<task> names one. A campaign begins with 4 % of the rows of its table, measures a batch in each round, and shows
how much of the best 5 % it has found, beside random choice and the first by a random forest.
"""


@command(SelectCommandOptions)
def select(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN_DIR... POOL",
            help="Folders of runs; then molecules (.csv, .smi, .sdf, .xlsx, .parquet), a folder of such files, or - "
            "for standard input.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--campaign", metavar="TABLE", help="Replay a campaign on measured molecules, without runs and POOL."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    **options: Any,
) -> None:
    """Choose the molecules to measure next.

    OUT has the rows of POOL in the order of their rank, with score, prediction, deviation, similarity to the nearest
    measured molecule, and why.
    """
    from gcnbatch.api import selection

    say = messages(quiet)
    if table is not None:
        if paths:
            raise InputError("--campaign", f"given with {paths[0]}", "the table alone, without runs and POOL")
        campaign = selection.campaign(table, **_own(options, CampaignOptions, "--campaign"), quiet=quiet, say=say)
        for line in campaign.text().splitlines():
            say(line)
        typer.echo(json.dumps(campaign.summary, indent=2) if as_json else campaign.folder)
        return
    runs, data = runs_and_data(paths) if paths else ([], "")
    if not runs:
        raise InputError("RUN_DIR... POOL", "missing", "runs and molecules, or --campaign TABLE")
    own = _own(options, SelectOptions, "runs and POOL")
    if as_json and own.get("out") is None:
        raise InputError("--json", "the molecules go to standard output too", "-o FILE beside it")
    chosen = selection.select(runs, data, **{"out": "-", **own}, quiet=quiet, say=say)
    for line in chosen.text().splitlines():
        say(line)
    if as_json:
        typer.echo(json.dumps(chosen.summary, indent=2))


def _own(options: dict[str, Any], declared: type, what: str) -> dict[str, Any]:
    """Return the options of a declaration; refuse others that were given."""
    known = parameters(declared)
    for name, one in parameters(SelectCommandOptions).items():
        if name not in known and options.get(name, one.default) not in (one.default, [], None):
            raise InputError(one.flags[0], f"given with {what}", "its options alone; see --help")
    return {name: value for name, value in options.items() if name in known}
