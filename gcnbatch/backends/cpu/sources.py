"""What the products of a graph convolution need of a batch: the rows and columns that are not multiplied with zero.

In molecules, most atoms have no edge in most channels, and few atoms differ in their features. So a convolution
multiplies, for each channel, the rows of X that an edge starts from with that channel's weights, once for all atoms
with the same features: `Sources`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import _sparsetools

from gcnbatch.data.sparse import Adjacency, Csr

MOST = 0.75  # of all pairs of a node and a channel: with more sources, one product of all rows takes less time


class Sources(NamedTuple):
    """The M pairs of a row of X and a channel that have an edge, by channel.

    Parameters
    ----------
    x : (U, F) array
    rows : integers, (M,)
        The row of X of each pair.
    channels : list of (int, int, int)
        Channels with a pair: number, first pair, end.
    forward, transpose : Csr, (N, M) and (M, N)
        The adjacency with a column (row) for each pair.
    """

    x: NDArray[np.float32]
    rows: NDArray[np.int64]
    channels: list[tuple[int, int, int]]
    forward: Csr
    transpose: Csr


class Pairs(NamedTuple):
    """Positions of the used pairs among all pairs (channel, row), those of channel 0 first, and what each entry reads.

    `bounds` (C+1,) is the first pair of each channel.
    """

    rows: NDArray[np.int64]
    bounds: NDArray[np.int64]
    forward: Csr
    transpose: Csr


def pairs_of(adjacency: Csr, n_channels: int, n_rows: int, row_of: NDArray[np.int32] | None) -> Pairs:
    """Return the pairs of an adjacency (N, N*C); node j has row ``row_of[j]`` of `n_rows`, or row j for None."""
    nodes, channel = np.divmod(adjacency.indices, np.int32(n_channels))
    keys = channel * np.int32(n_rows)
    keys += nodes if row_of is None else row_of[nodes]
    used = np.zeros(n_channels * n_rows, np.int8)
    used[keys] = 1
    pairs = np.flatnonzero(used)
    place = np.cumsum(used, dtype=np.int32)
    place -= 1
    forward = Csr(adjacency.indptr, place[keys], adjacency.data, len(pairs))
    bounds = np.searchsorted(pairs, np.arange(n_channels + 1) * n_rows)
    return Pairs(pairs % max(n_rows, 1), bounds, forward, _transposed(forward))


def _transposed(matrix: Csr) -> Csr:
    """Return the transpose, with the entries of each row in the order of their columns."""
    n = len(matrix.indptr) - 1
    indptr = np.empty(matrix.n_cols + 1, np.int32)
    indices, data = np.empty(len(matrix.indices), np.int32), np.empty(len(matrix.data), np.float32)
    _sparsetools.csr_tocsc(n, matrix.n_cols, matrix.indptr, matrix.indices, matrix.data, indptr, indices, data)
    return Csr(indptr, indices, data, n)


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
    atoms : (float32 (U, F), int32 (N,)) or None
        The different rows of the features, and the row of each node.
    pairs : callable
        As `pairs_of`.
    """

    def __init__(
        self,
        forward: Csr,
        transpose: Callable[[], Csr],
        n_channels: int,
        features: Any = None,
        atoms: tuple[NDArray[np.float32], NDArray[np.int32]] | None = None,
        pairs: Callable[..., Pairs] = pairs_of,
    ) -> None:
        self.forward, self.n_channels = forward, n_channels
        self._transpose, self._features, self._atoms, self._pairs = transpose, features, atoms, pairs

    def __getattr__(self, name: str) -> Any:
        if name != "transpose":
            raise AttributeError(name)
        self.transpose = self._transpose()
        return self.transpose

    def sources(self, x: Any) -> Sources | None:
        """Return what a convolution of X (N, F) reads; None where that is most of it."""
        if self._atoms is not None and x is self._features:
            return self._of_features
        found = self._of_nodes
        return None if found is None else found._replace(x=x)

    @cached_property
    def _of_features(self) -> Sources:
        assert self._atoms is not None
        return self._sources(*self._atoms)

    @cached_property
    def _of_nodes(self) -> Sources | None:
        if self.n_channels == 1:
            return None
        n_nodes = len(self.forward.indptr) - 1
        found = self._sources(np.empty((n_nodes, 0), np.float32), None)
        return found if len(found.rows) <= MOST * n_nodes * self.n_channels else None

    def _sources(self, x: NDArray[np.float32], row_of: NDArray[np.int32] | None) -> Sources:
        rows, bounds, *matrices = self._pairs(self.forward, self.n_channels, len(x), row_of)
        ends = pairwise(bounds.tolist())
        return Sources(x, rows, [(c, *pair) for c, pair in enumerate(ends) if pair[0] < pair[1]], *matrices)
