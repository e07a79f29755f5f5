"""A matrix product with a bias."""

from __future__ import annotations

from gcnbatch.reference.arrays import Float
from gcnbatch.reference.bias import bias_add, bias_add_backward
from gcnbatch.reference.matmul import matmul, matmul_backward


def linear(x: Float, w: Float, b: Float, graphs: object = None) -> Float:
    """Y = X W + b, (N, P), for X (N, F), W (F, P) and b (P,), which is added to every row."""
    return bias_add(matmul(x, w), b)


def linear_backward(
    dy: Float,
    x: Float,
    w: Float,
    need_dx: bool = True,
    out: tuple[Float, Float] | None = None,
    graphs: object = None,
) -> tuple[Float | None, Float, Float]:
    """Gradients of `linear`: dX = dY Wᵀ, None unless `need_dx`, dW = Xᵀ dY, db = column sums of dY; out: (dw, db)."""
    dw, db = out or (None, None)
    return *matmul_backward(dy, x, w, need_dx, dw), bias_add_backward(dy, db)
