"""The model: a list of layers, built from a configuration and a data set's header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Array, Ops
from gcnbatch.config_sections import ChemGCNConfig, KipfConfig
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.model.layers import (
    BatchNormRelu,
    Context,
    Dense,
    Dropout,
    Gradients,
    GraphConv,
    Layer,
    Propagate,
    ReadoutLayer,
    Relu,
    Weights,
)
from gcnbatch.model.parameters import ParameterLayout


@dataclass(frozen=True)
class Gcn:
    """A list of layers from node features to logits, (B, K) for graph-level and (N, K) for node-level sets."""

    layers: tuple[Layer, ...]

    @property
    def constant_layers(self) -> int:
        """Number of leading layers without parameters or dropout: their output for a batch never changes."""
        constant = [isinstance(layer, Propagate) for layer in self.layers]
        return constant.index(False)

    def layout(self) -> ParameterLayout:
        """Return the layout of all parameters."""
        return ParameterLayout(spec for layer in self.layers for spec in layer.specs())

    def prepare(self, ctx: Context, x: Array) -> Array:
        """Return the output of the constant layers for the features `x`."""
        for layer in self.layers[: self.constant_layers]:
            x, _ = layer.forward(ctx, x)
        return x

    def forward(self, ctx: Context, x: Array, prepared: bool = False) -> tuple[Array, list[Any]]:
        """Return the logits and each layer's saved values; with `prepared`, `x` is the output of `prepare`."""
        first = self.constant_layers if prepared else 0
        saved: list[Any] = [None] * first
        for layer in self.layers[first:]:
            x, kept = layer.forward(ctx, x)
            saved.append(kept)
        return x, saved

    def backward(self, ctx: Context, dlogits: Array, saved: list[Any]) -> Gradients:
        """Return the gradient of every parameter by name.

        The layers run in reverse order. The gradient by the features is never computed: the first layer with parameters
        needs none by its input.
        """
        first = next(i for i, layer in enumerate(self.layers) if layer.specs())
        gradients: Gradients = {}
        dh: Array | None = dlogits
        for i in range(len(self.layers) - 1, first - 1, -1):
            dh, own = self.layers[i].backward(ctx, dh, saved[i], need_dh=i > first)
            gradients.update(own)
        return gradients


def build(config: ChemGCNConfig | KipfConfig, header: Header, one_dense_graph: bool = False) -> Gcn:
    """Return the model of `config` for data with this header.

    With `one_dense_graph`, a Kipf convolution on features without dropout computes (A X) W instead of A (X W), equal up
    to rounding: A X of the only batch is then computed once. Parameters do not depend on it.
    """
    if isinstance(config, KipfConfig):
        return Gcn(tuple(_kipf(config, header, one_dense_graph)))
    return Gcn(tuple(_chemgcn(config, header)))


def _chemgcn(config: ChemGCNConfig, header: Header) -> list[Layer]:
    layers: list[Layer] = []
    width = header.n_features
    for i, out in enumerate(config.widths, 1):
        layers.append(GraphConv(f"conv{i}", width, out, header.n_channels))
        if config.batch_norm:
            layers.append(BatchNormRelu(f"norm{i}", out, config.batch_norm_epsilon, config.batch_norm_momentum))
        else:
            layers.append(Relu(f"conv{i}.relu"))
        layers += _dropout(f"conv{i}", config.dropout)
        width = out
    for i, out in enumerate(config.dense, 1):
        layers += [Dense(f"dense{i}", width, out), Relu(f"dense{i}.relu"), *_dropout(f"dense{i}", config.dropout)]
        width = out
    if header.level == "graph":
        layers.append(ReadoutLayer("readout", config.readout))
    for i, out in enumerate(config.head, 1):
        layers += [Dense(f"head{i}", width, out), Relu(f"head{i}.relu"), *_dropout(f"head{i}", config.dropout)]
        width = out
    layers.append(Dense("output", width, header.n_outputs))
    return layers


def _dropout(name: str, rate: float) -> list[Layer]:
    return [Dropout(f"{name}.dropout", rate)] if rate else []


def _kipf(config: KipfConfig, header: Header, one_dense_graph: bool) -> list[Layer]:
    if header.level != "node":
        raise InputError(
            "model.kind",
            f"kipf with a {header.level}-level data set",
            "a node-level set",
            "Use model.kind = 'chemgcn'.",
        )
    layers: list[Layer] = []
    width = header.n_features
    for i, out in enumerate((*config.widths, header.n_outputs), 1):
        rate = config.dropout if i > 1 or config.input_dropout else 0.0
        layers += _dropout(f"conv{i}", rate)
        cheaper = width < out if i > 1 else one_dense_graph and not rate
        if cheaper and header.n_channels == 1:
            layers += [Propagate(f"conv{i}.propagate"), Weights(f"conv{i}", width, out)]
        else:
            layers.append(GraphConv(f"conv{i}", width, out, header.n_channels, bias=False))
        if i <= len(config.widths):
            layers.append(Relu(f"conv{i}.relu"))
        width = out
    return layers


@dataclass(frozen=True)
class Loss:
    """The loss of a target kind: masked sigmoid cross-entropy, softmax cross-entropy or squared error.

    `weights` (K,) float32: of positives per task (binary), of classes (multiclass), unused for regression.
    """

    target: str
    weights: NDArray[np.float32]

    def __call__(
        self, ops: Ops, logits: Array, y: Array, weights: Array, totals: Array | None = None
    ) -> tuple[Any, Any, Array]:
        """Return (sum of the loss, sum of its weights, gradient of their quotient by the logits).

        `weights` are the loss's own, in the backend's memory; `totals` as in `Ops`.
        """
        if self.target == "binary":
            return ops.sigmoid_cross_entropy(logits, y, weights, totals)
        if self.target == "multiclass":
            return ops.softmax_cross_entropy(logits, y, weights, totals)
        return ops.mean_squared_error(logits, y, totals)


def uniform_weights(header: Header) -> NDArray[np.float32]:
    """Return weights of 1 for every task or class, float32 (K,)."""
    return np.ones(header.n_outputs, dtype=np.float32)
