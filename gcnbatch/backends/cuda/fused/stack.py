"""What a fused step computes: node layers, a readout, dense layers on graphs, a loss. A description, no arrays.

Parameters are named by where they start in the flat array of trainable values, running statistics in that of buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from gcnbatch.backends.base import Readout
from gcnbatch.backends.cuda.geometry_fused import columns_of_u


@dataclass(frozen=True)
class Norm:
    """Batch norm of a node layer: starts of its arrays, (P,) each."""

    gamma: int
    beta: int
    running_mean: int
    running_var: int
    epsilon: float
    momentum: float


@dataclass(frozen=True)
class NodeLayer:
    """A graph convolution, or a dense layer on nodes, with its norm, ReLU and dropout.

    Parameters
    ----------
    name : str
    weight, bias : int
        Starts of W (F, C P) and b (C P,).
    n_in, n_out, channels : int
        F, P and C.
    is_dense : bool
        The identity stands for the adjacency; C = 1.
    norm : Norm or None
    dropout : str
        What its masks are keyed by; empty: none.
    """

    name: str
    weight: int
    bias: int
    n_in: int
    n_out: int
    channels: int
    is_dense: bool
    norm: Norm | None
    dropout: str

    @property
    def k(self) -> int:
        """Columns of U."""
        return columns_of_u(self.n_in, self.channels)


@dataclass(frozen=True)
class GraphLayer:
    """A dense layer on graphs: W (F, P), b (P,); all but the last have ReLU and dropout behind them."""

    name: str
    weight: int
    bias: int
    n_in: int
    n_out: int
    dropout: str


@dataclass(frozen=True)
class Stack:
    """A model.

    Parameters
    ----------
    nodes : tuple of NodeLayer
        The first is a graph convolution.
    readout : {"sum", "mean", "max"}
    graphs : tuple of GraphLayer
        The last yields the logits.
    dropout : float
        Rate of every dropout.
    target : {"binary", "multiclass", "regression"}
        Says which loss.
    """

    nodes: tuple[NodeLayer, ...]
    readout: Readout
    graphs: tuple[GraphLayer, ...]
    dropout: float
    target: str

    @property
    def head_floats(self) -> int:
        """Length of the readout and of what all layers on graphs make of it."""
        return self.nodes[-1].n_out + sum(layer.n_out for layer in self.graphs)

    @property
    def n_outputs(self) -> int:
        """Logits of a graph."""
        return self.graphs[-1].n_out
