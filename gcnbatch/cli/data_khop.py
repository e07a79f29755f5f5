"""``gcnbatch data khop``: powers of the adjacency as channels, or propagated features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from gcnbatch.cli.configuration import DeviceOption

EPILOG = """\b
Examples:
  gcnbatch data khop tox21.h5 -o two.h5 --hops 2 --mode channels
  gcnbatch data khop cora.h5 -o cora_sgc.h5 --hops 2 --mode propagated
  gcnbatch data khop reddit.h5 -o two.h5 --hops 2 --mode channels --keep 50
"""


def khop(
    file: Annotated[Path, typer.Argument(metavar="IN.h5", help="Data set.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT.h5", help="Data set to write.")],
    hops: Annotated[int, typer.Option("--hops", metavar="K", help="Number of hops, at most 64.")],
    mode: Annotated[
        Literal["channels", "propagated"],
        typer.Option(help="Store A^2 … A^K as further channels, or replace the features X by S^K X."),
    ],
    values: Annotated[
        Literal["walks", "binary"], typer.Option(help="Weights of the new channels: sums over walks, or 1.")
    ] = "walks",
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Use D^-1/2 A D^-1/2: as weights of every channel, or to propagate features.",
            show_default="propagated: yes; channels: no",
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option(min=0, metavar="N", help="Keep the N largest entries of each row of a power; 0: all.")
    ] = 0,
    max_edges: Annotated[int, typer.Option(min=1, help="Refuse a result with a larger expected size.")] = 200_000_000,
    backend: Annotated[str, typer.Option(help="auto, cpu (SciPy) or cuda (our SpGEMM).")] = "auto",
    device: DeviceOption = None,
    memory_mb: Annotated[
        int, typer.Option("--memory-mb", min=16, help="A set larger than this many MiB is read in slices.")
    ] = 4096,
) -> None:
    """Let a layer see K hops.

    Powers of the adjacency become channels, or features are propagated K times (SGC).

    Graphs never mix, so many small graphs and one large graph both work. The command prints the expected size of the
    result before it starts. GPU and CPU give the same file, except for float32 rounding in dense features and in rows
    of more than 4,096 products.
    """
    from gcnbatch.api import files
    from gcnbatch.progress import write_line

    files.khop(
        file,
        out,
        hops=hops,
        mode=mode,
        values=values,
        normalize=normalize,
        keep=keep,
        max_edges=max_edges,
        backend=backend,
        device=device or 0,
        memory_mb=memory_mb,
        say=write_line,
    )
    print(out)
