"""Mean and deviation of the outputs of an ensemble's members."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcnbatch.moments import in_units, unit_of


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
    values = np.stack(single).astype(np.float64)
    exponent = unit_of(values)
    (scaled,) = in_units(exponent, values)
    has_task = np.broadcast_to(~left_out[:, None], (len(single), 1, left_out.shape[1])) & np.ones(
        values.shape, np.bool_
    )
    count = has_task.sum(axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0
        mean = np.sum(scaled, axis=0, where=has_task) / count
        squares = np.sum((scaled - mean) ** 2, axis=0, where=has_task)
        deviation = np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
    kind = single[0].dtype
    return np.ldexp(mean, exponent).astype(kind), np.ldexp(deviation, exponent).astype(kind)
