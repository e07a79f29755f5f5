"""ReLU and dropout that are computed together, and with the product behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gcnbatch.backends.ops import Array, Reader
from gcnbatch.model.junctions import Junction
from gcnbatch.model.layers import (
    ActivationConv,
    Context,
    Dense,
    Dropout,
    Gradients,
    GraphConv,
    Layer,
    Propagate,
    Relu,
    Weights,
    share_of_zeros,
)
from gcnbatch.model.parameters import ParameterSpec


class Product(Layer, Protocol):
    """A layer that can apply the gradient of the ReLU and dropout before it."""

    def backward(
        self, ctx: Context, dout: Array, saved: Any, need_dh: bool, kept: Any = None
    ) -> tuple[Array | None, Gradients]:
        """As `Layer.backward`; with `kept` of `Ops.relu_dropout`, the first is the gradient by the input of that."""


PRODUCTS = (GraphConv, Dense, Propagate, Weights, ActivationConv)


@dataclass(frozen=True)
class Activated:
    """A product behind ReLU and dropout, which are computed together; named as the product."""

    dropout: Dropout
    product: Product

    @property
    def name(self) -> str:
        """The product's name."""
        return self.product.name

    def specs(self) -> list[ParameterSpec]:
        return self.product.specs()

    def forward(self, ctx: Context, h: Array) -> tuple[Array, Any]:
        propagates = isinstance(self.product, Propagate | ActivationConv)
        reader = Reader(ctx.batch.adjacency, share_of_zeros(ctx, self.dropout.rate)) if propagates else None
        h, kept = self.dropout.behind_relu(ctx, h, reader)
        out, saved = self.product.forward(ctx, h)
        return out, (kept, saved)

    def backward(self, ctx: Context, dout: Array, saved: Any, need_dh: bool) -> tuple[Array | None, Gradients]:
        kept, of_product = saved
        return self.product.backward(ctx, dout, of_product, need_dh, kept)


def reads_adjacency(layer: Layer | Junction) -> bool:
    """Return whether a layer multiplies with the adjacency."""
    product = layer.product if isinstance(layer, Activated) else layer
    return isinstance(product, GraphConv | Propagate | ActivationConv)


def fuse(layers: Sequence[Layer | Junction]) -> tuple[Layer | Junction, ...]:
    """Return the layers with each ReLU, dropout and product in a row as one `Activated`.

    The output of such a ReLU or dropout must not be read by a junction.
    """
    read = {name for layer in layers if isinstance(layer, Junction) for name in layer.others}
    found: list[Layer | Junction] = []
    for layer in layers:
        relu, dropout = found[-2:] if len(found) > 1 else (None, None)
        if (
            isinstance(layer, PRODUCTS)
            and isinstance(dropout, Dropout)
            and isinstance(relu, Relu)
            and read.isdisjoint({relu.name, dropout.name})
        ):
            found[-2:] = [Activated(dropout, layer)]
        else:
            found.append(layer)
    return tuple(found)
