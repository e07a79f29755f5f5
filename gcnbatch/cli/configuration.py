"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gcnbatch.backends import registry
from gcnbatch.config_tree import parse_assignment

BACKENDS = f"{', '.join(registry.choices()[:-1])} or {registry.choices()[-1]}."
ConfigArgument = Annotated[
    Path | None, typer.Argument(help="TOML configuration.", metavar="CONFIG.toml", show_default=False)
]
DataOption = Annotated[Path | None, typer.Option("--data", help="HDF5 file or folder of shards.", show_default=False)]
BackendOption = Annotated[str | None, typer.Option("--backend", help=BACKENDS, show_default=False)]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", help="Passes over the training rows.", show_default=False)
]
BatchSizeOption = Annotated[int | None, typer.Option("--batch-size", help="Graphs per step.", show_default=False)]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Seed of weights, shuffles, dropout and splits.", show_default=False)
]
DeviceOption = Annotated[
    int | None,
    typer.Option("--device", metavar="N", help="GPU, of those that CUDA_VISIBLE_DEVICES shows.", show_default="0"),
]
ResidentOption = Annotated[
    str | None,
    typer.Option(
        "--resident", metavar="auto|on|off", help="Keep the data set in the GPU's memory.", show_default="auto"
    ),
]

JobsOption = Annotated[
    str | None,
    typer.Option(
        "--jobs",
        metavar="auto|K",
        help="Models that train at once: together on a GPU, in K processes on the host.",
        show_default="auto: as many as the GPU takes, on the host 1",
    ),
]


def jobs_key(text: str | None) -> Any:
    """Return the value of key `jobs` for ``--jobs``: 0 for auto."""
    if text is None or not text.isdecimal():
        return 0 if text == "auto" else text
    return int(text)


def names_of(text: str) -> list[str]:
    """Return the names in ``A,B``."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def settings(assignments: list[str] | None) -> dict[str, Any]:
    """Return the keys of ``--set`` with their values."""
    pairs = [parse_assignment(text) for text in assignments or []]
    return {".".join(path): value for path, value in pairs}
