"""The kernel by plain loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcnbatch.mixture.molecules import Prepared
from gcnbatch.mixture.similarity import THRESHOLDS


def similarities(a: Prepared, b: Prepared, weight: float = 1.0) -> np.ndarray:
    """Return the similarities of all pairs, (len(a), len(b))."""
    found = np.zeros((len(a), len(b)))
    of_a, of_b = ([_bits(counts) for counts in own.counts] for own in (a, b))
    for i in range(len(a)):
        for j in range(len(b)):
            terms = [np.exp(-np.sum((a.scores[i].astype(float) - b.scores[j]) ** 2) / a.scores.shape[1])]
            for one, other in zip(of_a, of_b, strict=True):
                left, right = one[i], other[j]
                terms.append(len(left & right) / len(left | right) if left | right else 0.0)
            found[i, j] = np.average(terms, weights=[weight] + [1.0] * (len(terms) - 1))
    return found


def _bits(counts: Any) -> list[set[tuple[int, int]]]:
    """Return the fragments and thresholds of each molecule."""
    return [{(f, t) for f, count in enumerate(row) for t in THRESHOLDS if count >= t} for row in counts.toarray()]
