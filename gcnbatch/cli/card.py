"""``gcnbatch card``: prints or writes the model card of a run."""

from __future__ import annotations

from typing import Any

import typer

from gcnbatch.cli.command import command
from gcnbatch.options.results import CardOptions

EPILOG = """\b
Examples:
  gcnbatch card runs/lipo              Markdown on standard output
  gcnbatch card runs/lipo -o README.md

The card has data, split, scores with intervals, applicability, limits and the command that made the run. Purpose,
licences and contact are fields to fill: edit model_card.md in the folder of the run, and you get the edited card.
"""


@command(CardOptions)
def card(**options: Any) -> None:
    """Print the model card of a run."""
    from gcnbatch.api.export import card

    text = card(**options)
    if options["out"] == "-":
        typer.echo(text, nl=False)
