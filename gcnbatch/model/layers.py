"""The layers of a GCN, each with its forward and backward pass side by side.

`forward` returns ``(out, saved)``. `backward` takes the gradient by `out` and `saved`, and returns the gradients by the
input and by the layer's parameters, which overwrite their arrays. A layer keeps no state.

Dimensions: N nodes and B graphs in the batch, C adjacency channels, F features in, P features out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gcnbatch.backends.base import ORIGIN, START, Batch, Clock, Offset
from gcnbatch.backends.ops import Array, Csr, DropoutKey, Ops, Readout
from gcnbatch.data.graph_features import LIMIT
from gcnbatch.model.parameters import ParameterSpec

Parameters = Mapping[str, Array]
Gradients = dict[str, Array]


@dataclass(slots=True, eq=False)  # not frozen: every step makes one, and a frozen one takes longer
class Context:
    """Context of a forward or backward pass: operations, parameters by name, the batch, the position in training.

    `gradients` has the arrays that receive the gradients of parameters, by name; without it, new arrays are made.
    `offset` says where the batch begins, if it is a rank's part of a global batch.
    """

    ops: Ops
    parameters: Parameters
    batch: Batch
    training: bool
    seed: int = 0
    clock: Clock = START
    gradients: Parameters = field(default_factory=dict)
    offset: Offset = ORIGIN


class Layer(Protocol):
    """One layer of the stack."""

    @property
    def name(self) -> str:
        """Unique name in the model, the prefix of the names of its parameters."""

    def specs(self) -> list[ParameterSpec]:
        """Return the layer's parameters."""

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        """Return the output and what the backward pass needs."""

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        """Return the gradients by the input (None unless `need_dh`) and by the parameters; `dout` stays as it is."""


class Parameterless:
    """A layer without parameters."""

    def specs(self) -> list[ParameterSpec]:
        return []


@dataclass(frozen=True)
class GraphConv:
    """Y = sum_c A_c (X W_c + b_c): MatMul, bias Add, SpMM with the sum over channels (papers: ChemGCN; Kipf without b).

    `weight` is (F, C*P), `bias` (C*P,); channel c owns columns c*P … (c+1)*P-1. X may be sparse (Csr); then there is no
    gradient by X.
    """

    name: str
    n_in: int
    n_out: int
    n_channels: int = 1
    bias: bool = True

    def specs(self) -> list[ParameterSpec]:
        return _product_specs(self.name, self.n_in, self.n_out, self.n_channels, self.bias)

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        graphs, of = ctx.batch.adjacency, ctx.parameters
        if self.bias and not isinstance(h, Csr):
            return ctx.ops.convolve(graphs, h, of[f"{self.name}.weight"], of[f"{self.name}.bias"])
        return ctx.ops.spmm(graphs, product_forward(ctx, h, self.name, self.bias, graphs)), h

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        graphs = ctx.batch.adjacency
        if self.bias and not isinstance(saved, Csr):  # then `convolve` has returned it
            weight, bias = f"{self.name}.weight", f"{self.name}.bias"
            out = gradients_of(ctx, weight, bias)
            dh, dw, db = ctx.ops.convolve_backward(graphs, dout, saved, ctx.parameters[weight], need_dh, out)
            return dh, {weight: dw, bias: db}
        dz = ctx.ops.spmm_backward(graphs, dout)
        return product_backward(ctx, dz, saved, self.name, self.bias, need_dh, graphs)


@dataclass(frozen=True)
class Dense:
    """Y = X W + b, on nodes or on graphs. `weight` (F, P), `bias` (P,)."""

    name: str
    n_in: int
    n_out: int
    bias: bool = True

    def specs(self) -> list[ParameterSpec]:
        return _product_specs(self.name, self.n_in, self.n_out, 1, self.bias)

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        return product_forward(ctx, h, self.name, self.bias), h

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        return product_backward(ctx, dout, saved, self.name, self.bias, need_dh)


@dataclass(frozen=True)
class Propagate(Parameterless):
    """Y = A X: the aggregation of a convolution (A X) W; a `Dense` without bias follows. One channel; X dense."""

    name: str

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        return ctx.ops.spmm(ctx.batch.adjacency, h), None

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        return (ctx.ops.spmm_backward(ctx.batch.adjacency, dout) if need_dh else None), {}


@dataclass(frozen=True)
class BatchNormRelu:
    """Batch norm over the N nodes of the batch, then ReLU; running statistics in inference. All arrays (P,)."""

    name: str
    width: int
    epsilon: float
    momentum: float

    def specs(self) -> list[ParameterSpec]:
        shape = (self.width,)
        return [
            ParameterSpec(f"{self.name}.gamma", shape, "ones"),
            ParameterSpec(f"{self.name}.beta", shape, "zeros"),
            ParameterSpec(f"{self.name}.running_mean", shape, "zeros", trainable=False),
            ParameterSpec(f"{self.name}.running_var", shape, "ones", trainable=False, negative=False),
        ]

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        of, name = ctx.parameters, self.name
        arrays = (of[f"{name}.gamma"], of[f"{name}.beta"], of[f"{name}.running_mean"], of[f"{name}.running_var"])
        return ctx.ops.batch_norm(h, *arrays, self.epsilon, self.momentum, ctx.training, relu=True)

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        gamma, beta = f"{self.name}.gamma", f"{self.name}.beta"
        out = gradients_of(ctx, gamma, beta)
        dh, dgamma, dbeta = ctx.ops.batch_norm_backward(dout, saved, ctx.parameters[gamma], out)
        return dh, {gamma: dgamma, beta: dbeta}


@dataclass(frozen=True)
class LayerNormRelu:
    """Layer norm of each node over its columns, then ReLU. `gamma`, `beta` (P,)."""

    name: str
    width: int
    epsilon: float

    def specs(self) -> list[ParameterSpec]:
        shape = (self.width,)
        return [ParameterSpec(f"{self.name}.gamma", shape, "ones"), ParameterSpec(f"{self.name}.beta", shape, "zeros")]

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        gamma, beta = (ctx.parameters[f"{self.name}.{part}"] for part in ("gamma", "beta"))
        return ctx.ops.layer_norm(h, gamma, beta, self.epsilon, relu=True)

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        gamma, beta = f"{self.name}.gamma", f"{self.name}.beta"
        out = gradients_of(ctx, gamma, beta)
        dh, dgamma, dbeta = ctx.ops.layer_norm_backward(dout, saved, ctx.parameters[gamma], out)
        return dh, {gamma: dgamma, beta: dbeta}


@dataclass(frozen=True)
class Relu(Parameterless):
    """max(x, 0), in place: no layer needs the output of a product once the next layer has read it."""

    name: str

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        y = ctx.ops.relu(h, out=h)
        return y, y

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        return ctx.ops.relu_backward(dout, saved), {}


@dataclass(frozen=True)
class Dropout(Parameterless):
    """Dropout in training, the identity in inference. On sparse features it drops stored values.

    `of_graphs`: its rows are graphs, not nodes.
    """

    name: str
    rate: float
    of_graphs: bool = False

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        if not ctx.training:
            return h, None
        if isinstance(h, Csr):
            data, _ = ctx.ops.dropout(h.data, self.rate, self.key(ctx, h))
            return replace(h, data=data), None
        return ctx.ops.dropout(h, self.rate, self.key(ctx, h))

    def key(self, ctx: Context, h: Array) -> DropoutKey:
        """Return the key of the mask of `h` in this step."""
        row = ctx.offset.graphs if self.of_graphs else ctx.offset.nodes
        first = ctx.offset.entries if isinstance(h, Csr) else row * h.shape[1]
        return DropoutKey(ctx.seed, self.name, *ctx.clock, first)

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        return (ctx.ops.dropout_backward(dout, saved, self.rate) if need_dh else None), {}


@dataclass(frozen=True)
class Join:
    """Graphs (B, P) with their scaled features: (B, P + D).

    `mean` and `scale` (D,) are fitted before training and not trained.
    """

    name: str
    n_in: int
    n_features: int

    def specs(self) -> list[ParameterSpec]:
        shape = (self.n_features,)
        return [
            ParameterSpec(f"{self.name}.mean", shape, "zeros", trainable=False),
            ParameterSpec(f"{self.name}.scale", shape, "ones", trainable=False, negative=False),
        ]

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        features = ctx.batch.graph_features
        assert features is not None
        mean, scale = (ctx.parameters[f"{self.name}.{part}"] for part in ("mean", "scale"))
        return ctx.ops.join(h, features, mean, scale, LIMIT), None

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        return (ctx.ops.join_backward(dout, self.n_in) if need_dh else None), {}


@dataclass(frozen=True)
class ReadoutLayer(Parameterless):
    """Nodes (N, P) to graphs (B, R P): sum, mean or maximum of each graph's rows, or R of them side by side."""

    name: str
    kinds: tuple[Readout, ...]

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        found = [ctx.ops.readout(h, ctx.batch.node_ptr, kind) for kind in self.kinds]
        parts, saved = [part for part, _ in found], [kept for _, kept in found]
        return parts[0] if len(parts) == 1 else ctx.ops.concatenate(parts), (saved, parts[0].shape[1])

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        kept, width = saved
        several = len(self.kinds) > 1
        parts = ctx.ops.concatenate_backward(dout, [width] * len(self.kinds)) if several else (dout,)
        dh: Array | None = None
        for part, kind, own in zip(parts, self.kinds, kept, strict=True):
            dpart = ctx.ops.readout_backward(part, ctx.batch.node_ptr, kind, own)
            dh = dpart if dh is None else ctx.ops.add(dh, dpart)
        return dh, {}


@dataclass(frozen=True)
class VirtualNode:
    """Y = H + v: each node of a graph receives v = ReLU(mean of the graph's rows of H times W + b), (B, P).

    Source: Gilmer et al.: "Neural message passing for quantum chemistry", ICML 2017. Here, the node keeps no state
    between layers, and reads the mean, so that large graphs do not outweigh small ones. `weight` (P, P), `bias` (P,).
    """

    name: str
    width: int

    def specs(self) -> list[ParameterSpec]:
        return Dense(self.name, self.width, self.width).specs()

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        r, kept = ctx.ops.readout(h, ctx.batch.node_ptr, "mean")
        v = product_forward(ctx, r, self.name)
        v = ctx.ops.relu(v, out=v)
        return ctx.ops.add(h, ctx.ops.readout_backward(v, ctx.batch.node_ptr, "sum", kept)), (r, kept, v)

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        r, kept, v = saved
        dv = ctx.ops.readout(dout, ctx.batch.node_ptr, "sum")[0]
        dr, gradients = product_backward(ctx, ctx.ops.relu_backward(dv, v, out=dv), r, self.name, True, need_dh)
        if dr is None:
            return None, gradients
        return ctx.ops.add(dout, ctx.ops.readout_backward(dr, ctx.batch.node_ptr, "mean", kept)), gradients


def _product_specs(name: str, n_in: int, n_out: int, channels: int, bias: bool) -> list[ParameterSpec]:
    width = channels * n_out
    weight = ParameterSpec(f"{name}.weight", (n_in, width), "glorot", (n_in, n_out), decays=True)
    return [weight, ParameterSpec(f"{name}.bias", (width,), "zeros")] if bias else [weight]


def product_forward(ctx: Context, h: Array, name: str, bias: bool = True, graphs: Any = None) -> Array:
    """Return H W, with a bias H W + b, for the weight and bias of layer `name`."""
    ops, of, weight = ctx.ops, ctx.parameters, f"{name}.weight"
    if isinstance(h, Csr):
        product = ops.sparse_matmul(h, of[weight])
        return ops.bias_add(product, of[f"{name}.bias"], graphs, out=product) if bias else product
    if bias:
        return ops.linear(h, of[weight], of[f"{name}.bias"], graphs)
    return ops.matmul(h, of[weight], graphs)


def gradients_of(ctx: Context, first: str, second: str) -> tuple[Array, Array] | None:
    """Return the arrays that receive the gradients of two parameters of a layer; None: new ones are made."""
    return (ctx.gradients[first], ctx.gradients[second]) if first in ctx.gradients else None


def product_backward(
    ctx: Context, dy: Array, h: Array, name: str, bias: bool, need_dh: bool, graphs: Any = None
) -> tuple[Array | None, Gradients]:
    """Return the gradients of H W, with a bias of H W + b, by H (None unless `need_dh`) and by the parameters."""
    ops, into, weight = ctx.ops, ctx.gradients.get, f"{name}.weight"
    if isinstance(h, Csr):
        db = {f"{name}.bias": ops.bias_add_backward(dy, into(f"{name}.bias"), graphs)} if bias else {}
        return None, {weight: ops.sparse_matmul_backward(dy, h, into(weight)), **db}
    if not bias:
        dh, dw = ops.matmul_backward(dy, h, ctx.parameters[weight], need_dh, into(weight), graphs)
        return dh, {weight: dw}
    out = gradients_of(ctx, weight, f"{name}.bias")
    dh, dw, db = ops.linear_backward(dy, h, ctx.parameters[weight], need_dh, out, graphs)
    return dh, {weight: dw, f"{name}.bias": db}
