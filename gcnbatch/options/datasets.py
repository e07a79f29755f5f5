"""Parameters of the commands ``data …`` that do not import."""

import re
from dataclasses import KW_ONLY
from typing import Literal

from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath
from gcnbatch.options import common
from gcnbatch.options.common import Settings, setting, silent
from gcnbatch.options.declaration import argument, declaration, option
from gcnbatch.text import quoted

_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMGT])(i?)B", re.IGNORECASE)


def read_size(text: str) -> int:
    """Return the bytes of a size such as 2GB (10^9) or 512MiB (2^20)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise InputError("--size", quoted(text), "a size such as 2GB, 500MB or 1GiB")
    return max(int(float(found[1]) * (1024 if found[3] else 1000) ** ("KMGT".index(found[2].upper()) + 1)), 1)


@declaration
class SetOptions:
    """A data set that is read."""

    path: StrPath = argument("HDF5 file, or folder of shards.", metavar="DATA")
    _: KW_ONLY
    memory_mb: common.MemoryLimit = 4096


@declaration
class DescribeOptions(SetOptions):
    """``gcnbatch data info``."""

    _: KW_ONLY
    plot: StrPath | None = option("Also draw node counts, degrees and labels.", default=None, metavar="FILE.png")


@declaration
class CheckOptions(SetOptions):
    """``gcnbatch data check``."""

    _: KW_ONLY
    say: common.Messages = silent


@declaration
class SynthOptions:
    """``gcnbatch data synth``."""

    preset: str = argument(
        "Preset, listed below.", metavar="PRESET", doc="quickstart, tox21, reaction100, citation, reddit or products."
    )
    out: StrPath = option("Data set to write.", "-o", "--out", metavar="FILE.h5")
    _: KW_ONLY
    graphs: int | None = option(
        "Graphs of a many-graph preset.",
        default=None,
        metavar="N",
        doc="Graphs of one of the first three presets; None: as in the set that it is named after.",
    )
    scale: float = option("Size of a one-graph preset, at most 4.", default=1.0, metavar="S")
    seed: int = option("The same seed gives the same data.", default=0)
    bond_channels: bool = option("Molecules: a channel per bond type, and one for self-loops.", default=False)
    progress: common.Progress = False


@declaration
class HopOptions:
    """What a k-hop adjacency is."""

    _: KW_ONLY
    hops: int = option("Number of hops, at most 64.", metavar="K")
    mode: Literal["channels", "propagated"] = option(
        "Store A^2 … A^K as further channels, or replace the features X by S^K X."
    )
    values: Literal["walks", "binary"] = option("Weights of the new channels: sums over walks, or 1.", default="walks")
    normalize: bool | None = option(
        "Use D^-1/2 A D^-1/2: as weights of every channel, or to propagate features.",
        "--normalize/--no-normalize",
        default=None,
        shown="propagated: yes; channels: no",
    )
    keep: int = option("Keep the N largest entries of each row of a power; 0: all.", default=0, min=0, metavar="N")
    max_edges: int = option("Refuse a result with a larger expected size.", default=200_000_000, min=1)


@declaration
class KhopOptions(HopOptions):
    """``gcnbatch data khop``."""

    path: StrPath = argument("Data set.", metavar="IN.h5")
    out: StrPath = option("Data set to write.", "-o", "--out", metavar="OUT.h5")
    _: KW_ONLY
    backend: str = option("auto, cpu (SciPy) or cuda (our SpGEMM).", default="auto")
    device: common.Device = 0
    memory_mb: common.MemoryLimit = 4096
    say: common.Messages = silent


@declaration
class ShardOptions:
    """``gcnbatch data shard``."""

    path: StrPath = argument("Data set.", metavar="IN.h5")
    out: StrPath = option("New or empty folder.", "-o", "--out", metavar="DIR")
    _: KW_ONLY
    max_bytes: int = option(
        "Most bytes of a shard in memory.",
        "--size",
        default=0,
        metavar="SIZE",
        shown="2GB",
        typed=str,
        read=read_size,
        doc="Most bytes of a shard in memory; without both limits, 2 GB.",
    )
    max_graphs: int | None = option(
        "Most graphs of a shard.",
        "--graphs",
        default=None,
        metavar="N",
        min=1,
        doc="Most graphs of a shard, in place of `max_bytes`.",
    )
    memory_mb: common.MemoryLimit = 4096
    progress: common.Progress = False


@declaration
class SplitOptions:
    """``gcnbatch data split``."""

    path: StrPath = argument("Data set.", metavar="FILE.h5")
    table: StrPath | None = option(
        "Table with a part or fold per id or row.",
        "--from",
        default=None,
        metavar="SPLIT.csv",
        doc="CSV or Parquet with a part (train, valid, test) or the number of a fold per id, or per row.",
    )
    _: KW_ONLY
    kind: str | None = option(
        "Make a new split in place of a table.", default=None, metavar="random|stratified|scaffold|cluster|time"
    )
    settings: "Settings | None" = setting(
        "split.KEY=VALUE",
        "Set a key of [split] for a new split; see train --keys.",
        'Keys of section ``[split]`` for new splits, such as ``{"split.folds": 5}``.',
    )
    out: StrPath | None = option("Data set to write.", "-o", "--out", default=None, metavar="OUT.h5", shown="FILE.h5")
    name: str = option("Name of the split.", default="", shown="the column's, or the kind")
    split_column: str = option("Column of parts or folds.", default="", shown="the one that looks so")
    id_column: str = option("Column of ids.", default="", shown="named like id; without one, rows in order")
    memory_mb: common.MemoryLimit = 4096
    progress: common.Progress = False
    say: common.Messages = silent
