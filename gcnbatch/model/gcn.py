"""The model: a list of layers, built from a configuration and a data set's header."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Batch
from gcnbatch.backends.ops import Array, LossKind, Ops
from gcnbatch.config_sections import ChemGCNConfig, KipfConfig
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError, nearest
from gcnbatch.model.fusion import Fused, fuse, reads_adjacency
from gcnbatch.model.junctions import Add, Concatenate, Junction, Maximum, ModelLayer
from gcnbatch.model.layers import (
    BatchNormRelu,
    Context,
    Dense,
    Dropout,
    Gradients,
    GraphConv,
    Join,
    LayerNormRelu,
    Propagate,
    ReadoutLayer,
    Relu,
    VirtualNode,
)
from gcnbatch.model.parameters import ParameterLayout

ALL_CONVOLUTIONS = "all-conv"  # in a list of frozen layers: every convolution
FEATURES = "features"  # the layer that joins the features of whole graphs
PLAIN_LOSSES: Mapping[str, LossKind] = {"binary": "sigmoid", "multiclass": "softmax", "regression": "squared"}
ROW_BY_ROW = (Dense, Relu, LayerNormRelu)  # layers that compute each row from that row, wherever it lies


class Flow(NamedTuple):
    """State between two layers: the output of the last one, and kept outputs of earlier ones by name."""

    h: Array
    kept: Mapping[str, Array]


@dataclass(frozen=True)
class Gcn:
    """Layers from node features to logits, (B, K) for graph-level and (N, K) for node-level sets.

    Each layer reads the output of the layer before; a `Junction` also reads outputs of earlier layers. The layers are
    plain; passes compute what `gcnbatch.model.fusion.fuse` makes of them.

    Parameters
    ----------
    layers : tuple of layers
    frozen : int
        The first layers, which are not trained. They compute as in prediction, with running statistics and without
        dropout, and have no gradients.
    one_dense_graph : bool
        As in `build`.
    """

    layers: tuple[ModelLayer, ...]
    frozen: int = 0
    one_dense_graph: bool = False

    @cached_property
    def fused(self) -> Fused:
        """The layers as they are computed."""
        return fuse(self.layers, self.frozen, self.one_dense_graph)

    @cached_property
    def kernels(self) -> str:
        """A text that is equal for models that differ in nothing but the rates of dropout."""
        layers = [replace(layer, rate=0.5) if isinstance(layer, Dropout) else layer for layer in self.layers]
        return repr((layers, self.frozen))

    @cached_property
    def constant_layers(self) -> int:
        """Number of leading computed layers whose output is constant: frozen ones, or A X without parameters."""
        layers, frozen = self.fused
        return max([isinstance(layer, Propagate) for layer in layers].index(False), frozen)

    @cached_property
    def _first_labelled(self) -> int:
        """Number of the last product with the adjacency: from it on, training needs labelled rows alone.

        The number of layers where it needs all rows to the end.
        """
        layers = self.fused.layers
        last = max((i for i, layer in enumerate(layers) if reads_adjacency(layer)), default=-1)
        by_rows = all(isinstance(layer, ROW_BY_ROW) for layer in layers[last + 1 :])
        return last if by_rows and last >= self.constant_layers else len(layers)

    def scored(self, batch: Batch) -> Batch:
        """Return the batch whose targets belong to the logits of a training step: all rows, or those with labels."""
        return batch.labelled or batch if self._first_labelled < len(self.fused.layers) else batch

    def layout(self) -> ParameterLayout:
        """Return the layout of all parameters."""
        return ParameterLayout(spec for layer in self.layers for spec in layer.specs())

    def frozen_parameters(self) -> list[str]:
        """Return the names of the parameters and running statistics that training does not change."""
        return [spec.name for layer in self.layers[: self.frozen] for spec in layer.specs()]

    def prepare(self, ctx: Context, x: Array) -> Flow:
        """Return the state after the constant layers for the features `x`."""
        return self._run(ctx, Flow(x, {}), range(self.constant_layers))[0]

    def forward(self, ctx: Context, x: Array | Flow) -> tuple[Array, list[Any]]:
        """Return the logits and each layer's saved values for features, or for what `prepare` returned."""
        first = self.constant_layers if isinstance(x, Flow) else 0
        after, saved = self._run(ctx, x if isinstance(x, Flow) else Flow(x, {}), range(first, len(self.fused.layers)))
        return after.h, [None] * first + saved

    def _run(self, ctx: Context, flow: Flow, numbers: range) -> tuple[Flow, list[Any]]:
        """Return the state after these layers and their saved values; those that predict save none."""
        context = self._contexts(ctx)
        layers = self.fused.layers
        needed = {name for layer in layers if isinstance(layer, Junction) for name in layer.others}
        between, kept = [flow.h], dict(flow.kept)  # a layer has the only reference to its input, and may free it
        saved: list[Any] = []
        for i in numbers:
            layer, own = layers[i], context(i)
            if isinstance(layer, Junction):
                h, values = layer.forward(own, between.pop(), *(kept[name] for name in layer.others))
            else:
                h, values = layer.forward(own, between.pop())
            between.append(h)
            saved.append(values if own.training else None)
            if layer.name in needed:
                kept[layer.name] = h
            del h, values
        return Flow(between.pop(), kept), saved

    def _contexts(self, ctx: Context) -> Callable[[int], Context]:
        """Return the context of each layer, by number: frozen ones predict, the last ones may need few rows."""
        frozen = self.fused.frozen
        predicting = replace(ctx, training=False) if frozen else ctx
        batch = self.scored(ctx.batch)
        scored = replace(ctx, batch=batch) if ctx.training and batch is not ctx.batch else ctx
        return lambda i: predicting if i < frozen else scored if i >= self._first_labelled else ctx

    def backward(self, ctx: Context, dlogits: Array, saved: list[Any]) -> Gradients:
        """Return the gradient of every parameter that is not frozen by name.

        The layers run in reverse order, and each takes its saved values from the end of `saved`: it may free them. The
        gradient by the features is never computed: the first layer with parameters needs none by its input.
        """
        (layers, frozen), context = self.fused, self._contexts(ctx)
        first = next(i for i, layer in enumerate(layers) if i >= frozen and layer.specs())
        gradients: Gradients = {}
        through: dict[str, Array] = {}  # gradients by outputs of layers, from the junctions that read them
        between: list[Any] = [dlogits]
        del dlogits
        for i in range(len(layers) - 1, first - 1, -1):
            layer, own_ctx = layers[i], context(i)
            if layer.name in through:
                between.append(ctx.ops.add(between.pop(), through.pop(layer.name)))
            if isinstance(layer, Junction):
                dh, *others = layer.backward(own_ctx, between.pop(), saved.pop())
                for name, d in zip(layer.others, others, strict=True):
                    through[name] = ctx.ops.add(through[name], d) if name in through else d
            else:
                dh, own = layer.backward(own_ctx, between.pop(), saved.pop(), need_dh=i > first)
                gradients.update(own)
            between.append(dh)
            del dh
        return gradients


def freeze_layers(model: Gcn, names: Sequence[str]) -> Gcn:
    """Return the model with these layers frozen: ``"conv1"`` with its norm, ``"all-conv"`` for every convolution.

    Raises
    ------
    InputError
        For an unknown layer, and for frozen layers after trained ones: gradients would have to pass through them.
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
        skipped = next(name for name in trained if name not in wanted)
        raise InputError("train.freeze", ", ".join(names), f"the first layers; {skipped} comes before one of them")
    last = max((i for i, layer in enumerate(model.layers) if _part_of(layer.name) in wanted), default=-1)
    return replace(model, frozen=last + 1)


def _part_of(name: str) -> str:
    """Return the part of the model that a layer belongs to: ``"conv1"`` for norm1 and conv1.dropout."""
    return re.sub("^(norm|ffn|virtual)", "conv", name.partition(".")[0])


def build(config: ChemGCNConfig | KipfConfig, header: Header, one_dense_graph: bool = False) -> Gcn:
    """Return the model of `config` for data with this header.

    `one_dense_graph` says that all data is one graph with dense features: Kipf's first convolution then computes
    (A X) W instead of A (X W), equal up to rounding, where that costs less. Parameters do not depend on it.
    """
    if isinstance(config, KipfConfig):
        return Gcn(tuple(_kipf(config, header)), one_dense_graph=one_dense_graph)
    return Gcn(tuple(_chemgcn(config, header)))


def _chemgcn(config: ChemGCNConfig, header: Header) -> list[ModelLayer]:
    layers, ends = _convolutions(config, header)
    width = config.widths[-1]
    if config.jumping_knowledge != "none" and len(ends) > 1:
        cat = config.jumping_knowledge == "cat"
        layers.append((Concatenate if cat else Maximum)("jumping", tuple(ends[:-1])))
        width = sum(config.widths) if cat else width
    for i, out in enumerate(config.dense, 1):
        layers += [Dense(f"dense{i}", width, out), Relu(f"dense{i}.relu"), *_dropout(f"dense{i}", config.dropout)]
        width = out
    if header.level == "graph":
        layers.append(ReadoutLayer("readout", config.readout))
        width *= len(config.readout)
    if joins_graph_features(config, header):
        layers.append(Join(FEATURES, width, header.n_joined))
        width += header.n_joined
    for i, out in enumerate(config.head, 1):
        layers += [Dense(f"head{i}", width, out), Relu(f"head{i}.relu")]
        layers += _dropout(f"head{i}", config.dropout, header.level == "graph")
        width = out
    layers.append(Dense("output", width, header.n_outputs))
    return layers


def _convolutions(config: ChemGCNConfig, header: Header) -> tuple[list[ModelLayer], list[str]]:
    """Return the layers of all graph convolutions, and the name of the last layer of each."""
    layers: list[ModelLayer] = []
    ends: list[str] = []
    width = header.n_features
    for i, out in enumerate(config.widths, 1):
        layers.append(GraphConv(f"conv{i}", width, out, header.n_channels))
        layers.append(_norm(config, f"norm{i}", out) or Relu(f"conv{i}.relu"))
        layers += _dropout(f"conv{i}", config.dropout)
        if config.residual and ends and width == out:
            layers.append(Add(f"conv{i}.residual", ends[-1]))
        if config.ffn:
            layers += _feed_forward(config, i, out, layers[-1].name)
        if config.virtual_node and header.level == "graph" and i < len(config.widths):
            layers.append(VirtualNode(f"virtual{i}", out))
        ends.append(layers[-1].name)
        width = out
    return layers, ends


def _feed_forward(config: ChemGCNConfig, number: int, width: int, before: str) -> list[ModelLayer]:
    """Return the layers of norm(H + ReLU(H W1 + b1) W2 + b2) with ReLU, on the output H of layer `before`."""
    name = f"ffn{number}"
    return [
        Dense(f"{name}.expand", width, 2 * width),
        Relu(f"{name}.relu"),
        *_dropout(name, config.dropout),
        Dense(f"{name}.reduce", 2 * width, width),
        Add(f"{name}.residual", before),
        _norm(config, f"{name}.norm", width) or Relu(f"{name}.out"),
    ]


def _norm(config: ChemGCNConfig, name: str, width: int) -> BatchNormRelu | LayerNormRelu | None:
    """Return the norm with its ReLU; None if there is no norm."""
    if config.norm == "batch":
        return BatchNormRelu(name, width, config.batch_norm_epsilon, config.batch_norm_momentum)
    return LayerNormRelu(name, width, config.layer_norm_epsilon) if config.norm == "layer" else None


def joins_graph_features(config: ChemGCNConfig | KipfConfig, header: Header) -> bool:
    """Return whether the model of `config` joins the features of whole graphs to the readout.

    Raises
    ------
    InputError
        When it must, and the data set has none.
    """
    if isinstance(config, KipfConfig) or config.graph_features == "off":
        return False
    if config.graph_features == "on" and not header.graph_feature_names:
        raise InputError(
            "model.graph_features",
            "'on' for a data set without graph features",
            "a data set with some",
            "Import the molecules with --descriptors, --fingerprint or --feature-columns.",
        )
    return bool(header.graph_feature_names)


def _dropout(name: str, rate: float, of_graphs: bool = False) -> list[Dropout]:
    return [Dropout(f"{name}.dropout", rate, of_graphs)] if rate else []


def _kipf(config: KipfConfig, header: Header) -> list[ModelLayer]:
    if header.level != "node":
        raise InputError(
            "model.kind",
            f"kipf with a {header.level}-level data set",
            "a node-level set",
            "Use model.kind = 'chemgcn'.",
        )
    layers: list[ModelLayer] = []
    width = header.n_features
    for i, out in enumerate((*config.widths, header.n_outputs), 1):
        layers += _dropout(f"conv{i}", config.dropout if i > 1 or config.input_dropout else 0.0)
        layers.append(GraphConv(f"conv{i}", width, out, header.n_channels, bias=False))
        if i <= len(config.widths):
            layers.append(Relu(f"conv{i}.relu"))
        width = out
    return layers


@dataclass(frozen=True)
class Loss:
    """The loss of a target kind: masked sigmoid or softmax cross-entropy, or squared error; or a weighted one.

    Parameters
    ----------
    target : {"binary", "multiclass", "regression"}
    weights : float32, (K,)
        Of positives per task (binary), of classes (multiclass); of regression the delta of huber, else unused.
    weighted : LossKind, optional
        The kind of a loss whose targets are weighted (`gcnbatch.data.weighted_targets`), such as all of kind "absolute"
        and "huber"; None: a plain loss.
    """

    target: str
    weights: NDArray[np.float32]
    weighted: LossKind | None = None

    @property
    def kind(self) -> LossKind:
        """The kind of loss."""
        return self.weighted or PLAIN_LOSSES[self.target]

    def __call__(
        self, ops: Ops, logits: Array, y: Array, weights: Array, totals: Array | None = None
    ) -> tuple[Any, Any, Array]:
        """Return (sum of the loss, sum of its weights, gradient of their quotient by the logits).

        `weights` are the loss's own, in the backend's memory; `totals` as in `Ops`.
        """
        if self.weighted:
            return ops.weighted_loss(logits, y, self.weighted, weights, totals)
        if self.target == "binary":
            return ops.sigmoid_cross_entropy(logits, y, weights, totals)
        if self.target == "multiclass":
            return ops.softmax_cross_entropy(logits, y, weights, totals)
        return ops.mean_squared_error(logits, y, totals)


def uniform_weights(header: Header) -> NDArray[np.float32]:
    """Return weights of 1 for every task or class, float32 (K,)."""
    return np.ones(header.n_outputs, dtype=np.float32)
