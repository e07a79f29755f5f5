"""Converts listed edges into stored edges: both directions, with self-loops, sorted, without repeats.

`build_edges` works in memory. `EdgeFile` takes any number of edges in blocks and returns them sorted, some rows of the
adjacency at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64, bounded_ranges
from gcnbatch.data.importers.names import number_type
from gcnbatch.data.importers.scratch import Scratch
from gcnbatch.data.sparse import row_pointer

BUCKETS = 512  # of an EdgeFile: the smallest parts that can be read
RUN = 1 << 18  # edges that wait in memory until they are sorted into buckets
BLOCK = 1 << 18  # edges read and sorted at a time, unless a bucket holds more


@dataclass(frozen=True)
class Edges:
    """Edges sorted by graph, in the arrays of a GraphSet."""

    edge_ptr: Int64
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    channel: NDArray[np.uint8]
    weight: NDArray[np.float32] | None


class _Listed(NamedTuple):
    """Edges in the order of the source; ends are node numbers of the whole set."""

    src: NDArray[np.integer[Any]]
    dst: NDArray[np.integer[Any]]
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
    """Sort edges by graph and drop repeats; add reverse edges and self-loops on request.

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
        Add a self-loop of weight 1 in this channel to each node without one.
    """
    channel = np.zeros(len(src), np.uint8) if channel is None else channel
    listed = [_Listed(src, dst, channel, weight), _Listed(dst, src, channel, weight)][: 1 + undirected]
    return _stored(listed, node_ptr, range(int(node_ptr[-1])), loop_channel)


class EdgeFile:
    """Any number of edges on disk, in buckets of neighbouring rows of the adjacency (`dst`).

    Each stored edge takes 9 to 13 bytes on disk; memory holds little more than a block.

    Parameters
    ----------
    scratch : Scratch
        Holds the temporary file.
    node_ptr : int64, (G+1,)
    weighted, undirected : bool
        As in `build_edges`.

    Attributes
    ----------
    count : int
        Number of added edges, including reverse ones.
    weighted : bool
    """

    def __init__(self, scratch: Scratch, node_ptr: Int64, *, weighted: bool, undirected: bool) -> None:
        self._node_ptr, self._nodes = node_ptr, int(node_ptr[-1])
        self._undirected, self.weighted, self.count = undirected, weighted, 0
        self._bucket = -(-self._nodes // BUCKETS)  # rows in each
        number = number_type(self._nodes)
        fields = [("src", number), ("dst", number), ("channel", np.uint8)] + [("weight", np.float32)] * weighted
        self._rows = scratch.rows(fields)
        self._waiting: list[NDArray[Any]] = []
        # Of listed and of reverse edges: the start of each bucket in each run
        self._runs: tuple[list[Int64], ...] = ([], [])

    def add(self, src: Int64, dst: Int64, channel: NDArray[np.uint8], weight: NDArray[np.float32] | None) -> None:
        """Add edges; ends are node numbers of the whole set."""
        rows = np.empty(len(src), self._rows.dtype)
        for name, values in (("src", src), ("dst", dst), ("channel", channel), ("weight", weight)):
            if values is not None:
                rows[name] = values
        self._waiting.append(rows)
        self.count += len(rows) * (1 + self._undirected)
        if sum(map(len, self._waiting)) >= RUN:
            self._settle()

    def blocks(
        self, channel_numbers: NDArray[np.uint8], loop_channel: int | None, advance: Callable[[int], object]
    ) -> Iterator[tuple[int, Edges]]:
        """Yield ``(first graph, edges)`` as from `build_edges`; a graph may continue in the next block.

        `channel_numbers` has the final number of each channel passed to `add`. `advance` is called with the number of
        edges read, which add up to `count`.
        """
        self._settle()
        starts = np.array([run for kind in self._runs for run in kind], dtype=np.int64).reshape(-1, BUCKETS + 1)
        used = -(-self._nodes // max(self._bucket, 1))
        rows_and_nodes = np.diff(starts).sum(axis=0)[:used] + self._bucket
        for first, stop in bounded_ranges(row_pointer(rows_and_nodes), BLOCK):
            rows = self._rows.read([(run[first], run[stop]) for run in starts])[:, 0]
            nodes = range(first * self._bucket, min(stop * self._bucket, self._nodes))
            graph = int(np.searchsorted(self._node_ptr, nodes.start, side="right")) - 1
            last = int(np.searchsorted(self._node_ptr, nodes.stop))
            weight = rows["weight"] if self.weighted else None
            listed = _Listed(rows["src"], rows["dst"], channel_numbers[rows["channel"]], weight)
            yield graph, _stored([listed], self._node_ptr[graph : last + 1], nodes, loop_channel)
            advance(len(rows))

    def _settle(self) -> None:
        """Write the edges in memory as a run: sorted by bucket, in order of arrival within a bucket."""
        if not self._waiting:
            return
        rows = np.concatenate(self._waiting)
        self._waiting.clear()
        for runs in self._runs[: 1 + self._undirected]:
            bucket = (rows["dst"] // self._bucket).astype(np.uint16)
            lengths = np.bincount(bucket, minlength=BUCKETS)
            runs.append(self._rows.count + row_pointer(lengths))
            self._rows.append(rows[np.argsort(bucket, kind="stable")])
            rows["src"], rows["dst"] = rows["dst"], rows["src"].copy()


def _stored(listed: list[_Listed], node_ptr: Int64, nodes: range, loop_channel: int | None) -> Edges:
    """Return all edges into `nodes`, a range of the nodes of the graphs at `node_ptr`.

    The first of repeated edges counts. Nodes times channels times nodes of these graphs must be below 2^63.
    """
    if loop_channel is not None:
        listed = [*listed, _loops(listed, nodes, loop_channel)]
    channels, base = 1 + max(int(part.channel.max(initial=0)) for part in listed), int(node_ptr[0])
    width = max(int(node_ptr[-1]) - base, 1)
    key = np.concatenate([part.dst for part in listed], dtype=np.int64)  # (dst, channel, src) as one number
    key -= nodes.start
    key *= channels
    key += np.concatenate([part.channel for part in listed])
    key *= width
    key += np.concatenate([part.src for part in listed])
    key -= base
    weight = None
    if listed[0].weight is None:
        key.sort()
    else:
        order = np.argsort(key, kind="stable")
        key, weight = key[order], np.concatenate([part.weight for part in listed if part.weight is not None])[order]
        del order
    new = np.ones(len(key), dtype=bool)
    new[1:] = key[1:] != key[:-1]
    key = key[new]
    row = key // width
    key -= row * width
    channel = (row % channels).astype(np.uint8)
    row //= channels
    row += nodes.start
    # Node numbers rise with the graph, so sorting by row also sorts by graph.
    edge_ptr = np.searchsorted(row, node_ptr).astype(np.int64)
    start = np.repeat(node_ptr[:-1], np.diff(edge_ptr))
    row -= start
    key -= start
    key += base
    weight = None if weight is None else weight[new]
    return Edges(edge_ptr, key.astype(np.int32), row.astype(np.int32), channel, weight)


def _loops(listed: list[_Listed], nodes: range, channel: int) -> _Listed:
    """Return a self-loop of weight 1 for each node without one in this channel."""
    bare = np.ones(len(nodes), dtype=bool)
    for part in listed:
        bare[part.dst[(part.src == part.dst) & (part.channel == channel)] - nodes.start] = False
    loops = np.flatnonzero(bare) + nodes.start
    weight = None if listed[0].weight is None else np.ones(len(loops), np.float32)
    return _Listed(loops, loops, np.full(len(loops), channel, np.uint8), weight)
