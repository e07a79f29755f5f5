"""Kernel ridge regression with an intercept, and what it predicts for each row without having learnt it.

The weights `a` and the intercept `b` of n rows with weights W minimise  (z - K a - b)'W (z - K a - b) + ridge a'K a.
With  G = (K + ridge W^-1)^-1  and  P = G - G 1 1'G / (1'G 1), they are  a = P z  and  b = 1'G z / (1'G 1).  A fit
without the rows S predicts them as

    z_S - (P_SS)^-1 (P z)_S

in closed form. The value does not depend on z_S, so the targets of S are taken as 0, and those of the other rows may be
others for each S: transforms are fitted without S, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


class Targets(NamedTuple):
    """Targets of n rows in C columns.

    Parameters
    ----------
    folds : integers (n,)
        The part of each row.
    without : float64, (parts, n, C)
        Those for the fit that leaves out each part; its own rows are not read.
    whole : float64, (n, C)
        Those for the fit to all rows.
    weights : float64, (n,), or None
        Of the rows, above 0; None: all are 1.
    """

    folds: NDArray[np.int8]
    without: Float64
    whole: Float64
    weights: Float64 | None = None

    def parts(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield each part that has rows, and them."""
        for part in np.unique(self.folds).tolist():
            yield part, np.flatnonzero(self.folds == part)


class Solution(NamedTuple):
    """Predictions (n, C) of left-out rows, and the fit to all: weights (M, C) of the kernel's columns, intercepts."""

    left_out: Float64
    weights: Float64
    intercept: Float64


def solve(kernel: Float64, ridge: float, targets: Targets) -> Solution:
    """Solve with the whole kernel (n, n), which is overwritten."""
    from scipy.linalg import cho_factor
    from scipy.linalg.lapack import dpotri

    kernel[np.diag_indices_from(kernel)] += ridge if targets.weights is None else ridge / targets.weights
    # The transpose, equal to the kernel, lies in memory as LAPACK expects it: nothing is copied.
    factor, _ = cho_factor(kernel.T, lower=True, overwrite_a=True, check_finite=False)
    inverse = _symmetric(dpotri(factor, lower=1, overwrite_c=1)[0])
    sums = inverse.sum(axis=1)
    left_out = np.empty_like(targets.whole)
    for part, rows in targets.parts():
        z = targets.without[part].copy()
        z[rows] = 0
        own = inverse[rows] - np.outer(sums[rows] / sums.sum(), sums)
        left_out[rows] = -np.linalg.solve(own[:, rows], own @ z)
    intercept = sums @ targets.whole / sums.sum()
    return Solution(left_out, inverse @ targets.whole - np.outer(sums, intercept), intercept)


def solve_by_landmarks(
    blocks: Callable[[], Iterator[tuple[slice, NDArray[np.float32]]]],
    landmarks: Float64,
    ridge: float,
    targets: Targets,
) -> Solution:
    """Solve with the Nyström approximation of the kernel through M landmarks.

    With C C' the kernel of the landmarks, row i has the features  f_i = C^-1 k_i,  and f_i'f_j approximates K_ij.
    Memory: parts x M² numbers.

    Parameters
    ----------
    blocks : callable
        Yields slices of rows and their kernel with the landmarks (rows, M); called twice.
    landmarks : float64, (M, M)
        Kernel of the landmarks.
    """
    from scipy.linalg import cholesky, solve_triangular
    from scipy.linalg import solve as solve_linear

    size, columns = len(landmarks), targets.whole.shape[1]
    factor = cholesky(landmarks + _JITTER * np.eye(size), lower=True)
    parts = [part for part, _ in targets.parts()]
    products = {part: np.zeros((size + 1, size + 1)) for part in parts}
    moments = {part: np.zeros((size + 1, columns)) for part in (*parts, -1)}
    for rows, block in blocks():
        features = np.ones((len(block), size + 1))
        features[:, :size] = solve_triangular(factor, block.T.astype(np.float64), lower=True).T
        weighted = features if targets.weights is None else features * targets.weights[rows, None]
        for part in parts:
            own = targets.folds[rows] == part
            products[part] += weighted[own].T @ features[own]
            moments[part] += weighted[~own].T @ targets.without[part][rows][~own]
        moments[-1] += weighted.T @ targets.whole[rows]
    total = sum(products.values()) + np.diag([ridge] * size + [0.0])

    def fit(product: Float64, moment: Float64) -> Float64:
        found = solve_linear(product, moment, assume_a="pos")
        return np.vstack([solve_triangular(factor, found[:-1], lower=True, trans="T"), found[-1:]])

    fits = {part: fit(total - products[part], moments[part]) for part in parts}
    left_out = np.empty_like(targets.whole)
    for rows, block in blocks():
        folds = targets.folds[rows]
        for part in np.unique(folds).tolist():
            own = folds == part
            left_out[rows][own] = block[own] @ fits[part][:-1] + fits[part][-1]
    whole = fit(total, moments[-1])
    return Solution(left_out, whole[:-1], whole[-1])


_JITTER = 1e-6  # of the landmarks' kernel: those of similar molecules are nearly dependent, and its entries float32


def _symmetric(lower: Float64) -> Float64:
    """Return the symmetric matrix of a lower triangle, in its memory."""
    step = 1024
    for first in range(0, len(lower), step):
        square = lower[first : first + step, first : first + step]
        square[...] = np.tril(square) + np.tril(square, -1).T
        lower[first : first + step, first + step :] = lower[first + step :, first : first + step].T
    return lower
