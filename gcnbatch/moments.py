"""Means and deviations of numbers of any magnitude.

Squares of float64 numbers overflow above 1e154 and vanish below 1e-162. So values are first multiplied by a power of
two, which is exact, so that the largest is between a half and one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def unit_of(*arrays: NDArray[np.floating]) -> int:
    """Return the exponent e of the smallest power of two above every finite value; 0 without a value but 0.

    >>> unit_of(np.array([3.0, -5.0]), np.array([np.nan])), unit_of(np.array([1e300]))
    (3, 997)
    """
    largest = max((float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) for values in arrays), default=0.0)
    return int(np.frexp(largest)[1])


def in_units(exponent: int, *arrays: NDArray[np.floating]) -> list[Float64]:
    """Return the arrays divided by two to the power of `exponent`."""
    return [np.ldexp(values.astype(np.float64, copy=False), -exponent) for values in arrays]


def moments(y: NDArray[np.floating]) -> tuple[Float64, Float64]:
    """Return mean and standard deviation (K,) of the known values of each column of `y (R, K)`; 0 of a column without.

    >>> moments(np.array([[1e300, np.nan], [3e300, np.nan]]))
    (array([2.e+300, 0.e+000]), array([1.e+300, 0.e+000]))
    """
    known = ~np.isnan(y)
    values = np.where(known, y, 0.0).astype(np.float64)
    exponent = np.frexp(np.abs(values).max(axis=0, initial=0.0))[1]
    scaled, count = np.ldexp(values, -exponent), np.maximum(known.sum(axis=0), 1)
    mean = scaled.sum(axis=0) / count
    mean += np.where(known, scaled - mean, 0.0).sum(axis=0) / count  # what the first sum rounded off
    std = np.sqrt((np.where(known, scaled - mean, 0.0) ** 2).sum(axis=0) / count)
    equal = (scaled == np.where(known, scaled, -np.inf).max(axis=0, initial=-np.inf)) | ~known
    std[equal.all(axis=0)] = 0.0
    return np.ldexp(mean, exponent), np.ldexp(std, exponent)


def root_mean_square(values: Float64) -> float:
    """Return the root of the mean square of finite values (n,), n > 0."""
    exponent = unit_of(values)
    (scaled,) = in_units(exponent, values)
    return float(np.ldexp(np.sqrt(np.mean(scaled**2)), exponent))
