"""Attributions: what atoms, bonds and features of whole molecules add to outputs, as arrays.

Dimensions: G graphs with N nodes and E edges, T explained outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64
from gcnbatch.text import counted, listed

Float64 = NDArray[np.float64]


class Bonds(NamedTuple):
    """Edges of both directions between two nodes in a channel, as one.

    Parameters
    ----------
    graph : int64, (M,)
    begin, end : int64, (M,)
        Node numbers within the graph; begin < end.
    channel : int64, (M,)
    values : float64, (M, T)
        Sums of the edges' attributions.
    """

    graph: Int64
    begin: Int64
    end: Int64
    channel: Int64
    values: Float64


class Joined(NamedTuple):
    """Features of whole graphs that a model joins to the readout, by graph; the others add nothing.

    Parameters
    ----------
    graph : int64, (M,)
        Ascending.
    feature : int64, (M,)
        Position among ``header.graph_feature_names``.
    values : float64, (M, T)
        Attributions, against the mean of the training rows; counts of fragments against 0.
    """

    graph: Int64
    feature: Int64
    values: Float64


@dataclass(frozen=True)
class Attributions:
    """What the parts of graphs add to the outputs, for one model or as the mean of an ensemble.

    Parameters
    ----------
    graphs : GraphSet
        The explained graphs.
    names : tuple of T str
    outputs, baselines : float64, (G, T)
        f(graph) and f(baseline): log-odds (binary), log-probabilities up to a constant whose mean over the classes is 0
        (multiclass), or values in the target's unit, as the model's transform of the target gives them.
    nodes : float64, (N, T)
        Of the features of each node, without its edges; `atoms` has both.
    edges : float64, (E, T)
        Of every stored edge; 0 for self-loops.
    joined : Joined
        Of features of whole graphs; empty for a model that joins none.
    steps : int64, (G,)
    """

    graphs: GraphSet
    names: tuple[str, ...]
    outputs: Float64
    baselines: Float64
    nodes: Float64
    edges: Float64
    joined: Joined
    steps: Int64

    def __repr__(self) -> str:
        return f"<Attributions: {counted(self.graphs.n_graphs, 'graph')}, {listed(self.names)}>"

    @property
    def atoms(self) -> Float64:
        """Attributions of nodes with half of each of their edges, (N, T); with `joined`, they add up to `sums`."""
        graphs, found = self.graphs, self.nodes.copy()
        first = np.repeat(graphs.node_ptr[:-1], np.diff(graphs.edge_ptr))
        for ends in (graphs.src, graphs.dst):
            np.add.at(found, first + ends, self.edges / 2)
        return found

    @property
    def joined_sums(self) -> Float64:
        """Sum of the attributions of each graph's features, (G, T)."""
        ptr = np.searchsorted(self.joined.graph, np.arange(self.graphs.n_graphs + 1))
        return segment_sums(self.joined.values, ptr)

    @property
    def sums(self) -> Float64:
        """Sum of all attributions of each graph, (G, T)."""
        graphs = self.graphs
        parts = segment_sums(self.nodes, graphs.node_ptr) + segment_sums(self.edges, graphs.edge_ptr)
        return parts + self.joined_sums

    @property
    def errors(self) -> Float64:
        """Completeness errors (G, T): `sums` less the difference of `outputs` and `baselines`."""
        return self.sums - (self.outputs - self.baselines)

    def bonds(self) -> Bonds:
        """Return the bonds of all graphs, by graph, begin, end and channel."""
        graphs = self.graphs
        graph = np.repeat(np.arange(graphs.n_graphs), np.diff(graphs.edge_ptr))
        ends = np.sort(np.stack([graphs.src, graphs.dst]), axis=0).astype(np.int64)
        keys = np.stack([graph, *ends, graphs.channel.astype(np.int64)])
        different = ends[0] != ends[1]
        unique, place = np.unique(keys[:, different], axis=1, return_inverse=True)
        values = np.zeros((unique.shape[1], len(self.names)))
        np.add.at(values, place.reshape(-1), self.edges[different])
        of_graph, begin, end, channel = unique
        return Bonds(of_graph, begin, end, channel, values)


def segment_sums(values: Float64, ptr: Int64) -> Float64:
    """Return the sums of the rows of each segment of `ptr`; 0 for an empty one."""
    ends = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    return ends[ptr[1:]] - ends[ptr[:-1]]
