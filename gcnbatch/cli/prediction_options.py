"""Options that the commands have which read trained runs and data: ``infer`` and ``explain``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gcnbatch.cli.configuration import BACKENDS


class OnBadRow(StrEnum):
    """Treatment of a molecule that cannot be read."""

    keep = "keep"
    fail = "fail"


RunsAndData = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN_DIR... DATA",
        help="Folders of runs; then an HDF5 data set, molecules (.csv, .smi, .sdf, .xlsx, .parquet), a SMILES, or - "
        "for standard input.",
        show_default=False,
    ),
]
BackendOption = Annotated[str, typer.Option("--backend", help=BACKENDS)]
DeviceOption = Annotated[
    int, typer.Option("--device", min=0, metavar="N", help="GPU, of those that CUDA_VISIBLE_DEVICES shows.")
]
CudaOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="cuda.KEY=VALUE", help="Set a key of [cuda]; see train --keys."),
]
SmilesColumnOption = Annotated[
    str, typer.Option("--smiles-column", help="CSV: column of SMILES.", show_default="as in training")
]
IdColumnOption = Annotated[
    str, typer.Option("--id-column", help="CSV: column of ids.", show_default="as in training, else row numbers")
]
DelimiterOption = Annotated[
    str, typer.Option(help="CSV: sign between fields: comma, semicolon, tab or bar.", show_default="detected")
]
EncodingOption = Annotated[
    str,
    typer.Option("--encoding", metavar="NAME", help="CSV: encoding, such as cp1252.", show_default="UTF-8 or UTF-16"),
]
ProcessesOption = Annotated[
    int, typer.Option("--processes", min=0, help="CSV: worker processes.", show_default="one per processor")
]
SpreadsheetOption = Annotated[
    bool, typer.Option("--spreadsheet", help="CSV: put ' before texts that a spreadsheet would run (=, +, -, @).")
]
