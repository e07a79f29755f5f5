"""The path of integrated gradients: graphs whose features and bonds grow from zero to what they are.

At position a of the path, the features are a x, and the values of edges between different nodes are a times the
model's (normalised) ones. Self-loops keep theirs. Features of whole graphs are a z, where z is scaled as the model
takes it: 0 is the mean of the training rows, or a count of 0. At a = 0 a graph is its nodes, without features and
bonds.

Dimensions: G graphs with N nodes, E edges and D features of whole graphs, S positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graphs import GraphSet, Int64
from gcnbatch.data.normalize import symmetric_weights

Float64 = NDArray[np.float64]


def midpoints(steps: int, known: int = 0) -> Float64:
    """Return the middles of so many equal parts of 0 … 1, but for those of `known` parts; `steps` is 3 times `known`.

    >>> midpoints(2).tolist(), midpoints(6, known=2).round(3).tolist()
    ([0.25, 0.75], [0.083, 0.417, 0.583, 0.917])
    """
    number = np.arange(steps)
    return ((number[number % 3 != 1] if known else number) + 0.5) / steps


@dataclass(frozen=True)
class GraphPath:
    """The path of some graphs.

    Parameters
    ----------
    graphs : GraphSet
    weight : float32, (E,)
        The edges' values in the model.
    joined : float32, (G, D), or None
        Features of whole graphs, scaled; None for a model without them.
    """

    graphs: GraphSet
    weight: NDArray[np.float32]
    joined: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, graphs: GraphSet, adjacency: str, joined: NDArray[np.float32] | None = None) -> GraphPath:
        """Return the path for a model with this `adjacency`; see `BatchSource`."""
        if adjacency == "symmetric" and not graphs.header.normalized:
            return cls(graphs, symmetric_weights(graphs), joined)
        return cls(graphs, np.ones(graphs.n_edges, np.float32) if graphs.weight is None else graphs.weight, joined)

    @cached_property
    def bonds(self) -> Int64:
        """Edges between different nodes, their positions among the E edges."""
        return np.flatnonzero(self.graphs.src != self.graphs.dst)

    @cached_property
    def ends(self) -> tuple[Int64, Int64]:
        """Row (receiving node) and column (sending node times C, plus channel) of every bond in the adjacency."""
        graphs, bonds = self.graphs, self.bonds
        first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))[bonds]
        channels = graphs.header.n_channels
        return first + graphs.dst[bonds], (first + graphs.src[bonds]) * channels + graphs.channel[bonds]

    def at(self, alpha: Float64) -> BatchSource:
        """Return all graphs at each position (S,): graph g at position s is number s*G + g."""
        graphs, copies = self.graphs, len(alpha)
        weight = np.tile(self.weight, (copies, 1))
        weight[:, self.bonds] *= alpha[:, None].astype(np.float32)
        stepped = replace(
            graphs,
            node_ptr=_repeated(graphs.node_ptr, copies),
            edge_ptr=_repeated(graphs.edge_ptr, copies),
            src=np.tile(graphs.src, copies),
            dst=np.tile(graphs.dst, copies),
            channel=np.tile(graphs.channel, copies),
            weight=weight.ravel(),
            x=_scaled(graphs.x, alpha),
            y=np.tile(graphs.y, (copies, 1)),
            ids=np.tile(graphs.ids, copies),
            groups=None,
            splits={},
            graph_features=None if self.joined is None else _scaled(self.joined, alpha),
        )
        return BatchSource(stepped, "stored", graph_features=self.joined is not None)

    def pairs(self, copies: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return `ends` in so many copies of the graphs."""
        steps, channels = np.arange(copies)[:, None] * self.graphs.n_nodes, self.graphs.header.n_channels
        rows, columns = self.ends
        return (rows + steps).ravel().astype(np.int32), (columns + steps * channels).ravel().astype(np.int32)


def _repeated(ptr: Int64, copies: int) -> Int64:
    """Return the pointer of so many copies of the segments."""
    shifted = ptr[1:] + np.arange(copies, dtype=np.int64)[:, None] * ptr[-1]
    return np.concatenate([ptr[:1], shifted.ravel()])


def _scaled(x: Any, alpha: Float64) -> Any:
    """Return alpha times the rows (N, F), float32 (S*N, F)."""
    sparse: bool = sp.issparse(x)
    if sparse:
        copies: Any = sp.vstack([x] * len(alpha), format="csr", dtype=np.float32)
        copies.data *= np.repeat(alpha, x.nnz).astype(np.float32)
        return copies
    return (alpha[:, None, None].astype(np.float32) * x.astype(np.float32)).reshape(-1, x.shape[1])
