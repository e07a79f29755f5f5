"""``gcnbatch data split``: add the splits of a table, or new ones, to a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcnbatch.cli.configuration import settings

EPILOG = """\b
Examples:
  gcnbatch data split tox21.h5 --from split.csv
  gcnbatch data split tox21.h5 --kind scaffold    needs RDKit here alone
  gcnbatch train --data tox21.h5 --set split.kind=predefined \\
      --set split.name=scaffold
\b
split.csv with parts     split.csv with folds
id,split                 id,fold
T1,train                 T1,0
T2,test                  T2,1
"""


def split(
    file: Annotated[Path, typer.Argument(metavar="FILE.h5", help="Data set.", show_default=False)],
    table: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="SPLIT.csv", help="Table with a part or fold per id or row.", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="random|stratified|scaffold",
            help="Make a new split in place of a table.",
            show_default=False,
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="split.KEY=VALUE", help="Set a key of [split] for a new split; see train --keys."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="OUT.h5", help="Data set to write.", show_default="FILE.h5")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="Name of the split.", show_default="the column's, or the kind")
    ] = "",
    split_column: Annotated[
        str, typer.Option("--split-column", help="Column of parts or folds.", show_default="the one that looks so")
    ] = "",
    id_column: Annotated[
        str,
        typer.Option("--id-column", help="Column of ids.", show_default="named like id; without one, rows in order"),
    ] = "",
    memory_mb: Annotated[
        int, typer.Option("--memory-mb", min=16, help="A set larger than this many MiB is read in slices.")
    ] = 4096,
) -> None:
    """Add a split or folds to a data set: of a table, or new.

    Words (train, valid, test) give one split. Numbers are folds: fold k gives the split NAME-k, which tests on fold k
    and, with three folds or more, validates on the next one. Rows without an entry are in no part.

    A new split is the one that a run with this [split] and seed 0 would make; split.folds makes NAME-0, NAME-1, …
    """
    from gcnbatch.api import files
    from gcnbatch.progress import write_line

    added = files.add_splits(
        file,
        table,
        kind=kind,
        settings=settings(assignments),
        out=out,
        name=name,
        split_column=split_column,
        id_column=id_column,
        memory_mb=memory_mb,
        say=write_line,
    )
    for title, parts in added.items():
        print(f"{title}: " + ", ".join(f"{part} {len(rows):,}" for part, rows in parts.parts().items()))
    print(out or file)
