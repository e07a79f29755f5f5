"""Bias addition."""

from __future__ import annotations

from gcnbatch.reference.arrays import Float, into


def bias_add(y: Float, b: Float, graphs: object = None, out: Float | None = None) -> Float:
    """Add b (P,) to every row of Y (N, P): (N, P)."""
    return into(out, y + b)


def bias_add_backward(dy: Float, out: Float | None = None, graphs: object = None) -> Float:
    """Gradient of `bias_add` by b: column sums of dY (N, P), (P,); zeros when N = 0. The gradient by Y is dY."""
    return into(out, dy.sum(axis=0))
