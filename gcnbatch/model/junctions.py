"""Layers that read outputs of earlier layers, too: residual connections and jumping knowledge.

`forward` also takes the outputs of `others`. `backward` returns the gradients by the output of the layer before and by
those of `others`. Otherwise as the layers of `gcnbatch.model.layers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gcnbatch.backends.ops import Array
from gcnbatch.model.layers import (
    BatchNormRelu,
    Context,
    Dense,
    Dropout,
    GraphConv,
    Join,
    LayerNormRelu,
    Parameterless,
    ReadoutLayer,
    Relu,
    VirtualNode,
)


@dataclass(frozen=True)
class Add(Parameterless):
    """Sum of the output of the layer before and that of an earlier layer: a residual connection."""

    name: str
    of: str

    @property
    def others(self) -> tuple[str, ...]:
        """The earlier layers whose outputs it reads."""
        return (self.of,)

    def forward(self, ctx: Context, h: Array, *others: Array) -> tuple[Array, Any]:
        return ctx.ops.add(h, *others), None

    def backward(self, ctx: Context, dout: Array, saved: Any) -> tuple[Array, ...]:
        return dout, dout


@dataclass(frozen=True)
class Concatenate(Parameterless):
    """Outputs of earlier layers, in their order, and of the layer before, side by side (jumping knowledge).

    Source: Xu et al.: "Representation learning on graphs with jumping knowledge networks", ICML 2018.
    """

    name: str
    others: tuple[str, ...]

    def forward(self, ctx: Context, h: Array, *others: Array) -> tuple[Array, Any]:
        parts = (*others, h)
        return ctx.ops.concatenate(parts), [part.shape[1] for part in parts]

    def backward(self, ctx: Context, dout: Array, saved: Any) -> tuple[Array, ...]:
        *others, own = ctx.ops.concatenate_backward(dout, saved)
        return own, *others


@dataclass(frozen=True)
class Maximum(Parameterless):
    """The largest of the outputs of earlier layers and of the layer before, by element (jumping knowledge).

    Source: as `Concatenate`. All have one width. Of equal values the earliest has the gradient.
    """

    name: str
    others: tuple[str, ...]

    def forward(self, ctx: Context, h: Array, *others: Array) -> tuple[Array, Any]:
        largest, *parts = *others, h
        saved = []
        for part in parts:
            saved.append((largest, part))
            largest = ctx.ops.maximum(largest, part)
        return largest, saved

    def backward(self, ctx: Context, dout: Array, saved: Any) -> tuple[Array, ...]:
        found: list[Array] = []
        for largest, part in reversed(saved):
            dout, d = ctx.ops.maximum_backward(dout, largest, part)
            found.append(d)
        own, *others = found
        return own, dout, *reversed(others)


Junction = Add | Concatenate | Maximum
# What a model is built of: where code handles each kind, mypy finds one that is missing.
ModelLayer = (
    BatchNormRelu | Dense | Dropout | GraphConv | Join | Junction | LayerNormRelu | ReadoutLayer | Relu | VirtualNode
)
