"""Gradients by central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP = 1e-5
TOLERANCE = 1e-8  # a difference of order 1 over 2 * STEP carries about 1e-16 / STEP of rounding and STEP² of curvature


def assert_gradient(
    function: Callable[[NDArray[np.float64]], Any], x: NDArray[np.float64], dy: Any, gradient: Any
) -> None:
    """Compare `gradient` with the slope of sum(dy * function(x)) by each element of x."""
    slope = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        ends = []
        for side in (STEP, -STEP):
            moved = x.copy()
            moved[index] += side
            ends.append(np.sum(dy * function(moved)))
        slope[index] = (ends[0] - ends[1]) / (2 * STEP)
    np.testing.assert_allclose(gradient, slope, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, np.abs(slope).max(initial=0)))
