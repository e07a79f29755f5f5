"""``gcnbatch data``: look at, check, generate and import data sets."""

from __future__ import annotations

import typer

from gcnbatch.cli import data_import

app = typer.Typer(no_args_is_help=True, help="Look at, check, generate and import data sets.", rich_markup_mode=None)
app.add_typer(data_import.app, name="import")
