"""Layer normalisation of each row over its columns.

Source: Ba, Kiros, Hinton: "Layer normalization", arXiv 1607.06450, 2016.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcnbatch.reference.arrays import Float, into

Saved = tuple[Float, Float, NDArray[np.bool_] | None]


def layer_norm(x: Float, gamma: Float, beta: Float, epsilon: float, relu: bool = False) -> tuple[Float, Saved]:
    """Return y = gamma x̂ + beta with x̂ = (x - mean) / sqrt(var + epsilon), row by row of x (N, P).

    Parameters
    ----------
    x : (N, P)
    gamma, beta : (P,)
    epsilon : float
    relu : bool
        Apply ReLU to y.

    Returns
    -------
    y : (N, P)
    saved : (x̂ (N, P), 1 / sqrt(var + epsilon) (N, 1), y > 0 (N, P) or None without `relu`)
    """
    width = x.shape[1]
    mean = x.sum(axis=1)[:, None] / width
    var = ((x - mean) ** 2).sum(axis=1)[:, None] / width
    inverse_std = 1 / np.sqrt(var + epsilon)
    x_hat = (x - mean) * inverse_std
    y = gamma * x_hat + beta
    if not relu:
        return y, (x_hat, inverse_std, None)
    y = np.maximum(y, 0)
    return y, (x_hat, inverse_std, y > 0)


def layer_norm_backward(
    dy: Float, saved: Saved, gamma: Float, out: tuple[Float, Float] | None = None
) -> tuple[Float, Float, Float]:
    """Gradients (dx (N, P), dgamma (P,), dbeta (P,)) of `layer_norm`; mean and variance of a row depend on x too.

    dbeta = sum_n dy, dgamma = sum_n dy x̂; with g = dy gamma and means over the columns of a row,
    dx = (g - mean(g) - x̂ mean(g x̂)) / sqrt(var + epsilon). With ReLU, dy is first set to 0 where y is not positive.
    """
    x_hat, inverse_std, positive = saved
    if positive is not None:
        dy = np.where(positive, dy, np.zeros_like(dy))
    width = dy.shape[1]
    g = dy * gamma
    of_g, of_product = (g.sum(axis=1)[:, None] / width, (g * x_hat).sum(axis=1)[:, None] / width)
    dx = inverse_std * (g - of_g - x_hat * of_product)
    dgamma, dbeta = (dy * x_hat).sum(axis=0), dy.sum(axis=0)
    if out is None:
        return dx, dgamma, dbeta
    return dx, into(out[0], dgamma), into(out[1], dbeta)
