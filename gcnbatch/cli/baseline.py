"""``gcnbatch baseline``: collects its options and prints the result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcnbatch.cli.configuration import settings

EPILOG = """\b
Examples:
  gcnbatch baseline --data tox21.h5 --folds 5   the folds of 'train'
  gcnbatch baseline tox21 --data tox21.h5       the split of a configuration
  gcnbatch baseline --data molecules.csv        a table of molecules
  gcnbatch train --data tox21.h5 --baseline     beside a run, on its rows
"""
TREES = typer.Option("--trees", min=1, max=100_000, help="Trees of each forest.")


def baseline(
    config: Annotated[
        Path | None,
        typer.Argument(help="TOML configuration; only its data, split and seed.", metavar="CONFIG.toml"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="HDF5 file, folder of shards, or table of molecules.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the forest and of the split, as for train.")
    ] = None,
    folds: Annotated[int | None, typer.Option("--folds", help="k of k-fold cross-validation.")] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", help="Splits with different seeds.")] = None,
    trees: Annotated[int, TREES] = 100,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set any key; see train --keys.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="RUN_DIR", help="Folder of the run.", show_default="runs/<name>-baseline-<time>"
        ),
    ] = None,
    smiles_column: Annotated[
        str, typer.Option("--smiles-column", help="Table: column of SMILES.", show_default="detected")
    ] = "",
    target_columns: Annotated[
        str, typer.Option("--target-columns", metavar="A,B,…", help="Table: targets.", show_default="detected")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No messages, no table; only the run's path.")] = False,
) -> None:
    """Fit a random forest to the rows that 'train' would use.

    It sees count-Morgan fingerprints and RDKit descriptors of each molecule.
    The last line on stdout is the run's path.
    """
    from gcnbatch.api import comparison
    from gcnbatch.cli.train import print_result
    from gcnbatch.data.importers.cells import split_names
    from gcnbatch.progress import write_line

    run = comparison.baseline(
        config,
        data,
        out=out,
        seed=seed,
        folds=folds,
        repeats=repeats,
        trees=trees,
        settings=settings(assignments),
        smiles_column=smiles_column,
        target_columns=split_names(target_columns),
        quiet=quiet,
        say=lambda line: None if quiet else write_line(line),
    )
    print_result(run, as_json, quiet)
