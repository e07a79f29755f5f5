"""Figures of repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def spread(values: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Return the median and the 20th and 80th percentiles."""
    low, middle, high = np.percentile(values, (20, 50, 80)).tolist()
    return {"median": middle, "p20": low, "p80": high}


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(ratios))))
