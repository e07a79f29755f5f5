"""Losses with missing labels. Each returns (sum, weight, gradient of sum / weight by the logits).

A loss returns sum and weight separately, so that an epoch's mean covers all its labels. Without any label both are 0
and so is the gradient. With `totals` (2,), a loss adds both to it in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.reference.arrays import Float


def softplus(z: Float) -> Float:
    """log(1 + exp(z)) as max(z, 0) + log(1 + exp(-|z|)), which cannot overflow."""
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


def sigmoid(z: Float) -> Float:
    """1 / (1 + exp(-z)) as exp(-softplus(-z)), which cannot overflow."""
    return np.exp(-softplus(-z))


def sigmoid_cross_entropy(
    logits: Float, y: Float, pos_weight: Float, totals: Float | None = None
) -> tuple[Any, int, Float]:
    """Masked sigmoid cross-entropy of R rows and K independent tasks.

    An entry with label y costs pos_weight y softplus(-z) + (1 - y) softplus(z), that is
    -pos_weight y log p - (1 - y) log(1 - p) with p = sigmoid(z); its derivative is (1 - y) p - pos_weight y (1 - p).

    Parameters
    ----------
    logits : (R, K)
    y : (R, K)
        0, 1, or NaN where missing.
    pos_weight : (K,)
        Weight of the positive labels of each task. It scales the sum, not the number.

    Returns
    -------
    total : scalar
    number : int
        Labelled entries.
    dlogits : (R, K)
        0 where missing.
    """
    labelled = ~np.isnan(y)
    positive = np.where(labelled, y, 0).astype(logits.dtype)
    cost = pos_weight * positive * softplus(-logits) + (1 - positive) * softplus(logits)
    slope = (1 - positive) * sigmoid(logits) - pos_weight * positive * sigmoid(-logits)
    number = int(labelled.sum())
    total = cost[labelled].sum()
    _add(totals, total, number)
    return total, number, np.where(labelled, slope, 0).astype(logits.dtype) / max(number, 1)


def softmax_cross_entropy(
    logits: Float, y: NDArray[np.integer[Any]], class_weight: Float, totals: Float | None = None
) -> tuple[Any, Any, Float]:
    """Softmax cross-entropy of R rows and K exclusive classes.

    A row of class k costs -w_k log p_k with p = softmax(z); log p is the shifted logits minus the logarithm of the sum
    of their exponentials. The gradient of a row is w_k (p - onehot(k)).

    Parameters
    ----------
    logits : (R, K)
    y : int32, (R, 1)
        Class, or -1 where missing.
    class_weight : (K,)

    Returns
    -------
    total : scalar
    weight : scalar
        Sum of the labelled rows' weights. If it is 0, the gradient is 0.
    dlogits : (R, K)
        0 where missing.
    """
    total = weight = logits.dtype.type(0)
    dlogits = np.zeros_like(logits)
    for row, k in enumerate(y[:, 0]):
        if k < 0:
            continue
        w = logits.dtype.type(class_weight[k])
        shifted = logits[row] - logits[row].max()
        log_p = shifted - np.log(np.exp(shifted).sum())
        total -= w * log_p[k]
        weight += w
        dlogits[row] = w * np.exp(log_p)
        dlogits[row, k] -= w
    _add(totals, total, weight)
    return total, weight, dlogits / weight if weight > 0 else np.zeros_like(logits)


def mean_squared_error(logits: Float, y: Float, totals: Float | None = None) -> tuple[Any, int, Float]:
    """Squared error (z - y)² over the entries of y (R, K) that are not NaN; its derivative is 2 (z - y).

    Returns
    -------
    total : scalar
    number : int
        Labelled entries.
    dlogits : (R, K)
        0 where missing.
    """
    labelled = ~np.isnan(y)
    error = np.where(labelled, logits - y, 0).astype(logits.dtype)
    number = int(labelled.sum())
    total = (error**2).sum()
    _add(totals, total, number)
    return total, number, 2 * error / max(number, 1)


def _add(totals: Float | None, loss: Any, weight: Any) -> None:
    if totals is not None:
        totals += (loss, weight)
