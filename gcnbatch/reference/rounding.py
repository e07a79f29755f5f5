"""How far an honest float32 sum may be from the exact one: the yardstick of every check of a product or a sum.

Source: Higham: "Accuracy and stability of numerical algorithms", 2nd ed., SIAM 2002, chapters 3 and 4; Higham, Mary: "A
new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

UNIT = 2.0**-24  # unit roundoff of float32: the largest relative error of one operation
SMALLEST = 2.0**-126  # smallest normal float32: an operation may give 0 for less
CONFIDENCE = 8.0


def gamma(terms: ArrayLike, unit: float = UNIT) -> NDArray[np.float64]:
    """Relative error of a sum of products with so many roundings on the way of each, in any order.

    A computed sum is at most ``gamma(terms) * sum |term|`` from the exact one. Every order of summation satisfies
    ``terms * unit`` (Higham, section 3.1). Roundings of long sums cancel in part: they satisfy ``8 sqrt(terms) unit``
    with a probability above 1 - 3e-14 a rounding (Higham, Mary, theorem 2.4: 1 - 2 exp(-8² / 2)).
    """
    count = np.asarray(terms, dtype=np.float64)
    reach: NDArray[Any] = np.minimum(count, CONFIDENCE * np.sqrt(count)) * unit
    return reach / (1 - reach)


def product_bound(terms: ArrayLike, magnitude: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the largest error of each element of a product (rows, columns), computed in float32.

    Parameters
    ----------
    terms : number or (rows,)
        Terms that an element of a row adds up.
    magnitude : (rows, columns)
        Sum of the magnitudes of the terms: |A| |B|.
    """
    found: NDArray[np.float64] = gamma(terms).reshape(-1, 1) * magnitude + SMALLEST
    return found
