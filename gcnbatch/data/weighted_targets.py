"""Targets with a weight and a bound for each label.

Weighted targets are one array (R, 3 T) of floats: the columns of T values, of their weights, and of their bounds. T is
1 for classes. A bound is 1 if the true value is above the given one (``>10``), -1 if it is below, 0 if it is equal. All
three are NaN where a label is missing, so that a row has a label if one of its entries is not NaN.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

LossKind = Literal["sigmoid", "softmax", "squared", "absolute", "huber"]


class Labels(NamedTuple):
    """Values, weights and bounds, (R, T) each."""

    values: NDArray[Any]
    weights: NDArray[Any]
    bounds: NDArray[Any]


def join(values: NDArray[Any], weights: NDArray[Any] | float, bounds: NDArray[Any] | float) -> NDArray[np.float32]:
    """Return weighted targets float32 (R, 3 T) of targets (R, T) and what broadcasts to them.

    >>> join(np.array([[7, np.nan]], np.float32), np.array([[2]]), np.array([[1, 0]])).tolist()
    [[7.0, nan, 2.0, nan, 1.0, nan]]
    """
    missing = values < 0 if values.dtype.kind == "i" else np.isnan(values)
    return np.hstack(
        [np.where(missing, np.float32(np.nan), part).astype(np.float32) for part in (values, weights, bounds)]
    )


def split(y: NDArray[Any]) -> Labels:
    """Return the parts of weighted targets (R, 3 T), as views."""
    return Labels(*(y[:, part * y.shape[1] // 3 : (part + 1) * y.shape[1] // 3] for part in range(3)))
