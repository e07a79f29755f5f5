"""``gcnbatch data import``: one command per source format."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Convert other formats into a data set.", rich_markup_mode=None)
