"""Matrix products: dense features, and sparse features in compressed rows, times dense weights."""

from __future__ import annotations

import numpy as np

from gcnbatch.data.sparse import Csr
from gcnbatch.reference.arrays import Float, into
from gcnbatch.reference.relu_dropout import Kept, relu_dropout_backward


def matmul(x: Float, w: Float, graphs: object = None) -> Float:
    """Y = X W, (N, P), for X (N, F) and W (F, P). N = 0 gives an array without rows."""
    return x @ w


def matmul_backward(
    dy: Float, x: Float, w: Float, need_dx: bool = True, out: Float | None = None, graphs: object = None
) -> tuple[Float | None, Float]:
    """Gradients of `matmul`: dX = dY Wᵀ (N, F), None unless `need_dx`, and dW = Xᵀ dY (F, P), zeros when N = 0."""
    dx = dy @ w.T if need_dx else None
    return dx, into(out, x.T @ dy)


def matmul_dx(dy: Float, w: Float, graphs: object = None, kept: Kept | None = None) -> Float:
    """Gradient of `matmul` by X alone: dX = dY Wᵀ, (N, F); with `kept`, by the input of the `relu_dropout` before."""
    dx = dy @ w.T
    return dx if kept is None else relu_dropout_backward(dx, kept)


def sparse_matmul(x: Csr, w: Float) -> Float:
    """Y = X W, (N, P), for sparse X (N, F) and W (F, P): y_n = sum of a w_f over the entries (f, a) of row n.

    Repeated entries of a row add up; a row without entries gives zeros.
    """
    n_rows = len(x.indptr) - 1
    y = np.zeros((n_rows, w.shape[1]), dtype=w.dtype)
    for n in range(n_rows):
        for entry in range(x.indptr[n], x.indptr[n + 1]):
            y[n] += x.data[entry] * w[x.indices[entry]]
    return y


def sparse_matmul_backward(dy: Float, x: Csr, out: Float | None = None) -> Float:
    """Gradient of `sparse_matmul` by W: dW = Xᵀ dY (F, P); a feature without entries gets zeros.

    The entry a of X in row n, column f adds a w_f to y_n, hence a dy_n to dw_f.
    """
    dw = np.zeros((x.n_cols, dy.shape[1]), dtype=dy.dtype)
    for n in range(len(dy)):
        for entry in range(x.indptr[n], x.indptr[n + 1]):
            dw[x.indices[entry]] += x.data[entry] * dy[n]
    return into(out, dw)
