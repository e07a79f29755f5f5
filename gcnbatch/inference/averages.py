"""Mean and deviation of the outputs of an ensemble's members."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcnbatch.moments import in_units, unit_of

Float64 = NDArray[np.float64]


def mean_and_deviation(
    single: Sequence[NDArray[np.floating]], left_out: NDArray[np.bool_]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return mean and standard deviation (n - 1), (R, K), over the members that have a task; NaN where too few have it.

    Parameters
    ----------
    single : sequence of (R, K)
        Outputs of each member.
    left_out : bool, (members, T)
        Tasks that a member has no outputs of; of classes, T is 1.
    """
    first = single[0]
    if len(single) == 1:
        return first, np.full_like(first, np.nan)
    exponent = 0
    if first.dtype == np.float64:  # of regression: squares of large values overflow
        exponent = unit_of(*single)
        single = in_units(exponent, *single)
    if left_out.any():
        mean, deviation = _of_some(np.stack(single).astype(np.float64), left_out[:, None])
    else:
        mean = np.mean(single, axis=0, dtype=np.float64)
        deviation = np.std(single, axis=0, ddof=1, dtype=np.float64)
    if exponent:
        mean, deviation = np.ldexp(mean, exponent), np.ldexp(deviation, exponent)
    return mean.astype(first.dtype), deviation.astype(first.dtype)


def _of_some(values: Float64, absent: NDArray[np.bool_]) -> tuple[Float64, Float64]:
    """Return mean and deviation of the members (members, R, K) that are not absent (members, 1, T)."""
    count = (~absent).sum(axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0
        mean = np.where(absent, 0.0, values).sum(axis=0) / count
        squares = np.where(absent, 0.0, (values - mean) ** 2).sum(axis=0)
        return mean, np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
