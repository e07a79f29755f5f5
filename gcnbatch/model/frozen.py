"""A trained graph-level model with fixed parameters: its logits, and their gradients by its inputs.

In inference, batch norm is affine: z = (y - mean) scale + beta with scale = gamma / sqrt(var + epsilon). The scale is
multiplied into the weight and bias of the convolution before it, the rest is a bias after its SpMM. After another
layer, batch norm becomes a product with a diagonal matrix. Dropout is the identity. Other layers are as in training.

Dimensions: N nodes and B graphs in the batch, C adjacency channels, F features, P columns, K outputs, E sampled edges,
D features of whole graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend, Batch
from gcnbatch.backends.ops import Array, Csr
from gcnbatch.model.gcn import Gcn
from gcnbatch.model.junctions import Junction
from gcnbatch.model.layers import (
    BatchNormRelu,
    Context,
    Dense,
    Dropout,
    GraphConv,
    Join,
    LayerNormRelu,
    ReadoutLayer,
    Relu,
    VirtualNode,
)

Float64 = NDArray[np.float64]


@dataclass
class Stage:
    """One step of a frozen model: a product with bias, then SpMM if it has channels, bias and ReLU.

    Parameters
    ----------
    name : str
        Name of the first layer that it stands for.
    weight : float64, (F, C*P)
    bias : float64, (C*P,)
    channels : int
        C; 0: no SpMM.
    shift : float64 (P,) or None
        Bias added after the SpMM.
    relu : bool
    """

    name: str
    weight: Float64
    bias: Float64
    channels: int = 0
    shift: Float64 | None = None
    relu: bool = False

    def scale(self, by: Float64, shift: Float64) -> None:
        """Take in the batch norm ``y by + shift``, and its ReLU."""
        wide = np.tile(by, max(self.channels, 1))
        self.weight, self.bias = self.weight * wide, self.bias * wide
        self.shift, self.relu = shift, True


Step = Stage | Relu | LayerNormRelu | ReadoutLayer | VirtualNode | Join | Junction


class Frozen(NamedTuple):
    """A frozen model on the host: its steps, and the step of each layer that became part of another one, by name."""

    steps: list[Step]
    parts: dict[str, str]


def freeze(model: Gcn, weights: Mapping[str, NDArray[Any]]) -> Frozen:
    """Return the steps of a graph-level model with these parameters and running statistics."""
    steps: list[Step] = []
    parts: dict[str, str] = {}
    for layer in model.layers:
        last = steps[-1] if steps and isinstance(steps[-1], Stage) and not steps[-1].relu else None
        match layer:
            case GraphConv() | Dense():
                weight, bias = (weights[f"{layer.name}.{part}"].astype(np.float64) for part in ("weight", "bias"))
                steps.append(Stage(layer.name, weight, bias, layer.n_channels if isinstance(layer, GraphConv) else 0))
            case BatchNormRelu():
                gamma, beta, mean, var = (weights[spec.name].astype(np.float64) for spec in layer.specs())
                by = gamma / np.sqrt(var + layer.epsilon)
                if last is None:
                    steps.append(last := Stage(layer.name, np.eye(len(by)), np.zeros(len(by))))
                last.scale(by, beta - mean * by)
            case Relu() if last is not None:
                last.relu = True
            case Dropout():
                pass
            case _:
                steps.append(layer)
        parts[layer.name] = steps[-1].name
    return Frozen(steps, parts)


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
    graphs : (B, D) Array or None
        By the features of whole graphs, scaled, if the model joins some.
    """

    nodes: Array
    edges: list[Array]
    graphs: Array = None


class StepOutput(NamedTuple):
    """Output of a step, and what else the forward pass keeps of it.

    Of a stage, `out` is the output, `product` H = X W + b of a convolution, `bare` X W of the first one. Of any other
    layer, `saved` is what its backward pass needs.
    """

    out: Array
    product: Array = None
    bare: Array = None
    saved: Any = None


class FrozenModel:
    """A frozen model in a backend's memory.

    Parameters
    ----------
    backend : Backend
    frozen : Frozen
        Its first step is a convolution or a dense layer.
    weights : dict of arrays
        Parameters by name, of the layers that are no stages.
    """

    def __init__(self, backend: Backend, frozen: Frozen, weights: Mapping[str, NDArray[Any]]) -> None:
        self._backend, self._ops, self._parts = backend, backend.ops, frozen.parts
        others = [step for step in frozen.steps if not isinstance(step, Stage)]
        self._parameters = {spec.name: self._upload(weights[spec.name]) for one in others for spec in one.specs()}
        self._steps = [self._placed(step) if isinstance(step, Stage) else step for step in frozen.steps]

    def forward(self, batch: Batch) -> tuple[Array, list[StepOutput]]:
        """Return the logits (B, K) and what `gradients` needs."""
        ctx, h = Context(self._ops, self._parameters, batch, training=False), batch.x
        kept: list[StepOutput] = []
        outputs: dict[str, Array] = {}
        for step in self._steps:
            if isinstance(step, Stage):
                kept.append(self._stage(step, batch, h, first=not kept))
            else:
                others = [outputs[self._parts[name]] for name in step.others] if isinstance(step, Junction) else []
                out, saved = step.forward(ctx, h, *others)
                kept.append(StepOutput(out, saved=saved))
            h = outputs[step.name] = kept[-1].out
        return h, kept

    def gradients(
        self, batch: Batch, kept: list[StepOutput], dlogits: Array, edges: Pairs, nodes: Pairs
    ) -> InputGradients:
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
        ctx, d = Context(self._ops, self._parameters, batch, training=False), dlogits
        found: list[Array] = []
        of_graphs: Array = None
        through: dict[str, Array] = {}  # gradients by outputs of steps, from the junctions that read them
        for index in range(len(self._steps) - 1, -1, -1):
            step, own = self._steps[index], kept[index]
            if step.name in through:
                d = self._ops.add(d, through.pop(step.name))
            if isinstance(step, Stage):
                d = self._stage_backward(step, batch, d, own, edges, found)
                if index:
                    d = self._ops.matmul_dx(d, step.weight, batch.adjacency if step.channels else None)
            elif isinstance(step, Junction):
                d, *others = step.backward(ctx, d, own.saved)
                for name, one in zip((self._parts[name] for name in step.others), others, strict=True):
                    through[name] = self._ops.add(through[name], one) if name in through else one
            elif isinstance(step, Join):
                d, of_graphs = self._ops.concatenate_backward(d, [step.n_in, step.n_features])
            else:
                d, _ = step.backward(ctx, d, own.saved, need_dh=True)
        return InputGradients(self._ops.sddmm(kept[0].bare, d, *nodes), found, of_graphs)

    def _stage(self, stage: Stage, batch: Batch, h: Array, first: bool) -> StepOutput:
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
        return StepOutput(ops.relu(y, out=y) if stage.relu else y, product if stage.channels else None, bare)

    def _stage_backward(
        self, stage: Stage, batch: Batch, d: Array, own: StepOutput, edges: Pairs, found: list[Array]
    ) -> Array:
        """Return the gradient by H = X W + b, and append that by the edges to `found`."""
        if stage.relu:
            d = self._ops.relu_backward(d, own.out)
        if not stage.channels:
            return d
        found.append(self._ops.sddmm(d, own.product, *edges))
        return self._ops.spmm_backward(batch.adjacency, d)

    def _placed(self, stage: Stage) -> Stage:
        """Return the stage with arrays in the backend's memory."""
        shift: Any = None if stage.shift is None else self._upload(stage.shift)
        return replace(stage, weight=self._upload(stage.weight), bias=self._upload(stage.bias), shift=shift)

    def _upload(self, values: NDArray[Any]) -> Array:
        flat = self._backend.zeros(values.size)
        self._backend.write(flat, values.ravel())
        return self._backend.view(flat, 0, values.shape)
