"""``gcnbatch data khop``: powers of the adjacency as channels, or propagated features."""

from __future__ import annotations

from typing import Any

from gcnbatch.cli.command import command
from gcnbatch.options.datasets import KhopOptions

EPILOG = """\b
Examples:
  gcnbatch data khop tox21.h5 -o two.h5 --hops 2 --mode channels
  gcnbatch data khop cora.h5 -o cora_sgc.h5 --hops 2 --mode propagated
  gcnbatch data khop reddit.h5 -o two.h5 --hops 2 --mode channels --keep 50
"""


@command(KhopOptions)
def khop(**options: Any) -> None:
    """Let a layer see K hops.

    Powers of the adjacency become channels, or features are propagated K times (SGC).

    Graphs never mix, so many small graphs and one large graph both work. The command prints the expected size of the
    result before it starts. GPU and CPU give the same file, except for float32 rounding in dense features and in rows
    of more than 4,096 products.
    """
    from gcnbatch.api import files
    from gcnbatch.progress import write_line

    files.khop(**options, say=write_line)
    print(options["out"])
