"""What a fused step computes: node layers, a readout, dense layers on graphs, a loss. A description, no arrays.

Parameters are named by where they start in the flat array of trainable values, running statistics in that of buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from gcnbatch.backends.base import Readout
from gcnbatch.backends.cuda.fused.fp16 import geometry as half
from gcnbatch.backends.cuda.fused.fp16 import step_geometry as one_pass
from gcnbatch.backends.cuda.fused.narrow import geometry as narrow
from gcnbatch.backends.cuda.fused.shared import geometry
from gcnbatch.backends.cuda.fused.wide import geometry as wide


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
        return geometry.columns_of_u(self.n_in, self.channels)


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
    def n_outputs(self) -> int:
        """Logits of a graph."""
        return self.graphs[-1].n_out

    @property
    def head_floats(self) -> int:
        """Length of the readout and of what all layers on graphs make of it."""
        return self.nodes[-1].n_out + sum(layer.n_out for layer in self.graphs)

    @property
    def weight_floats(self) -> int:
        """Length of all weights and biases of layers on graphs, as far as a block keeps them; else 0."""
        floats = sum((layer.n_in + 1) * layer.n_out for layer in self.graphs)
        return floats if floats <= geometry.WEIGHTS_IN_SHARED else 0

    @property
    def widest(self) -> int:
        """Columns of the widest matrix on nodes."""
        return max(max(layer.k, layer.channels * geometry.columns_of(layer.n_out)) for layer in self.nodes)

    def products(self, capability: tuple[int, int], precision: str) -> str:
        """Return how the node layers multiply: ``"tf32"`` or ``"3xtf32"`` in wide kernels, or nothing: in narrow ones.

        The narrow kernels are the faster ones for few weights a layer (cuda_src/fused/FUSED_HISTORY.md).
        """
        weights = sum(layer.k * layer.n_out for layer in self.nodes)
        if capability not in wide.CAPABILITIES or weights < wide.WIDE_ENOUGH * len(self.nodes):
            return ""
        return "tf32" if precision == "tf32" else "3xtf32"

    def products_of_predictions(self, capability: tuple[int, int], products: str) -> str:
        """Return the same for predictions, where training has `products`: wide kernels wherever there are any.

        Batches are large: throughput counts, not latency.
        """
        return products or ("3xtf32" if capability in wide.CAPABILITIES else "")

    def trains_in_halves(self, products: str, channels: int, largest: int) -> bool:
        """Return whether `fused.half` trains the model on sets of so many channels and nodes in the largest graph.

        A batch of an epoch may still not fit (`fused.tiles`).
        """
        first, widths = self.nodes[0], {layer.n_out for layer in self.nodes}
        return (
            products == "tf32"
            and channels == 1
            and largest <= half.TILE_ROWS
            and all(layer.norm and not layer.is_dense and not layer.dropout for layer in self.nodes)
            and len(widths) == 1
            and first.n_out in half.WIDTHS
            and half.columns_of_u(first.n_in) <= half.MOST_COLUMNS
            and len(self.graphs) == 1
            and len(self.nodes) <= one_pass.MAX_LAYERS
            and self.n_outputs <= one_pass.MAX_OUTPUTS
        )

    def shared_bytes(self, is_wide: bool) -> int:
        """Shared memory of the block that needs the most."""
        last = self.nodes[-1]
        launches = [
            geometry.readout(1, last.n_out, len(self.graphs), self.n_outputs, self.head_floats, self.weight_floats),
            geometry.logits(1, last.n_out, self.head_floats, 1),
        ]
        for layer in () if is_wide else self.nodes:
            launches.append(narrow.forward(1, layer.n_in, layer.n_out, layer.k))
            launches.append(narrow.backward(1, 1, layer.n_in, layer.channels, layer.n_out, layer.k))
        return max(launch.shared for launch in launches)
