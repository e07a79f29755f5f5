"""``gcnbatch data split``: add the splits of a table to a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  gcnbatch data split tox21.h5 --from split.csv
  gcnbatch train --data tox21.h5 --set split.kind=predefined
\b
split.csv with parts     split.csv with folds
id,split                 id,fold
T1,train                 T1,0
T2,test                  T2,1
"""


def split(
    file: Annotated[Path, typer.Argument(metavar="FILE.h5", help="Data set.", show_default=False)],
    table: Annotated[
        Path, typer.Option("--from", metavar="SPLIT.csv", help="Table with a part or fold per id or row.")
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="OUT.h5", help="Data set to write.", show_default="FILE.h5")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the split.", show_default="the column's")] = "",
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
    """Add a split, or the splits of all folds, from a table to a data set.

    Words (train, valid, test) give one split. Numbers are folds: fold k gives the split NAME-k, which tests on fold k
    and, with three folds or more, validates on the next one. Rows without an entry are in no part.
    """
    from gcnbatch.api import files
    from gcnbatch.progress import write_line

    added = files.add_splits(
        file,
        table,
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
