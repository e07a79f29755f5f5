"""Batches: gathers any list of graphs into flat arrays with a block-diagonal adjacency.

The adjacency of the whole set is prepared once: sorted rows, normalised values, the transpose. A batch gathers row
ranges and shifts their columns, without a Python loop over graphs. If a set is too large for memory, each batch is read
from the file in slices and prepared on its own. Both ways give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.csr import compressed, transposed
from gcnbatch.data.distinct import RepeatedRows
from gcnbatch.data.graph_features import FeatureTable, GraphFeatures, HostFeatures
from gcnbatch.data.graphs import GraphSet, Int64, stacked
from gcnbatch.data.normalize import symmetric_scales, symmetric_weights
from gcnbatch.data.sparse import Adjacency, Csr, check_reach, equal_rows, joined_pointer, ragged_rows, row_pointer
from gcnbatch.data.store import Dataset


@dataclass(frozen=True)
class GraphBatch:
    """A batch of B graphs with N nodes.

    Parameters
    ----------
    node_ptr : int64, (B+1,)
        First node row of each graph.
    x : float32 (N, F) or Csr
        Node features.
    adjacency : Adjacency
        Block-diagonal over the graphs, node numbers counted in the batch.
    rows : int64, (R,)
        Target rows of the data set in this batch: its graphs, or its nodes for a node-level set.
    graph_features : GraphFeatures or None
        Of its graphs, as stored.
    """

    node_ptr: Int64
    x: Any
    adjacency: Adjacency
    rows: Int64
    graph_features: GraphFeatures | None = None

    @property
    def n_nodes(self) -> int:
        """N, the number of nodes of all graphs of the batch."""
        return int(self.node_ptr[-1])


class BatchSource:
    """Source of batches of one data set.

    Parameters
    ----------
    data : GraphSet or Dataset
        A set in memory, or an open file that is read batch by batch.
    adjacency : {"symmetric", "stored"}
        Normalise each channel to D^-1/2 A D^-1/2 unless the file is normalised, or take the weights as stored.
    graph_features : bool
        Whether batches have the features of whole graphs that a network reads (`Header.n_joined`).

    Attributes
    ----------
    prepared : PreparedSet or None
        The whole set, ready to gather from or to copy to a device; None for an open file.
    file : Dataset or None
        The open file; None for a set in memory.
    normalize : bool
        Whether channels are normalised here.
    """

    def __init__(self, data: GraphSet | Dataset, adjacency: str = "symmetric", graph_features: bool = False) -> None:
        self.header = data.header
        self.n_graphs = data.n_graphs
        self.node_ptr = data.node_ptr
        self.normalize = adjacency == "symmetric" and not data.header.normalized
        self._joined = data.header.n_joined if graph_features else 0
        self.file = data if isinstance(data, Dataset) else None
        self.prepared = self._prepare(data) if isinstance(data, GraphSet) else None

    def _prepare(self, data: GraphSet) -> PreparedSet:
        return PreparedSet(data, self.normalize, self._joined)

    @classmethod
    def joined(cls, sources: Sequence[BatchSource]) -> BatchSource:
        """Return the batches of graph-level sets in memory that are read alike, one set after the other."""
        if len(sources) == 1:
            return sources[0]
        whole = copy(sources[0])
        whole.n_graphs = sum(source.n_graphs for source in sources)
        whole.node_ptr = joined_pointer([source.node_ptr for source in sources])
        whole.prepared = PreparedSet.joined([source.prepared for source in sources if source.prepared is not None])
        return whole

    def feature_tables(self) -> Iterator[FeatureTable]:
        """Yield all features of all graphs, in one or more tables; the source must have been made with them."""
        if self.prepared is not None:
            assert self.prepared.stored_graph_features is not None
            yield self.prepared.stored_graph_features
        else:
            assert self.file is not None
            yield from self.file.feature_tables()

    def graphs_of(self, rows: Int64) -> Int64:
        """Return the graphs of these target rows: the rows themselves, or the graphs of the nodes, ascending."""
        if self.header.level == "graph":
            return rows
        return np.unique(np.searchsorted(self.node_ptr, rows, side="right") - 1)

    def batch(self, graphs: Int64) -> GraphBatch:
        """Return these graphs as one batch, in this order."""
        nodes, node_ptr = ragged_rows(self.node_ptr, graphs)
        rows = graphs if self.header.level == "graph" else nodes
        if self.prepared is not None and self.header.level == "node" and self.n_graphs == len(graphs) == 1:
            return self.prepared.whole
        if self.prepared is not None:
            return self.prepared.gather(graphs, nodes, node_ptr, rows)
        assert self.file is not None
        part = self._prepare(self.file.read(graphs))
        return part.gather(np.arange(len(graphs)), np.arange(len(nodes)), node_ptr, rows)


class PreparedRows:
    """One sparse matrix of the whole set, prepared for gathering rows; columns count within each graph.

    Each node has `per_node` rows and `stride` columns.

    Attributes
    ----------
    row_length : int32, (rows,)
        Entries of each row.
    entry_ptr : int64, (G+1,)
        First entry of each graph.
    indices : int32, (nnz,)
    data : float32, (nnz,)
    """

    def __init__(self, matrix: Any, node_ptr: Int64, per_node: int, stride: int) -> None:
        self.per_node, self.stride = per_node, stride
        self.row_length = np.diff(matrix.indptr).astype(np.int32)
        self.entry_ptr = matrix.indptr[node_ptr * per_node].astype(np.int64)
        self.data = matrix.data
        self.indices = matrix.indices.astype(np.int32, copy=False)
        if len(node_ptr) > 2:
            shift = np.repeat(node_ptr[:-1] * stride, np.diff(self.entry_ptr))
            self.indices = (matrix.indices - shift).astype(np.int32)

    @classmethod
    def joined(cls, parts: Sequence[PreparedRows]) -> PreparedRows:
        """Return the matrix of several sets, one after the other."""
        whole = copy(parts[0])
        whole.entry_ptr = joined_pointer([part.entry_ptr for part in parts])
        for name in ("row_length", "indices", "data"):
            setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
        return whole

    @property
    def indptr(self) -> Int64:
        """First entry of each row, (rows + 1,)."""
        return row_pointer(self.row_length)

    def whole(self, n_columns: int) -> Csr:
        """Return the matrix of a set of one graph; it shares the arrays."""
        check_reach(len(self.indices), "edges")
        return Csr(self.indptr.astype(np.int32), self.indices, self.data, n_columns)

    def gather(self, graphs: Int64, nodes: Int64, node_ptr: Int64) -> Csr:
        """Return the rows of these graphs, whose nodes are `nodes` in the set; `node_ptr` is the batch's pointer."""
        check_reach(int(node_ptr[-1]) * max(self.stride, self.per_node), "nodes times channels")
        entries, entry_ptr = ragged_rows(self.entry_ptr, graphs)
        check_reach(len(entries), "edges")
        lengths = self.row_length.reshape(-1, self.per_node).take(nodes, axis=0).ravel()
        indptr = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=indptr[1:])
        indices = self.indices.take(entries)
        indices += np.repeat((node_ptr[:-1] * self.stride).astype(np.int32), entry_ptr[1:] - entry_ptr[:-1])
        return Csr(indptr, indices, self.data.take(entries), int(node_ptr[-1]) * self.stride)


class PreparedSet:
    """A set in memory with its adjacency sorted, normalised and transposed.

    Attributes
    ----------
    x : (N, F) array, sparse array or RepeatedRows
        Features in their stored type; those of a batch are float32.
    forward, transpose : PreparedRows
        As in `Adjacency`.
    symmetric : bool
        Whether `transpose` is `forward`: one channel with symmetric values.
    stored_graph_features : FeatureTable or None
        Features of whole graphs; None if no network reads any.
    scales : (float32 (N,), float32 (N,)) or None
        Row and column scales whose product is each value of `forward`; None unless the set has one channel, no repeated
        edge, no weights, and is normalised here. The product differs from the stored value by a rounding.
    """

    def __init__(self, graphs: GraphSet, normalize: bool, joined: int) -> None:
        n, channels = graphs.n_nodes, graphs.header.n_channels
        self.channels = channels
        self.x: Any = graphs.x
        self._n_joined = joined
        self.stored_graph_features = graphs.graph_features if joined else None
        if normalize:
            weight = symmetric_weights(graphs)
        else:
            weight = graphs.weight if graphs.weight is not None else np.ones(graphs.n_edges, np.float32)
        matrix = compressed(*_coordinates(graphs), weight, (n, n * channels))
        plain = normalize and graphs.weight is None and channels == 1 and len(matrix.data) == graphs.n_edges
        del weight
        transpose = transposed(matrix)
        self.scales = symmetric_scales(matrix.indptr, transpose.indptr) if plain else None
        self.forward = PreparedRows(matrix, graphs.node_ptr, 1, channels)
        self.symmetric = channels == 1 and equal_rows(matrix, transpose)
        self.transpose = self.forward if self.symmetric else PreparedRows(transpose, graphs.node_ptr, channels, 1)

    @classmethod
    def joined(cls, parts: Sequence[PreparedSet]) -> PreparedSet:
        """Return several sets of graphs as one, one after the other."""
        whole = copy(parts[0])
        for name in ("stored_x", "atoms", "joined_features", "whole"):
            vars(whole).pop(name, None)
        repeated = [part.x for part in parts if isinstance(part.x, RepeatedRows)]
        are_compact = len(repeated) == len(parts)
        whole.x = RepeatedRows.joined(repeated) if are_compact else stacked([part.stored_x for part in parts])
        whole.symmetric = all(part.symmetric for part in parts)
        whole.forward = PreparedRows.joined([part.forward for part in parts])
        whole.transpose = whole.forward if whole.symmetric else PreparedRows.joined([part.transpose for part in parts])
        tables = [part.stored_graph_features for part in parts if part.stored_graph_features is not None]
        whole.stored_graph_features = FeatureTable.joined(tables) if tables else None
        scales = [part.scales or (None, None) for part in parts]
        rows, columns = (_joined([pair[place] for pair in scales]) for place in (0, 1))
        whole.scales = None if rows is None or columns is None else (rows, columns)
        return whole

    def compact(self) -> None:
        """Keep only what batches are gathered from, which makes the set smaller to send. Batches keep their bits.

        Features become `RepeatedRows` where few of them differ; features of graphs that no network reads are dropped.
        """
        if isinstance(self.x, np.ndarray) and (found := RepeatedRows.of(self.x)) is not None:
            self.x = found
            vars(self).pop("stored_x", None)
        self.stored_graph_features = self.joined_features

    @cached_property
    def stored_x(self) -> Any:
        """The features as an array or a sparse array, which a compact set makes at the first use."""
        return self.x[:] if isinstance(self.x, RepeatedRows) else self.x

    @cached_property
    def joined_features(self) -> FeatureTable | None:
        """The features of whole graphs that a network reads, the first ones; None if it reads none."""
        return None if self.stored_graph_features is None else self.stored_graph_features.first(self._n_joined)

    @cached_property
    def atoms(self) -> RepeatedRows | None:
        """The features as float32; None where the different rows are not few."""
        found = RepeatedRows.of(self.x) if isinstance(self.x, np.ndarray) else self.x
        return replace(found, values=node_features(found.values)) if isinstance(found, RepeatedRows) else None

    @cached_property
    def whole(self) -> GraphBatch:
        """The only batch of a node-level set of one graph; it shares the set's arrays, so do not write to it."""
        n = len(self.forward.row_length)
        check_reach(n * self.channels, "nodes times channels")
        forward = self.forward.whole(n * self.channels)
        adjacency = Adjacency(forward, forward if self.symmetric else self.transpose.whole(n), self.channels)
        return GraphBatch(np.array([0, n]), node_features(self.stored_x), adjacency, np.arange(n))

    def gather(self, graphs: Int64, nodes: Int64, node_ptr: Int64, rows: Int64) -> GraphBatch:
        """Return these graphs as a batch with these target rows; `nodes` are their nodes in the set."""
        forward = self.forward.gather(graphs, nodes, node_ptr)
        transpose = forward if self.symmetric else self.transpose.gather(graphs, nodes, node_ptr)
        x = self.x.take(nodes, axis=0) if isinstance(self.x, np.ndarray) else self.x[nodes]
        adjacency = Adjacency(forward, transpose, self.channels)
        return GraphBatch(node_ptr, node_features(x), adjacency, rows, self.of_graphs(graphs))

    def of_graphs(self, graphs: Int64) -> GraphFeatures | None:
        """Return the features of these graphs; None if there are none or no model uses them."""
        table = self.joined_features
        if table is None:
            return None
        return HostFeatures(table, graphs) if table.counts.n_cols else GraphFeatures(table.measured, graphs)


def node_features(x: Any) -> Any:
    """Return stored features as those of a batch: float32, or Csr."""
    sparse: bool = sp.issparse(x)
    return Csr(x.indptr, x.indices, x.data, x.shape[1]) if sparse else x.astype(np.float32, copy=False)


def _joined(arrays: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    """Return the rows of all arrays; None if one is missing."""
    known = [array for array in arrays if array is not None]
    return np.concatenate(known) if len(known) == len(arrays) else None


def _coordinates(graphs: GraphSet) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return row and column of every edge in the matrix of the whole set; int32 if that is wide enough."""
    channels = graphs.header.n_channels
    kind = np.int32 if graphs.n_nodes * channels < 2**31 else np.int64
    if graphs.n_graphs == channels == 1:
        return graphs.dst, graphs.src
    start = np.repeat(graphs.node_ptr[:-1].astype(kind), np.diff(graphs.edge_ptr))
    return start + graphs.dst, (start + graphs.src) * kind(channels) + graphs.channel
