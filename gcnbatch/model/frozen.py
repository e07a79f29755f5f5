"""A trained graph-level model with fixed parameters: its logits, and their gradients by its inputs.

In inference, batch norm is affine: z = (y - mean) scale + beta with scale = gamma / sqrt(var + epsilon). The scale is
multiplied into the weight and bias of the convolution before it, the rest is a bias behind its SpMM. Dropout is the
identity. So a frozen model needs no operation but products, biases, ReLU and readout.

Dimensions: N nodes and B graphs in the batch, C adjacency channels, F features, P columns, K outputs, E sampled edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Array, Backend, Batch, Csr
from gcnbatch.errors import InputError
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.layers import BatchNormRelu, Dense, Dropout, GraphConv, ReadoutLayer, Relu

Float64 = NDArray[np.float64]


@dataclass
class Stage:
    """One step of a frozen model on the host: a product with bias, then SpMM if it has channels, bias and ReLU.

    Parameters
    ----------
    weight : float64, (F, C*P)
    bias : float64, (C*P,)
    channels : int
        C; 0: no SpMM.
    shift : float64 (P,) or None
        Bias behind the SpMM.
    relu : bool
    """

    weight: Float64
    bias: Float64
    channels: int = 0
    shift: Float64 | None = None
    relu: bool = False

    def fold(self, norm: BatchNormRelu, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take in the batch norm, with its running statistics, and the ReLU that follow."""
        gamma, beta, mean, var = (weights[spec.name].astype(np.float64) for spec in norm.specs())
        scale = gamma / np.sqrt(var + norm.epsilon)
        wide = np.tile(scale, max(self.channels, 1))
        self.weight, self.bias = self.weight * wide, self.bias * wide
        self.shift, self.relu = beta - mean * scale, True


def freeze(model: Gcn, weights: Mapping[str, NDArray[Any]]) -> list[Stage | ReadoutLayer]:
    """Return the steps of a graph-level model with these parameters and running statistics.

    Raises
    ------
    InputError
        For a model that is not a chain of convolutions, dense layers and one readout.
    """
    stages: list[Stage | ReadoutLayer] = []
    for layer in model.layers:
        match layer:
            case GraphConv() | Dense():
                weight, bias = (weights[f"{layer.name}.{part}"].astype(np.float64) for part in ("weight", "bias"))
                stages.append(Stage(weight, bias, layer.n_channels if isinstance(layer, GraphConv) else 0))
            case BatchNormRelu():
                _last(stages).fold(layer, weights)
            case Relu():
                _last(stages).relu = True
            case ReadoutLayer(kinds=[_]):
                stages.append(layer)
            case Dropout():
                pass
            case _:
                raise InputError(
                    "explain", f"a model with layer {layer.name}", "a chain of layers with one readout and batch norm"
                )
    return stages


def _last(stages: list[Stage | ReadoutLayer]) -> Stage:
    assert isinstance(stages[-1], Stage)
    return stages[-1]


class Pairs(NamedTuple):
    """Entries that `Ops.sddmm` samples: int32 (E,) rows of its first operand and of its second."""

    rows: Array
    columns: Array


class InputGradients(NamedTuple):
    """Gradients by the inputs.

    Parameters
    ----------
    nodes : (N,) Array
        Gradient times input, summed over the features of each node.
    edges : list of (E,) Arrays
        By the values of the sampled edges, from each convolution; the gradient is their sum.
    """

    nodes: Array
    edges: list[Array]


class Kept(NamedTuple):
    """What the forward pass keeps of a step.

    `out` is the step's output, `product` H = X W + b of a convolution, `bare` X W of the first step. `saved` is what a
    readout keeps.
    """

    out: Array
    product: Array = None
    bare: Array = None
    saved: Any = None


@dataclass(frozen=True)
class _Placed:
    """A stage in a backend's memory."""

    weight: Array
    bias: Array
    shift: Array | None
    channels: int
    relu: bool


class FrozenModel:
    """A frozen model in a backend's memory.

    Parameters
    ----------
    backend : Backend
    stages : list
        Of `freeze`.
    """

    def __init__(self, backend: Backend, stages: list[Stage | ReadoutLayer]) -> None:
        self._at, self._ops = backend, backend.ops
        self._stages = [stage if isinstance(stage, ReadoutLayer) else self._place(stage) for stage in stages]

    def forward(self, batch: Batch) -> tuple[Array, list[Kept]]:
        """Return the logits (B, K) and what `gradients` needs."""
        h: Array = batch.x
        kept: list[Kept] = []
        for stage in self._stages:
            if isinstance(stage, ReadoutLayer):
                h, saved = self._ops.readout(h, batch.node_ptr, stage.kinds[0])
                kept.append(Kept(h, saved=saved))
            else:
                kept.append(self._stage(stage, batch, h, first=not kept))
                h = kept[-1].out
        return h, kept

    def gradients(self, batch: Batch, kept: list[Kept], dlogits: Array, edges: Pairs, nodes: Pairs) -> InputGradients:
        """Return the gradients of the sum of dlogits * logits by features and edge values.

        Parameters
        ----------
        edges : Pairs
            The edge of channel c from node j to node i is (i, j*C + c).
        nodes : Pairs
            (i, i) of every node.

        Notes
        -----
        The first step is H = X W + b, so dX = dH Wᵀ, and gradient times input of node i is x_i · dx_i = (x_i W) · dh_i.
        dX itself is not needed, whether X is dense or sparse.
        """
        ops, d, found = self._ops, dlogits, []
        for at in range(len(self._stages) - 1, -1, -1):
            stage, own = self._stages[at], kept[at]
            if isinstance(stage, ReadoutLayer):
                d = ops.readout_backward(d, batch.node_ptr, stage.kinds[0], own.saved)
                continue
            if stage.relu:
                d = ops.relu_backward(d, own.out, out=d)
            if stage.channels:
                found.append(ops.sddmm(d, own.product, *edges))
                d = ops.spmm_backward(batch.adjacency, d)
            if at:
                d = ops.matmul_dx(d, stage.weight, batch.adjacency if stage.channels else None)
        return InputGradients(ops.sddmm(kept[0].bare, d, *nodes), found)

    def _stage(self, stage: _Placed, batch: Batch, h: Array, first: bool) -> Kept:
        ops, bare = self._ops, None
        graphs = batch.adjacency if stage.channels else None
        if first:
            bare = ops.sparse_matmul(h, stage.weight) if isinstance(h, Csr) else ops.matmul(h, stage.weight, graphs)
            product = ops.bias_add(bare, stage.bias, graphs)
        else:
            product = ops.linear(h, stage.weight, stage.bias, graphs)
        y = ops.spmm(batch.adjacency, product) if stage.channels else product
        if stage.shift is not None:
            y = ops.bias_add(y, stage.shift, out=y)
        return Kept(ops.relu(y, out=y) if stage.relu else y, product if stage.channels else None, bare)

    def _place(self, stage: Stage) -> _Placed:
        shift = None if stage.shift is None else self._upload(stage.shift)
        return _Placed(self._upload(stage.weight), self._upload(stage.bias), shift, stage.channels, stage.relu)

    def _upload(self, values: Float64) -> Array:
        flat = self._at.zeros(values.size)
        self._at.write(flat, values.ravel())
        return self._at.view(flat, 0, values.shape)
