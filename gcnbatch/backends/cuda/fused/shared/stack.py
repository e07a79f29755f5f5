"""A description of a model without arrays: node layers, a readout, dense layers on graphs, a loss.

A parameter is given by its offset in the flat array of trainable values, running statistics by theirs in the buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from gcnbatch.backends.cuda.fused.shared import geometry
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.ops import LossKind, Readout


@dataclass(frozen=True)
class Norm:
    """Batch norm of a node layer: offsets of its arrays, (P,) each."""

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
        Offsets of W (F, C P) and b (C P,).
    n_in, n_out, channels : int
        F, P and C.
    is_dense : bool
        Whether the layer is dense: A = I, C = 1.
    norm : Norm or None
    dropout : str
        Philox purpose of the masks; empty: no dropout.
    residual : bool
        Whether the output of the layer before is added.
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
    residual: bool = False

    @property
    def k(self) -> int:
        """Columns of U."""
        return geometry.columns_of_u(self.n_in, self.channels)


@dataclass(frozen=True)
class GraphLayer:
    """A dense layer on graphs: W (F, P), b (P,). ReLU and dropout follow all but the last."""

    name: str
    weight: int
    bias: int
    n_in: int
    n_out: int
    dropout: str


@dataclass(frozen=True)
class Joined:
    """Features of whole graphs beside the readout: their number, and offsets of their mean and scale, (D,) each."""

    n_features: int
    mean: int
    scale: int


@dataclass(frozen=True)
class Stack:
    """A model.

    Parameters
    ----------
    nodes : tuple of NodeLayer
        The first is a graph convolution.
    readouts : tuple of {"sum", "mean", "max"}
        Side by side.
    graphs : tuple of GraphLayer
        The last yields the logits.
    dropout : float
        Rate of every dropout.
    loss : LossKind
    weighted : bool
        Whether targets are weighted (`gcnbatch.data.weighted_targets`).
    joined : Joined or None
    """

    nodes: tuple[NodeLayer, ...]
    readouts: tuple[Readout, ...]
    graphs: tuple[GraphLayer, ...]
    dropout: float
    loss: LossKind
    weighted: bool
    joined: Joined | None = None

    def branches(self, number: int) -> bool:
        """Return whether a node layer's output is a sum, or part of that of the next layer: a residual connection."""
        return any(layer.residual for layer in self.nodes[number : number + 2])

    @property
    def n_outputs(self) -> int:
        """Logits per graph."""
        return self.graphs[-1].n_out

    @property
    def head_floats(self) -> int:
        """Length of the input and the outputs of all layers on graphs together."""
        return self.graphs[0].n_in + sum(layer.n_out for layer in self.graphs)

    @property
    def has_many_features(self) -> bool:
        """Whether features of whole graphs are so many that a launch of its own multiplies them."""
        return self.joined is not None and self.joined.n_features >= geometry.MANY_FEATURES

    @property
    def joins_ahead(self) -> bool:
        """Whether it does so in training: only if a layer lies between that launch and the readout."""
        return self.has_many_features and len(self.nodes) > 1

    @property
    def first_rows(self) -> int:
        """Rows of the first dense layer's weights that the readout of a training step reads."""
        first = self.graphs[0]
        return first.n_in - (self.joined.n_features if self.joined and self.joins_ahead else 0)

    @property
    def weight_floats(self) -> int:
        """Weights and biases of layers on graphs that a block keeps in shared memory: all that it reads, or 0."""
        first, *others = self.graphs
        floats = (self.first_rows + 1) * first.n_out + sum((layer.n_in + 1) * layer.n_out for layer in others)
        return floats if floats <= geometry.WEIGHTS_IN_SHARED else 0

    @property
    def readout_floats(self) -> int:
        """`head_floats` without the features that a launch of their own multiplies in training."""
        return self.head_floats - self.graphs[0].n_in + self.first_rows

    @property
    def rows_at(self) -> int:
        """Where a block of the readout holds rows of Y in shared memory, in floats."""
        sizes = (len(self.graphs), self.n_outputs, self.readout_floats, self.weight_floats)
        return geometry.rows_at(self.nodes[-1].n_out, *sizes)

    @property
    def widest(self) -> int:
        """Columns of the widest node matrix."""
        return max(max(layer.k, layer.channels * geometry.columns_of(layer.n_out)) for layer in self.nodes)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches of the shared readout, whose shared memory depends on the layers' sizes."""
        last = self.nodes[-1]
        return geometry.readout(1, last.n_out, self.rows_at), geometry.logits(1, last.n_out, self.head_floats, 1)
