"""The batches of the operation tests, each named by its corner case, and arrays to fill them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import GraphLayout
from gcnbatch.data.sparse import Adjacency, Csr


class Sparse(NamedTuple):
    """A sparse matrix of a batch with the first node of each graph; backends convert it to their own forms."""

    matrix: Adjacency | Csr
    layout: GraphLayout


@dataclass(frozen=True)
class Case:
    """A batch: the nodes n_b of each graph, feature width F, output width P, channels C, and the kind of its edges.

    Random edges stay inside their graph and may repeat. `edges` picks a kind: "random", "none", "one-way" (only from a
    lower to a higher node), "twice" (each stored again with another weight), "half" (only among the first half of each
    graph's nodes), "last-channel" (the other channels stay empty).
    """

    name: str
    sizes: tuple[int, ...]
    F: int = 5
    P: int = 3
    C: int = 1
    edges: str = "random"

    @property
    def N(self) -> int:
        """Number of nodes of the batch."""
        return sum(self.sizes)

    @property
    def columns(self) -> int:
        """Number of columns of a graph convolution's product: those of all channels."""
        return self.C * self.P

    @property
    def node_ptr(self) -> NDArray[np.int64]:
        """First node of each graph, (B+1,)."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes, dtype=np.int64)])

    @property
    def layout(self) -> GraphLayout:
        """Node counts and channels of the graphs."""
        return GraphLayout(self.node_ptr, self.C)

    def rng(self) -> np.random.Generator:
        """Return a generator seeded by the case's name."""
        return np.random.default_rng(zlib.crc32(self.name.encode()))

    def edge_list(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        """Draw (src, dst, channel) of about three edges per node, numbered in the batch."""
        sizes = np.array(self.sizes, dtype=np.int64)
        reach = sizes // 2 if self.edges == "half" else sizes
        counts = np.zeros_like(sizes) if self.edges == "none" else 3 * reach
        graph = np.repeat(np.arange(len(sizes)), counts)
        ends = np.sort(rng.integers(0, reach[graph], (2, len(graph))), axis=0) + self.node_ptr[graph]
        src, dst = ends if self.edges == "one-way" else rng.permuted(ends, axis=0)
        channel = rng.integers(0, self.C, len(graph))
        if self.edges == "one-way":
            one_way = src < dst
            return src[one_way], dst[one_way], channel[one_way]
        if self.edges == "twice":
            return np.tile(src, 2), np.tile(dst, 2), np.tile(channel, 2)
        return src, dst, np.full_like(channel, self.C - 1) if self.edges == "last-channel" else channel

    def adjacency(self, rng: np.random.Generator) -> Sparse:
        """Draw the batch's adjacency with normal weights."""
        src, dst, channel = self.edge_list(rng)
        weight = normal(rng, len(src))
        return Sparse(build_adjacency(self.N, self.C, src, dst, channel, weight), self.layout)

    def sparse_features(self, rng: np.random.Generator) -> Sparse:
        """Draw sparse features (N, F) with about a third of the entries, some repeated, and some rows empty."""
        count = self.N * self.F // 3
        rows, columns = rng.integers(0, max(self.N, 1), count), rng.integers(0, self.F, count)
        return Sparse(build_csr(rows, columns, normal(rng, count), (self.N, self.F)), self.layout)


CASES = [
    Case("no graph", ()),
    Case("only empty graphs", (0, 0)),
    Case("one node, all widths 1", (1,), F=1, P=1),
    Case("one graph of 33", (33,), F=31, P=64),
    Case("one graph of 257", (257,), F=64, P=31),
    Case("wide", (5, 17, 1), F=130, P=130),
    Case("empty graph inside", (4, 0, 6), F=31, P=1),
    Case("empty graphs at the ends", (0, 3, 0)),
    Case("nodes without edges", (6, 5, 9), edges="half"),
    Case("no edge at all", (3, 4), edges="none"),
    Case("eleven mixed sizes", (3, 1, 33, 0, 257, 2, 9, 12, 5, 1, 8), F=64, P=33),
    Case("four channels", (7, 1, 33), F=31, P=31, C=4),
    Case("three of four channels empty", (9, 4), C=4, P=64, edges="last-channel"),
    Case("duplicate edges", (8, 5), C=2, edges="twice"),
    Case("asymmetric", (9, 12), C=2, P=31, edges="one-way"),
]

# For adjacency products alone: the largest graph decides whether published kernels split columns or use shared memory.
LARGE_CASES = [
    Case("columns in parts, some parts empty", (4, 3000, 0, 3), P=5, C=2),
    Case("more rows than shared memory holds", (9, 8200, 0, 2), P=3, C=2),
    Case("rows wider than shared memory", (3, 0, 5), P=1030, C=2),
]


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Draw standard normal float32 values."""
    return rng.normal(size=shape).astype(np.float32)


def build_csr(rows: NDArray[Any], columns: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]) -> Csr:
    """Sort triplets by row into a `Csr`, keeping repeated entries and the order inside a row."""
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=shape[0])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return Csr(indptr, np.asarray(columns)[order].astype(np.int32), np.asarray(values)[order], shape[1])


def build_adjacency(
    n_nodes: int,
    n_channels: int,
    src: NDArray[Any],
    dst: NDArray[Any],
    channel: NDArray[Any],
    weight: NDArray[Any],
) -> Adjacency:
    """Build an `Adjacency` from edges src→dst: the entry of an edge is in row dst, column src*C + channel."""
    column = np.asarray(src, dtype=np.int64) * n_channels + channel
    wide = n_nodes * n_channels
    return Adjacency(
        forward=build_csr(np.asarray(dst, dtype=np.int64), column, weight, (n_nodes, wide)),
        transpose=build_csr(column, np.asarray(dst), weight, (wide, n_nodes)),
        n_channels=n_channels,
    )


def multiples_of_half(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to multiples of 1/2, so that zeros and ties occur."""
    return np.round(values * 2) / 2


def of_layer(case: Case, convolution: bool) -> tuple[int, dict[str, Sparse]]:
    """Return the columns P of a layer's products, and its `graphs`; a convolution has the columns of C channels."""
    return (case.columns, {"graphs": case.adjacency(case.rng())}) if convolution else (case.P, {})
