"""Weights of the members: not negative, of sum 1, found on out-of-fold predictions and drawn to equal ones."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_DRAWN = 100.0  # rows whose evidence equals the pull of the shared weights to equal ones
_SHARED = 300.0  # and that of a task's weights to the shared ones
_EXACT = 1e-6  # of the worst member's error: the least that counts
_LEAST = 0.05  # a smaller weight is 0: the member costs more than it helps


def find_weights(targets: Float64, predictions: Float64) -> Float64:
    """Return the weights (M, T) of M members in T tasks, by squared error.

    Weights of a task are drawn to those that all tasks share, more strongly the fewer rows it has, and these to equal
    ones. A task without predictions has the shared weights.

    Parameters
    ----------
    targets : (n, T, C)
        Targets of T tasks with C outputs each, NaN where missing.
    predictions : (M, n, T, C)
        Out-of-fold, NaN where missing.
    """
    members, _, tasks, _ = predictions.shape
    products, rows = np.zeros((tasks, members, members)), np.zeros(tasks)
    for task in range(tasks):
        residuals = predictions[:, :, task] - targets[:, task]
        known = ~np.isnan(residuals).any(axis=(0, 2))
        own = residuals[:, known].reshape(members, -1)
        rows[task] = known.sum()
        product = own @ own.T
        products[task] = product / max(product.diagonal().min(), _EXACT * np.trace(product), np.finfo(float).tiny)
    equal = np.full(members, 1 / members)
    total = max(float(rows.sum()), 1.0)
    shared = _dropped((rows[:, None, None] * products).sum(axis=0) / total, equal, _DRAWN / total)
    if tasks == 1:
        return shared[:, None]
    pulls = _SHARED / np.maximum(rows, 1.0)
    return np.stack([_dropped(product, shared, pull) for product, pull in zip(products, pulls, strict=True)], axis=1)


def _dropped(product: Float64, prior: Float64, pull: float) -> Float64:
    """Return the weights of least error, found again without members that have little weight."""
    kept = prior > 0
    while True:
        found = np.zeros(len(prior))
        found[kept] = least(product[np.ix_(kept, kept)], prior[kept] / prior[kept].sum(), pull)
        if not (small := kept & (found < _LEAST)).any():
            return found
        kept &= ~small


def least(product: Float64, prior: Float64, pull: float) -> Float64:
    """Return w that minimises  w'(product) w + pull |w - prior|²  with w >= 0 and sum 1.

    All sets of members with weights are tried: they are few.
    """
    count = len(prior)
    matrix = product + pull * np.eye(count)
    best, found = np.inf, prior
    for size in range(1, count + 1):
        for some in map(list, combinations(range(count), size)):
            border = np.ones((size + 1, size + 1))
            border[:size, :size], border[size, size] = matrix[np.ix_(some, some)], 0
            weights = np.zeros(count)
            weights[some] = np.linalg.solve(border, np.append(pull * prior[some], 1))[:size]
            value = float(weights @ matrix @ weights - 2 * pull * prior @ weights)
            if (weights >= 0).all() and value < best:
                best, found = value, weights
    return found
