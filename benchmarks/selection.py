"""Replay campaigns on tables of measured molecules: the share of the best 5 % after a fifth of the rows.

usage: python benchmarks/selection.py FOLDER COLUMN [SEEDS] [RECIPE]

FOLDER has the tables (.csv, .csv.gz); COLUMN is measured. Prints a row of Markdown for each table, and the means.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import gcnbatch

NAMES = ("strategy", "greedy_forest", "random")


def main() -> None:
    """Replay a campaign on every table of the folder."""
    folder, column = Path(sys.argv[1]), sys.argv[2]
    seeds = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    recipe = sys.argv[4] if len(sys.argv) > 4 else ""
    print(f"| table | rows | {' | '.join(NAMES)} |\n|---|---|{'---|' * len(NAMES)}")
    means = []
    for table in sorted(folder.glob("*.csv*")):
        with tempfile.TemporaryDirectory() as place:
            found = [
                gcnbatch.campaign(table, maximise=column, seed=seed, recipe=recipe, out=Path(place) / str(seed))
                for seed in range(seeds)
            ]
        means.append(np.mean([[one.summary[name] for name in NAMES] for one in found], axis=0))
        print(f"| {table.name.partition('.')[0]} | {found[0].rows:,} | {_cells(means[-1])} |", flush=True)
    print(f"| mean | | {_cells(np.mean(means, axis=0))} |")


def _cells(shares: NDArray[np.float64]) -> str:
    return " | ".join(f"{share:.3f}" for share in shares)


if __name__ == "__main__":
    main()
