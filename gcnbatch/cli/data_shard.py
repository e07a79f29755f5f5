"""``gcnbatch data shard``: write a data set as a folder of shards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from gcnbatch.errors import InputError
from gcnbatch.text import counted, quoted

EPILOG = """\b
Examples:
  gcnbatch data shard library.h5 -o library --size 2GB
  gcnbatch train --data library
  gcnbatch data info library
"""
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMGT])(i?)B", re.IGNORECASE)
_DEFAULT = "2GB"


def shard(
    file: Annotated[Path, typer.Argument(metavar="IN.h5", help="Data set.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="New or empty folder.")],
    size: Annotated[
        str, typer.Option("--size", metavar="SIZE", help="Most bytes of a shard in memory.", show_default=_DEFAULT)
    ] = "",
    graphs: Annotated[int | None, typer.Option("--graphs", metavar="N", min=1, help="Most graphs of a shard.")] = None,
    memory_mb: Annotated[
        int, typer.Option("--memory-mb", min=16, help="A set larger than this many MiB is read in slices.")
    ] = 4096,
) -> None:
    """Write a data set as a folder of shards.

    Shards are HDF5 files of consecutive graphs, with an index. The folder is a data set wherever a file is, with the
    same results to the bit. A shard is a data set, too. --size counts bytes in memory; files are smaller. After an
    error nothing is left, and after a kill the same command starts anew. Splits are kept; 'gcnbatch data split DIR'
    adds more.
    """
    from gcnbatch.api import files

    limit = _bytes(size) if size else 0
    count = files.shard(file, out, max_bytes=limit, max_graphs=graphs or 0, memory_mb=memory_mb, progress=True)
    print(f"{out}: {counted(count, 'shard')}")


def _bytes(text: str) -> int:
    """Return the bytes of a size such as 2GB (10^9) or 512MiB (2^20)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise InputError("--size", quoted(text), "a size such as 2GB, 500MB or 1GiB")
    return max(int(float(found[1]) * (1024 if found[3] else 1000) ** ("KMGT".index(found[2].upper()) + 1)), 1)
