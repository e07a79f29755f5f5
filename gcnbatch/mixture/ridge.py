"""Kernel ridge regression with an intercept, and what it predicts for each row without having learnt it.

The weights `a` and the intercept `b` of n rows with weights W minimise  (z - K a - b)'W (z - K a - b) + ridge a'K a.
With  G = (K + ridge W^-1)^-1  and  P = G - G 1 1'G / (1'G 1), they are  a = P z  and  b = 1'G z / (1'G 1).  A fit
without the rows S predicts them as

    -(P_SS)^-1 (P z)_S,  with z_S = 0

in closed form. Rows S are those of a part, and those without a target: columns with other missing cells share P. The
targets of the other rows may be others for each part: transforms are fitted without it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.mixture import lapack
from gcnbatch.mixture.similarity import blas_threads, mirrored
from gcnbatch.mixture.steps import Step, no_step

Float64 = NDArray[np.float64]

_BLOCK = 1024
_JITTER = 1e-6  # of the landmarks' kernel: those of similar molecules are nearly dependent, and its entries float32


class Targets(NamedTuple):
    """Targets of n rows in C columns; NaN where missing, in the same cells of `without` and `whole`.

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
    """Predictions (n, C) of left-out rows, and the fit to all: weights (M, C) of the kernel's columns, intercepts.

    Cells without a target have the prediction NaN, and the weight 0 if the columns are the rows.
    """

    left_out: Float64
    weights: Float64
    intercept: Float64


class Inverse(Protocol):
    """G, the inverse of a positive definite matrix (n, n)."""

    def sums(self) -> Float64:
        """Return the sum of each row, (n,)."""

    def products(self, x: Float64) -> Float64:
        """Return G x, (n, C)."""

    def block(self, rows: NDArray[np.int64]) -> Float64:
        """Return the rows and columns of G with these numbers, which ascend."""


def added(ridge: float, targets: Targets) -> Float64:
    """Return what a ridge adds to the kernel's diagonal, (n,)."""
    return ridge / (np.ones(len(targets.folds)) if targets.weights is None else targets.weights)


def solve(kernel: Float64, ridge: float, targets: Targets, step: Step = no_step, jobs: int = 1) -> Solution:
    """Solve with the whole kernel (n, n), which is overwritten; each column has a target.

    `step` is called with the number of columns that are solved, often with some of them. `jobs`: threads that solve for
    the parts; several BLAS threads for one part wait for each other, for seconds on a busy host.
    """
    kernel[np.diag_indices_from(kernel)] += added(ridge, targets)
    found, missing = _empty(targets), np.isnan(targets.whole)
    if not missing.any():
        fit = _Complete(_Triangle(kernel))
        _solve(found, targets, missing[:, 0], np.arange(missing.shape[1]), fit, jobs, step)
        return found
    projection = _Projection(kernel)
    patterns, pattern_of = np.unique(missing, axis=1, return_inverse=True)
    for number, is_missing in enumerate(patterns.T):
        columns = np.flatnonzero(pattern_of.ravel() == number)
        _solve(found, targets, is_missing, columns, _Without(projection, np.flatnonzero(is_missing)), jobs, step)
    return found


def solve_with(inverse: Inverse, targets: Targets, step: Step = no_step, jobs: int = 1) -> Solution:
    """Solve with the inverse of the kernel and its ridge, as `solve` does; no cell lacks a target.

    Only the caller's thread uses the inverse.
    """
    found, columns = _empty(targets), np.arange(targets.whole.shape[1])
    _solve(found, targets, np.zeros(len(targets.folds), bool), columns, _Complete(inverse), jobs, step, here=True)
    return found


def _empty(targets: Targets) -> Solution:
    shape = targets.whole.shape
    return Solution(np.full(shape, np.nan), np.zeros(shape), np.empty(shape[1]))


def _solve(
    found: Solution,
    targets: Targets,
    is_missing: NDArray[np.bool_],
    columns: NDArray[np.int64],
    fit: _Complete | _Without,
    jobs: int,
    step: Step,
    here: bool = False,
) -> None:
    """Fill in the columns that lack the same rows; `here`: no other thread uses the fit."""
    whole = np.nan_to_num(targets.whole[:, columns])
    found.weights[:, columns] = np.where(is_missing[:, None], 0, fit.project(whole))
    found.intercept[columns] = fit.means @ fit.fill(whole)
    parts = [(part, in_part[~is_missing[in_part]]) for part, in_part in targets.parts()]
    z = [np.nan_to_num(targets.without[part][:, columns]) for part, _ in parts]
    for of_part, (_, rows) in zip(z, parts, strict=True):
        of_part[rows] = 0
    projected = np.split(fit.project(np.concatenate(z, axis=1)), len(parts), axis=1)
    of_rows = [rows for _, rows in parts]
    right = [own[rows] for own, rows in zip(projected, of_rows, strict=True)]
    known = [fit.block(rows) for rows in of_rows] if here else [None] * len(parts)
    with ExitStack() as stack:
        if jobs > 1:
            stack.enter_context(blas_threads(1))
        threads = stack.enter_context(ThreadPoolExecutor(min(jobs, len(parts))))
        of_parts = threads.map(partial(_left_out, fit), of_rows, right, known)
        for rows, left_out in zip(of_rows, of_parts, strict=True):
            found.left_out[np.ix_(rows, columns)] = left_out
    step(len(columns))


def _left_out(fit: _Complete | _Without, rows: NDArray[np.int64], projected: Float64, known: Float64 | None) -> Float64:
    """Return what a fit that also lacks R rows predicts for them, (R, C).

    Parameters
    ----------
    fit : _Complete or _Without
    rows : int64, (R,)
    projected : float64, (R, C)
        P z of these rows, where z is 0 in them.
    known : float64, (R, R), or None
        P of these rows; None: the fit gives it.
    """
    return -_solve_positive(fit.block(rows) if known is None else known, projected)


class _Triangle:
    """G as Z'Z, with Z the inverse of the Cholesky factor, in the matrix' memory; only blocks are multiplied out."""

    def __init__(self, kernel: Float64) -> None:
        self._z = lapack.invert_triangle(lapack.factor(kernel.T))
        for first in range(0, len(kernel), _BLOCK):
            own = slice(first, first + _BLOCK)
            self._z[own, own] = np.tril(self._z[own, own])
            self._z[own, first + _BLOCK :] = 0

    def sums(self) -> Float64:
        """Return the sum of each row of G, (n,)."""
        return np.asarray(self._z.T @ self._z.sum(axis=1))

    def products(self, x: Float64) -> Float64:
        """Return G x, (n, C)."""
        return np.asarray(self._z.T @ (self._z @ x))

    def block(self, rows: NDArray[np.int64]) -> Float64:
        """Return the rows and columns of G with these numbers."""
        own = self._z[:, rows]
        return np.asarray(own.T @ own)


class _Complete:
    """P of all rows."""

    def __init__(self, inverse: Inverse) -> None:
        self._inverse, self._sums = inverse, inverse.sums()
        self.means = self._sums / self._sums.sum()

    def project(self, z: Float64) -> Float64:
        """Return P z."""
        found = self._inverse.products(z)
        found -= np.outer(self.means, self._sums @ z)
        return found

    def block(self, rows: NDArray[np.int64]) -> Float64:
        """Return P of these rows."""
        return self._inverse.block(rows) - np.outer(self._sums[rows], self.means[rows])

    def fill(self, z: Float64) -> Float64:
        """Return the targets, of which none is missing."""
        return z


class _Projection:
    """P of all rows, multiplied out: columns with missing cells read most of it."""

    def __init__(self, kernel: Float64) -> None:
        self.all = mirrored(lapack.invert_factored(lapack.factor(kernel.T)))
        sums = self.all.sum(axis=1)
        self.means = sums / sums.sum()
        for first in range(0, len(sums), _BLOCK):
            rows = slice(first, first + _BLOCK)
            self.all[rows] -= np.outer(sums[rows], self.means)


class _Without:
    """Fits without the rows `missing`: their P is  P_ll - P_lm (P_mm)^-1 P_ml  for the other rows l."""

    def __init__(self, projection: _Projection, missing: NDArray[np.int64]) -> None:
        from scipy.linalg import cholesky, solve_triangular

        self._projection, self._missing, self.means = projection.all, missing, projection.means
        rows = self._projection[missing]
        self._factor = cholesky(rows[:, missing], lower=True) if len(missing) else rows[:, missing]
        self._scaled = solve_triangular(self._factor, rows, lower=True) if len(missing) else rows

    def project(self, z: Float64) -> Float64:
        """Return P z; `z (n, C)` is 0 where missing."""
        return self._projection @ z - self._scaled.T @ (self._scaled @ z)

    def block(self, rows: NDArray[np.int64]) -> Float64:
        """Return P of these rows."""
        scaled = self._scaled[:, rows]
        return np.asarray(self._projection[np.ix_(rows, rows)] - scaled.T @ scaled)

    def fill(self, z: Float64) -> Float64:
        """Return the targets with predictions in the place of missing ones."""
        from scipy.linalg import solve_triangular

        filled = z.copy()
        if len(self._missing):
            filled[self._missing] = -solve_triangular(self._factor, self._scaled @ z, lower=True, trans="T")
        return filled


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
        found = _solve_positive(product, moment)
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


def _solve_positive(matrix: Float64, right: Float64) -> Float64:
    """Solve with a positive definite matrix, which is overwritten.

    `scipy.linalg.solve` also estimates its condition, which takes 60 times as long where BLAS has several threads.
    """
    from scipy.linalg import cho_solve

    found: Float64 = cho_solve((lapack.factor(matrix.T), True), right, check_finite=False)
    return found
