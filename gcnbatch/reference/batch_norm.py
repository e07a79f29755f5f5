"""Batch normalisation over the nodes of a batch.

Source: Ioffe, Szegedy: "Batch normalization: accelerating deep network training by reducing internal covariate shift",
ICML 2015. A batch is ragged, so the statistics are those of the N real nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcnbatch.reference.arrays import Float, into

Saved = tuple[Float, Float, NDArray[np.bool_] | None]


def batch_norm(
    x: Float,
    gamma: Float,
    beta: Float,
    running_mean: Float,
    running_var: Float,
    epsilon: float,
    momentum: float,
    training: bool,
    relu: bool = False,
) -> tuple[Float, Saved]:
    """Return y = gamma x̂ + beta with x̂ = (x - mean) / sqrt(var + epsilon), column by column of x (N, P).

    Parameters
    ----------
    x : (N, P)
    gamma, beta : (P,)
    running_mean, running_var : (P,)
        Training changes them in place: running = (1 - momentum) running + momentum batch. The batch's variance is
        then the unbiased one, N / (N - 1) times the biased one (N = 1: the biased one). N = 0 changes nothing.
    epsilon, momentum : float
    training : bool
        True: use the batch's mean and biased variance. False: use the running ones.
    relu : bool
        Apply ReLU to y.

    Returns
    -------
    y : (N, P)
    saved : (x̂ (N, P), 1 / sqrt(var + epsilon) (P,), y > 0 (N, P) or None without `relu`)
    """
    n = len(x)
    mean, var = running_mean, running_var
    if training and n > 0:
        mean = x.sum(axis=0) / n
        var = ((x - mean) ** 2).sum(axis=0) / n
        running_mean[:] = (1 - momentum) * running_mean + momentum * mean
        running_var[:] = (1 - momentum) * running_var + momentum * (n / max(n - 1, 1)) * var
    inverse_std = 1 / np.sqrt(var + epsilon)
    x_hat = (x - mean) * inverse_std
    y = gamma * x_hat + beta
    if not relu:
        return y, (x_hat, inverse_std, None)
    y = np.maximum(y, 0)
    return y, (x_hat, inverse_std, y > 0)


def batch_norm_backward(
    dy: Float, saved: Saved, gamma: Float, out: tuple[Float, Float] | None = None
) -> tuple[Float, Float, Float]:
    """Gradients (dx (N, P), dgamma (P,), dbeta (P,)) of a training `batch_norm`; mean and variance depend on x too.

    dbeta = sum_n dy, dgamma = sum_n dy x̂, dx = gamma / sqrt(var + epsilon) (dy - dbeta / N - x̂ dgamma / N). With
    ReLU, dy is first set to 0 where y is not positive. N = 0 gives dgamma = dbeta = 0.
    """
    x_hat, inverse_std, positive = saved
    if positive is not None:
        dy = np.where(positive, dy, np.zeros_like(dy))
    n = max(len(dy), 1)
    dbeta = dy.sum(axis=0)
    dgamma = (dy * x_hat).sum(axis=0)
    dx = gamma * inverse_std * (dy - dbeta / n - x_hat * dgamma / n)
    if out is None:
        return dx, dgamma, dbeta
    return dx, into(out[0], dgamma), into(out[1], dbeta)
