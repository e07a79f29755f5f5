"""Losses with missing labels, and with a weight and a bound for each label.

Each returns (sum, weight, gradient of sum / weight by the logits), with sum and weight separate, so that an epoch's
mean covers all its labels. Without any label both are 0 and so is the gradient. With `totals` (2,), a loss adds both to
it in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.weighted_targets import LossKind, split
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
    cost, slope = _sigmoid(logits, np.where(labelled, y, 0).astype(logits.dtype), pos_weight)
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


def weighted_loss(
    logits: Float, y: Float, kind: LossKind, parameters: Float, totals: Float | None = None
) -> tuple[Any, Any, Float]:
    """Return the loss of this kind with a weight w for each label, and a bound of each label of a regression.

    A label adds w times its cost to the sum, and w to the weight; a row of classes adds w times that of its class to
    both. With the difference d = z - y, costs of regressions and their derivatives are

    - squared: d², 2 d
    - absolute: |d|, sign(d)
    - huber (Huber, 1964), with delta from `parameters`: d² / 2, d where |d| <= delta; delta (|d| - delta / 2),
      delta sign(d) beyond

    and 0 where a bound allows z: d > 0 for a true value above y, d < 0 for one below it.

    Parameters
    ----------
    logits : (R, K)
    y : (R, 3 K), or (R, 3) for softmax
        Weighted targets; see `gcnbatch.data.weighted_targets`.
    kind : {"sigmoid", "softmax", "squared", "absolute", "huber"}
    parameters : (K,)
        Weights of positives (sigmoid) or classes (softmax), the delta of huber; else unused.

    Returns
    -------
    total : scalar
    weight : scalar
        If it is 0, the gradient is 0.
    dlogits : (R, K)
    """
    values, weights, bounds = split(y)
    labelled = ~np.isnan(values)
    w = np.where(labelled, weights, 0).astype(logits.dtype)
    if kind == "softmax":
        total = weight = logits.dtype.type(0)
        slope = np.zeros_like(logits)
        for row in np.flatnonzero(labelled):
            own = slice(row, row + 1)
            of_row = softmax_cross_entropy(logits[own], values[own].astype(np.int32), w[row] * parameters)
            total, weight, slope[own] = total + of_row[0], weight + of_row[1], of_row[1] * of_row[2]
    else:
        known = np.where(labelled, values, 0).astype(logits.dtype)
        costs = (
            _sigmoid(logits, known, parameters) if kind == "sigmoid" else _regression(logits - known, kind, parameters)
        )
        violated = np.where(labelled, bounds, 0) * (logits - known) <= 0
        cost, slope = (w * np.where((kind == "sigmoid") | violated, part, 0) for part in costs)
        total, weight = cost.sum(), w.sum()
    _add(totals, total, weight)
    return total, weight, slope / weight if weight > 0 else np.zeros_like(logits)


def _sigmoid(logits: Float, y: Float, pos_weight: Float) -> tuple[Float, Float]:
    """Return cost and derivative of each entry of a sigmoid cross-entropy."""
    cost = pos_weight * y * softplus(-logits) + (1 - y) * softplus(logits)
    return cost, (1 - y) * sigmoid(logits) - pos_weight * y * sigmoid(-logits)


def _regression(d: Float, kind: LossKind, delta: Float) -> tuple[Float, Float]:
    """Return cost and derivative of each difference."""
    size, sign = np.abs(d), np.sign(d)
    if kind == "squared":
        return d**2, 2 * d
    if kind == "absolute":
        return size, sign
    return np.where(size <= delta, d**2 / 2, delta * (size - delta / 2)), np.where(size <= delta, d, delta * sign)


def _add(totals: Float | None, loss: Any, weight: Any) -> None:
    if totals is not None:
        totals += (loss, weight)
