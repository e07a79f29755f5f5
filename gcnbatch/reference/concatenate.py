"""Concatenation by columns, sums and maxima of arrays: how layers with several inputs join them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcnbatch.reference.arrays import Float


def add(a: Float, b: Float) -> Float:
    """Y = A + B, any shape. The gradient by A and by B is dY."""
    return a + b


def take(x: Float, rows: NDArray[np.int32]) -> Float:
    """Rows of X (N, P) by number, (M,), in their order: (M, P)."""
    return x[rows]


def maximum(a: Float, b: Float) -> Float:
    """Y = the larger of A and B by element, any shape; NaN where one of them is."""
    return np.maximum(a, b)


def maximum_backward(dy: Float, a: Float, b: Float) -> tuple[Float, Float]:
    """Gradients of `maximum` by A and B: dY goes to the larger one, to A where they are equal."""
    first = a >= b
    return np.where(first, dy, 0).astype(dy.dtype), np.where(first, 0, dy).astype(dy.dtype)


def concatenate(parts: Sequence[Float]) -> Float:
    """Y = [X_1, X_2, …], (N, P_1 + P_2 + …), for X_i (N, P_i)."""
    return np.concatenate(list(parts), axis=1)


def concatenate_backward(dy: Float, widths: Sequence[int]) -> tuple[Float, ...]:
    """Gradients of `concatenate` by each X_i: the columns of dY that X_i wrote, (N, P_i)."""
    ends = np.cumsum(widths)
    return tuple(dy[:, end - width : end].copy() for width, end in zip(widths, ends, strict=True))
