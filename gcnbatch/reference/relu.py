"""Rectified linear unit."""

from __future__ import annotations

import numpy as np

from gcnbatch.reference.arrays import Float


def relu(x: Float) -> Float:
    """max(x, 0), any shape."""
    return np.maximum(x, 0)


def relu_backward(dy: Float, y: Float) -> Float:
    """Gradient of `relu`: dY where y > 0, else 0 (so 0 at x = 0); `y` is what `relu` returned."""
    return np.where(y > 0, dy, np.zeros_like(dy))
