"""The fusion pass: it replaces neighbouring layers of a model by fused ones, which compute the same in less time.

A model is a list of plain layers (`gcnbatch.model.layers`). `fuse` rewrites it once, before the first step. This module
alone knows about the arguments `zeros`, `kept` and `reader` of `Ops`. docs/FUSION.md describes the patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gcnbatch.backends.ops import Array, Reader
from gcnbatch.data.graph_features import LIMIT
from gcnbatch.model.junctions import Junction
from gcnbatch.model.layers import (
    Context,
    Dense,
    Dropout,
    Gradients,
    GraphConv,
    Join,
    Layer,
    Parameterless,
    Propagate,
    Relu,
    gradients_of,
    product_backward,
    product_forward,
)
from gcnbatch.model.parameters import ParameterSpec

ACTIVE = 0.5  # expected share of sums before a ReLU that are positive


@dataclass(frozen=True)
class FusedProduct:
    """A plain product, with ReLU and `dropout` before it if that is not None.

    `after` is the dropout rate of a ReLU that a convolution's output enters, or None: its gradient has many zeros.
    """

    product: GraphConv | Dense
    dropout: Dropout | None = None
    after: float | None = None

    @property
    def name(self) -> str:
        """The product's name."""
        return self.product.name

    def specs(self) -> list[ParameterSpec]:
        return self.product.specs()

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        product, graphs = self.product, None
        h, kept = _relu_dropout(ctx, self.dropout, h)
        if isinstance(product, Dense):
            return product_forward(ctx, h, self.name), (kept, h)
        graphs = ctx.batch.adjacency
        return ctx.ops.spmm(graphs, product_forward(ctx, h, self.name, product.bias, graphs)), (kept, h)

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        kept, x = saved
        product, graphs = self.product, None
        if isinstance(product, GraphConv):
            graphs = ctx.batch.adjacency
            dout = ctx.ops.spmm_backward(graphs, dout, _zeros(ctx, self.after))
        apart = kept is not None and need_dh  # then the product that gives dX also applies `kept`
        dh, gradients = product_backward(ctx, dout, x, self.name, product.bias, need_dh and not apart, graphs)
        if apart:
            dh = ctx.ops.matmul_dx(dout, ctx.parameters[f"{self.name}.weight"], graphs, kept)
        return dh, gradients


@dataclass(frozen=True)
class FusedPropagate(Parameterless):
    """Y = A X, where X is the output of a ReLU with dropout of `rate`; with that ReLU and `dropout` if it is not None.

    A `Dense` without bias follows.
    """

    name: str
    rate: float
    dropout: Dropout | None = None

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        reader = Reader(ctx.batch.adjacency, _zeros(ctx, self.rate))
        h, kept = _relu_dropout(ctx, self.dropout, h, reader)
        return ctx.ops.spmm(reader.adjacency, h, reader.zeros), kept

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        if not need_dh:
            return None, {}
        dh = ctx.ops.spmm_backward(ctx.batch.adjacency, dout)
        return (dh if saved is None else ctx.ops.relu_dropout_backward(dh, saved, out=dh)), {}


@dataclass(frozen=True)
class FusedConv:
    """Y = (A X) W with gradient (Aᵀ dY) Wᵀ by X, between two ReLUs; with the first one and `dropout` if it is not None.

    Both sparse products read a matrix with many zeros, X and dY; in A (X W), or Aᵀ (dY Wᵀ), one of them would not.
    `rate` and `after` are the dropout rates of the ReLUs before and after it. One channel.
    """

    conv: GraphConv
    rate: float
    after: float
    dropout: Dropout | None = None

    @property
    def name(self) -> str:
        """The convolution's name."""
        return self.conv.name

    def specs(self) -> list[ParameterSpec]:
        return self.conv.specs()

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        reader = Reader(ctx.batch.adjacency, _zeros(ctx, self.rate))
        h, kept = _relu_dropout(ctx, self.dropout, h, reader)
        h = ctx.ops.spmm(reader.adjacency, h, reader.zeros)
        return ctx.ops.matmul(h, ctx.parameters[f"{self.name}.weight"]), (kept, h)

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        kept, p = saved
        _, gradients = product_backward(ctx, dout, p, self.name, False, False)
        del p, saved  # with many nodes, there is no memory for P, dP and both other gradients at once
        if not need_dh:
            return None, gradients
        dp = ctx.ops.spmm_backward(ctx.batch.adjacency, dout, _zeros(ctx, self.after))
        del dout
        return ctx.ops.matmul_dx(dp, ctx.parameters[f"{self.name}.weight"], kept=kept), gradients


@dataclass(frozen=True)
class FusedJoin:
    """Y = X W + b, where X has the scaled features of graphs beside the readout. The features need no gradient."""

    join: Join
    dense: Dense

    @property
    def name(self) -> str:
        """The product's name."""
        return self.dense.name

    def specs(self) -> list[ParameterSpec]:
        return [*self.join.specs(), *self.dense.specs()]

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        features, of = ctx.batch.graph_features, ctx.parameters
        assert features is not None
        mean, scale = (of[f"{self.join.name}.{part}"] for part in ("mean", "scale"))
        weight, bias = (of[f"{self.name}.{part}"] for part in ("weight", "bias"))
        return ctx.ops.join_linear(h, features, mean, scale, LIMIT, weight, bias)

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        weight, bias = f"{self.name}.weight", f"{self.name}.bias"
        given = dout, saved, ctx.parameters[weight], self.join.n_in
        dh, dw, db = ctx.ops.join_linear_backward(*given, need_dh, gradients_of(ctx, weight, bias))
        return dh, {weight: dw, bias: db}


class Fused(NamedTuple):
    """Layers as they are computed, and the number of leading ones that are frozen."""

    layers: tuple[Layer | Junction, ...]
    frozen: int


def fuse(layers: Sequence[Layer | Junction], frozen: int = 0, one_dense_graph: bool = False) -> Fused:
    """Return the layers as they are computed.

    Frozen layers are not joined with their neighbours. The output of a ReLU or dropout that a junction reads stays.

    Parameters
    ----------
    layers : sequence of layers
        Plain ones.
    frozen : int
        Number of leading layers that are frozen.
    one_dense_graph : bool
        Whether all data is one graph with dense features: A X of the features may then be computed first.
    """
    read = {name for layer in layers if isinstance(layer, Junction) for name in layer.others}
    found: list[Layer | Junction] = []
    n_frozen = 0
    for i, layer in enumerate(layers):
        before = layers[i - 1] if i > frozen else None
        if isinstance(before, Join) and isinstance(layer, Dense):
            found[-1] = FusedJoin(before, layer)
            continue
        relu, dropout = layers[i - 2 : i] if i - 2 >= frozen else (None, None)
        joined = None
        if isinstance(relu, Relu) and isinstance(dropout, Dropout) and read.isdisjoint({relu.name, dropout.name}):
            joined = dropout
        product = _product(layers, i, joined, one_dense_graph)
        if joined is not None and product is not None:
            del found[-2:]
        found += [layer] if product is None else product
        n_frozen = len(found) if i < frozen else n_frozen
    return Fused(tuple(found), n_frozen)


def reads_adjacency(layer: Layer | Junction) -> bool:
    """Return whether a layer multiplies with the adjacency."""
    product = layer.product if isinstance(layer, FusedProduct) else layer
    return isinstance(product, GraphConv | Propagate | FusedPropagate | FusedConv)


def _product(
    layers: Sequence[Layer | Junction], i: int, dropout: Dropout | None, one_dense_graph: bool
) -> list[Layer] | None:
    """Return layer `i` as it is computed, with ReLU and `dropout` before it if not None; None if it is no product."""
    layer = layers[i]
    if isinstance(layer, GraphConv) and not layer.bias:
        return _convolution(layers, i, layer, dropout, one_dense_graph)
    if isinstance(layer, GraphConv | Dense):
        return [layer if dropout is None else FusedProduct(layer, dropout)]
    return None


def _convolution(
    layers: Sequence[Layer | Junction], i: int, conv: GraphConv, dropout: Dropout | None, one_dense_graph: bool
) -> list[Layer]:
    """Return Y = A X W in the cheaper order, which depends on whether X comes from a ReLU and Y enters one."""
    padded = (None, None, *layers, None, None)
    before2, before1, _, after1, after2 = padded[i : i + 5]
    before = _rate(before2, before1) if isinstance(before1, Dropout) else _rate(before1, None)
    after = _rate(after1, after2)
    of_features = all(isinstance(layer, Dropout) for layer in layers[:i])
    if conv.n_channels == 1:
        weights = Dense(conv.name, conv.n_in, conv.n_out, bias=False)
        if of_features and one_dense_graph and (i == 0 or conv.n_in < 2 * conv.n_out):
            return [Propagate(f"{conv.name}.propagate"), weights]
        if before is not None and conv.n_in < conv.n_out:
            return [FusedPropagate(f"{conv.name}.propagate", before, dropout), weights]
        if before is not None and after is not None and conv.n_in == conv.n_out:
            return [FusedConv(conv, before, after, dropout)]
    return [conv if dropout is None and after is None else FusedProduct(conv, dropout, after)]


def _rate(relu: Layer | Junction | None, dropout: Layer | Junction | None) -> float | None:
    """Return the dropout rate after a ReLU; None if the first layer is no ReLU."""
    if not isinstance(relu, Relu):
        return None
    return dropout.rate if isinstance(dropout, Dropout) else 0.0


def _zeros(ctx: Context, rate: float | None) -> float:
    """Return the expected share of zeros after a ReLU with dropout of this rate; without a ReLU (None), 0."""
    return 0.0 if rate is None else 1 - ACTIVE * (1 - rate * ctx.training)


def _relu_dropout(ctx: Context, dropout: Dropout | None, h: Array, reader: Reader | None = None) -> tuple[Array, Any]:
    """Return dropout of ReLU of `h`, which is overwritten, and what the gradient by `h` needs; without dropout, `h`."""
    if dropout is None:
        return h, None
    if not ctx.training:
        return ctx.ops.relu(h, out=h), None
    return ctx.ops.relu_dropout(h, dropout.rate, dropout.key(ctx, h), out=h, reader=reader)
