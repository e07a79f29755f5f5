"""What the products of a graph convolution need of a batch: rows that are not multiplied with zero, equal ones once.

In molecules, most atoms have no edge in most channels, and few atoms differ in their features. So the first convolution
multiplies the different atoms of a batch (`Atoms`), and each other one, for each channel, the rows of X that an edge of
that channel starts from (`Sources`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.csr import transposed
from gcnbatch.data.distinct import RepeatedRows
from gcnbatch.data.sparse import Adjacency, Csr

MOST = 0.75  # of all pairs of a node and a channel: with more sources, one product of all rows takes less time


class Atoms(NamedTuple):
    """The U different rows of the features of a batch, (U, F), and an adjacency (N, U*C) of them."""

    x: NDArray[np.float32]
    adjacency: HostAdjacency


def atoms_of(adjacency: Csr, n_channels: int, features: RepeatedRows) -> Atoms:
    """Return the atoms of an adjacency (N, N*C) of nodes with these features (N, F)."""
    x, row_of = features.values, features.numbers
    used = np.zeros(len(x), np.int8)
    used[row_of] = 1
    place = np.cumsum(used, dtype=np.int32)
    place -= 1
    nodes, channel = np.divmod(adjacency.indices, np.int32(n_channels))
    columns = place[row_of][nodes]
    columns *= np.int32(n_channels)
    columns += channel
    rows = np.flatnonzero(used)
    forward = Csr(adjacency.indptr, columns, adjacency.data, len(rows) * n_channels)
    return Atoms(x.take(rows, axis=0), HostAdjacency(forward, lambda: transposed(forward), n_channels))


class Sources(NamedTuple):
    """The M pairs of a node and a channel that an edge starts from, by channel.

    Parameters
    ----------
    nodes : int32, (M,)
    bounds : integers, (C+1,)
        The first pair of each channel.
    forward, transpose : Csr, (N, M) and (M, N)
        The adjacency with a column (row) for each pair.
    """

    nodes: NDArray[np.int32]
    bounds: NDArray[np.integer[Any]]
    forward: Csr
    transpose: Csr

    @property
    def channels(self) -> list[tuple[int, int, int]]:
        """Number, first pair and end of the channels that have any."""
        ends = pairwise(self.bounds.tolist())
        return [(channel, first, end) for channel, (first, end) in enumerate(ends) if first < end]


def sources_of(adjacency: Csr, n_channels: int) -> Sources:
    """Return the sources of an adjacency (N, N*C)."""
    n_nodes = len(adjacency.indptr) - 1
    nodes, keys = np.divmod(adjacency.indices, np.int32(n_channels))
    keys *= np.int32(n_nodes)
    keys += nodes
    used = np.zeros(n_channels * n_nodes, np.int8)
    used[keys] = 1
    pairs = np.flatnonzero(used)
    place = np.cumsum(used, dtype=np.int32)
    place -= 1
    forward = Csr(adjacency.indptr, place[keys], adjacency.data, len(pairs))
    bounds = np.searchsorted(pairs, np.arange(n_channels + 1) * n_nodes)
    return Sources((pairs % max(n_nodes, 1)).astype(np.int32), bounds, forward, transposed(forward))


class HostAdjacency(Adjacency):
    """An adjacency that knows what the products of a convolution read.

    Parameters
    ----------
    forward : Csr
    transpose : callable
        Returns the transpose, which few operations read.
    n_channels : int
    features : (N, F) array
        Features of the nodes.
    atoms : RepeatedRows or None
        The features, float32, if few rows of them differ.
    find : callable
        As `sources_of`.
    """

    def __init__(
        self,
        forward: Csr,
        transpose: Callable[[], Csr],
        n_channels: int,
        features: Any = None,
        atoms: RepeatedRows | None = None,
        find: Callable[[Csr, int], Sources] = sources_of,
    ) -> None:
        self.forward, self.n_channels = forward, n_channels
        self._transpose, self._features, self._atoms, self._find = transpose, features, atoms, find

    def __getattr__(self, name: str) -> Any:
        if name != "transpose":
            raise AttributeError(name)
        self.transpose = self._transpose()
        return self.transpose

    def atoms(self, x: Any) -> Atoms | None:
        """Return the different rows of X (N, F), if they are known and few."""
        if self._atoms is None or x is not self._features:
            return None
        return atoms_of(self.forward, self.n_channels, self._atoms)

    @cached_property
    def sources(self) -> Sources | None:
        """What a convolution reads; None where that is most of its rows."""
        if self.n_channels == 1:
            return None
        found = self._find(self.forward, self.n_channels)
        n_pairs = (len(self.forward.indptr) - 1) * self.n_channels
        return found if len(found.nodes) <= MOST * n_pairs else None
