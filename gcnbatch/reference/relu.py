"""Rectified linear unit."""

from __future__ import annotations

import numpy as np

from gcnbatch.reference.arrays import Float, into


def relu(x: Float, out: Float | None = None) -> Float:
    """max(x, 0) of an array of any shape."""
    return into(out, np.maximum(x, 0))


def relu_backward(dy: Float, y: Float, out: Float | None = None) -> Float:
    """Gradient of `relu`: dY where y > 0, else 0 (so 0 at x = 0); `y` is what `relu` returned."""
    return into(out, np.where(y > 0, dy, np.zeros_like(dy)))
