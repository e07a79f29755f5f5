"""``gcnbatch baseline``: collects its options and prints the result."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gcnbatch.cli.command import command, messages
from gcnbatch.options.training import BaselineOptions

EPILOG = """\b
Examples:
  gcnbatch baseline --data tox21.h5 --folds 5   the folds of 'train'
  gcnbatch baseline tox21 --data tox21.h5       the split of a configuration
  gcnbatch baseline --data molecules.csv        a table of molecules
  gcnbatch train --data tox21.h5 --baseline     beside a run, on its rows
"""


@command(BaselineOptions)
def baseline(
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No messages, no table; only the run's path.")] = False,
    **options: Any,
) -> None:
    """Fit a random forest to the rows that 'train' would use.

    It sees count-Morgan fingerprints and RDKit descriptors of each molecule.
    The last line on stdout is the run's path.
    """
    from gcnbatch.api import comparison
    from gcnbatch.cli.train import print_result

    run = comparison.baseline(**options, quiet=quiet, say=messages(quiet))
    print_result(run, as_json, quiet)
