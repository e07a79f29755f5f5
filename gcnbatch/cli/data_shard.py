"""``gcnbatch data shard``: write a data set as a folder of shards."""

from __future__ import annotations

from typing import Any

from gcnbatch.cli.command import command
from gcnbatch.options.datasets import ShardOptions
from gcnbatch.text import counted

EPILOG = """\b
Examples:
  gcnbatch data shard library.h5 -o library --size 2GB
  gcnbatch train --data library
  gcnbatch data info library
"""


@command(ShardOptions)
def shard(**options: Any) -> None:
    """Write a data set as a folder of shards.

    Shards are HDF5 files of consecutive graphs, with an index. The folder is a data set wherever a file is, with the
    same results to the bit. A shard is a data set, too. --size counts bytes in memory; files are smaller. After an
    error nothing is left, and after a kill the same command starts anew. Splits are kept; 'gcnbatch data split DIR'
    adds more.
    """
    from gcnbatch.api import files

    count = files.shard(**options, progress=True)
    print(f"{options['out']}: {counted(count, 'shard')}")
