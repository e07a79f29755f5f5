"""The model: a list of layers, built from a configuration and a data set's header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Array, Ops
from gcnbatch.config_sections import ChemGCNConfig, KipfConfig
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, nearest
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

ALL_CONVOLUTIONS = "all-conv"  # in a list of frozen layers: every convolution


@dataclass(frozen=True)
class Gcn:
    """A list of layers from node features to logits, (B, K) for graph-level and (N, K) for node-level sets.

    The first `frozen` layers are not trained. They compute as in prediction, with running statistics and without
    dropout, and have no gradients.
    """

    layers: tuple[Layer, ...]
    frozen: int = 0

    @property
    def constant_layers(self) -> int:
        """Number of leading layers that are frozen or have neither parameters nor dropout: their output is constant."""
        constant = [isinstance(layer, Propagate) for layer in self.layers]
        return max(constant.index(False), self.frozen)

    def layout(self) -> ParameterLayout:
        """Return the layout of all parameters."""
        return ParameterLayout(spec for layer in self.layers for spec in layer.specs())

    def frozen_parameters(self) -> list[str]:
        """Return the names of the parameters and running statistics that training does not change."""
        return [spec.name for layer in self.layers[: self.frozen] for spec in layer.specs()]

    def prepare(self, ctx: Context, x: Array) -> Array:
        """Return the output of the constant layers for the features `x`."""
        return self._run(ctx, x, range(self.constant_layers))[0]

    def forward(self, ctx: Context, x: Array, prepared: bool = False) -> tuple[Array, list[Any]]:
        """Return the logits and each layer's saved values; with `prepared`, `x` is the output of `prepare`."""
        first = self.constant_layers if prepared else 0
        logits, saved = self._run(ctx, x, range(first, len(self.layers)))
        return logits, [None] * first + saved

    def _run(self, ctx: Context, x: Array, numbers: range) -> tuple[Array, list[Any]]:
        """Return the output of these layers and their saved values; frozen ones save none."""
        predicting = replace(ctx, training=False) if self.frozen else ctx
        saved: list[Any] = []
        for i in numbers:
            x, kept = self.layers[i].forward(predicting if i < self.frozen else ctx, x)
            saved.append(None if i < self.frozen else kept)
        return x, saved

    def backward(self, ctx: Context, dlogits: Array, saved: list[Any]) -> Gradients:
        """Return the gradient of every parameter that is not frozen by name.

        The layers run in reverse order. The gradient by the features is never computed: the first layer with parameters
        needs none by its input.
        """
        first = next(i for i, layer in enumerate(self.layers) if i >= self.frozen and layer.specs())
        gradients: Gradients = {}
        dh: Array | None = dlogits
        for i in range(len(self.layers) - 1, first - 1, -1):
            dh, own = self.layers[i].backward(ctx, dh, saved[i], need_dh=i > first)
            gradients.update(own)
        return gradients


def freeze(model: Gcn, names: Sequence[str]) -> Gcn:
    """Return the model with these layers frozen: ``"conv1"`` with its norm, ``"all-conv"`` for every convolution.

    Raises
    ------
    InputError
        For an unknown layer, and for frozen layers behind trained ones: gradients would have to pass through them.
    """
    trained = list(dict.fromkeys(_part_of(layer.name) for layer in model.layers if layer.specs()))
    wanted = set(names) - {ALL_CONVOLUTIONS}
    if ALL_CONVOLUTIONS in names:
        wanted |= {name for name in trained if name.startswith("conv")}
    for name in names:
        if name != ALL_CONVOLUTIONS and name not in trained:
            raise InputError("train.freeze", f"'{name}'", "a layer of the model", nearest(name, trained))
    if len(wanted) == len(trained):
        raise InputError("train.freeze", "every layer", "fewer: nothing would be trained")
    if wanted != set(trained[: len(wanted)]):
        behind = next(name for name in trained if name not in wanted)
        raise InputError("train.freeze", ", ".join(names), f"the first layers; {behind} comes before one of them")
    last = max((i for i, layer in enumerate(model.layers) if _part_of(layer.name) in wanted), default=-1)
    return replace(model, frozen=last + 1)


def _part_of(name: str) -> str:
    """Return the part of the model that a layer belongs to: ``"conv1"`` for norm1 and conv1.dropout."""
    return re.sub("^norm", "conv", name.partition(".")[0])


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
