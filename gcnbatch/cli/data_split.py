"""``gcnbatch data split``: add the splits of a table, or new ones, to a data set."""

from __future__ import annotations

from typing import Any

from gcnbatch.cli.command import command
from gcnbatch.options.datasets import SplitOptions

EPILOG = """\b
Examples:
  gcnbatch data split tox21.h5 --from split.csv
  gcnbatch data split tox21.h5 --kind scaffold    needs RDKit here alone
  gcnbatch data split tox21.h5 --kind cluster --set split.similarity=0.5
  gcnbatch train --data tox21.h5 --set split.kind=predefined \\
      --set split.name=scaffold
\b
split.csv with parts     split.csv with folds
id,split                 id,fold
T1,train                 T1,0
T2,test                  T2,1
"""


@command(SplitOptions)
def split(**options: Any) -> None:
    """Add a split or folds to a data set: of a table, or new.

    Words (train, valid, test) give one split. Numbers are folds: fold k gives the split NAME-k, which tests on fold k
    and, with three folds or more, validates on the next one. Rows without an entry are in no part.

    A new split is the one that a run with this [split] and seed 0 would make; split.folds makes NAME-0, NAME-1, …
    """
    from gcnbatch.api import files
    from gcnbatch.progress import write_line

    added = files.add_splits(**options, progress=True, say=write_line)
    for title, parts in added.items():
        print(f"{title}: " + ", ".join(f"{part} {len(rows):,}" for part, rows in parts.parts().items()))
    print(options.get("out", options["path"]))
