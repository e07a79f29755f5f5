"""What every importer shares: the check of the output, digests of the sources, edge lists and the closing summary."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError

MAX_CHANNELS = 256
MAX_DEGREE = 63
StrPath = str | os.PathLike[str]


def output_path(path: StrPath) -> Path:
    """Return `path` after checking, before any work, that its folder exists."""
    out = Path(path)
    if out.is_dir():
        raise InputError(str(out), "is a folder", "a file name such as molecules.h5")
    if not out.parent.is_dir():
        raise InputError(str(out), f"no folder '{out.parent}'", hint="Make the folder first.")
    return out


def source_folder(path: StrPath) -> Path:
    """Return `path` after checking that it is a folder."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(str(folder), "is a file" if folder.exists() else "no such folder", "the data set's folder")
    return folder


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_source(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """Return the header's `source` for several files: the folder's name and each file's SHA-256."""
    digests = {path.relative_to(folder).as_posix(): f"sha256 {sha256(path)}" for path in files}
    return {"folder": folder.resolve().name, **digests}


@dataclass(frozen=True)
class Edges:
    """Edges sorted by graph, in the arrays of a GraphSet."""

    edge_ptr: Int64
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    channel: NDArray[np.uint8]
    weight: NDArray[np.float32] | None


def build_edges(
    node_ptr: Int64,
    src: Int64,
    dst: Int64,
    *,
    channel: NDArray[np.uint8] | None = None,
    weight: NDArray[np.float32] | None = None,
    undirected: bool = False,
    loop_channel: int | None = None,
) -> Edges:
    """Sort edges by graph, drop repeats, and add what is asked for.

    Parameters
    ----------
    node_ptr : int64, (G+1,)
        First node of each graph.
    src, dst : int64, (E,)
        Node numbers in the whole set, both ends in one graph.
    channel : uint8, (E,)
        Default 0.
    weight : float32, (E,)
        Default None. Of edges with equal ends and channel the first is kept.
    undirected : bool
        Add the reverse of every edge.
    loop_channel : int
        Give each node that has no self-loop in this channel one, of weight 1.
    """
    channel = np.zeros(len(src), np.uint8) if channel is None else channel
    if undirected:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        channel = np.concatenate([channel, channel])
        weight = None if weight is None else np.concatenate([weight, weight])
    if loop_channel is not None:
        bare = np.ones(int(node_ptr[-1]), dtype=bool)
        bare[src[(src == dst) & (channel == loop_channel)]] = False
        loops = np.flatnonzero(bare)
        src, dst = np.concatenate([src, loops]), np.concatenate([dst, loops])
        channel = np.concatenate([channel, np.full(len(loops), loop_channel, np.uint8)])
        weight = None if weight is None else np.concatenate([weight, np.ones(len(loops), np.float32)])
    # Node numbers rise with the graph, so sorting by row also sorts by graph.
    order = np.lexsort((src, channel, dst))
    src, dst, channel = src[order], dst[order], channel[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1]) | (channel[1:] != channel[:-1])
    src, dst, channel = src[new], dst[new], channel[new]
    graph = np.searchsorted(node_ptr, dst, side="right") - 1
    edge_ptr = np.searchsorted(dst, node_ptr).astype(np.int64)
    return Edges(
        edge_ptr=edge_ptr,
        src=(src - node_ptr[graph]).astype(np.int32),
        dst=(dst - node_ptr[graph]).astype(np.int32),
        channel=channel,
        weight=None if weight is None else weight[order][new],
    )


def with_self_channel(channels: tuple[str, ...], self_loops: bool) -> tuple[tuple[str, ...], int | None]:
    """Return the channel names and the channel that takes self-loops: the only one, else an extra ``self``."""
    if not self_loops:
        return channels, None
    if len(channels) == 1:
        return channels, 0
    return (*channels, "self"), len(channels)


def compact(x: NDArray[Any]) -> NDArray[Any]:
    """Return features as uint8 or int8 where that loses nothing, else as float32."""
    if x.size and np.array_equal(x, np.round(x)):
        low, high = x.min(), x.max()
        if low >= 0 and high <= 255:
            return x.astype(np.uint8)
        if low >= -128 and high <= 127:
            return x.astype(np.int8)
    return x.astype(np.float32)


def one_hot(codes: NDArray[np.integer[Any]], width: int) -> NDArray[np.uint8]:
    """Return (N, width) with a 1 in column ``codes[n]`` of row n."""
    x = np.zeros((len(codes), width), dtype=np.uint8)
    x[np.arange(len(codes)), codes] = 1
    return x


def degree_features(edges: Edges, node_ptr: Int64) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Return one-hot in-degrees, self-loops not counted, and their names: for graphs whose nodes have no features.

    Degrees of MAX_DEGREE and more share the last column.
    """
    first = np.repeat(node_ptr[:-1], np.diff(edges.edge_ptr))
    proper = edges.src != edges.dst
    degree = np.bincount((first + edges.dst)[proper], minlength=int(node_ptr[-1]))
    names = (*(f"degree={number}" for number in range(MAX_DEGREE)), f"degree>={MAX_DEGREE}")
    return one_hot(np.minimum(degree, MAX_DEGREE), MAX_DEGREE + 1), names


@dataclass
class Summary:
    """What an import wrote, counted part by part."""

    path: Path
    header: Header | None = None
    graphs: int = 0
    nodes: int = 0
    edges: int = 0
    targets: int = 0
    labelled: int = 0
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def add(self, part: GraphSet) -> None:
        """Count a part that was written."""
        missing = part.y == -1 if part.header.target == "multiclass" else np.isnan(part.y)
        self.graphs += part.n_graphs
        self.nodes += part.n_nodes
        self.edges += part.n_edges
        self.targets += part.y.size
        self.labelled += part.y.size - int(missing.sum())

    def lines(self) -> list[str]:
        """Return the summary as lines of text; the last one is the path."""
        assert self.header is not None
        header = self.header
        what = f"{len(header.class_names)} classes" if header.target == "multiclass" else f"{len(header.task_names)}"
        tasks = f"{what} ({header.target}, {header.level} level)"
        share = f"{100.0 * self.labelled / self.targets:.1f} %" if self.targets else "none"
        rows = [
            ("graphs", f"{self.graphs:,}"),
            ("nodes", f"{self.nodes:,}"),
            ("edges", f"{self.edges:,}"),
            ("features", f"{header.n_features:,}"),
            ("channels", ", ".join(header.channel_names)),
            ("tasks", tasks),
            ("labelled", share),
            ("skipped rows", f"{self.skipped:,}"),
        ]
        return [f"{name:<13} {value}" for name, value in rows] + [str(self.path)]
