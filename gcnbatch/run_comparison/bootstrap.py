"""Differences of runs on one split, by resampling its test rows.

The intervals cover other test rows from the same source. They do not cover another split or another seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.data.schema import Target
from gcnbatch.run_comparison.paired import Difference
from gcnbatch.training import metrics

RESAMPLES = 1000


def differences(
    metric: str,
    target: Target,
    y: NDArray[Any],
    outputs: Sequence[NDArray[np.floating]],
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> list[Difference]:
    """Return the differences of all pairs of runs; the joint intervals are Bonferroni's.

    Parameters
    ----------
    metric, target
        See `gcnbatch.training.metrics`.
    y : (R, K) or (R, 1)
    outputs : sequence of M arrays (R, K) or (R, C)
        Of the same test rows.
    level : float
        Confidence level.
    resamples : int
        Samples of R rows, drawn with replacement (seed 0); those in which a score is not defined are left out.
    """
    draws = philox.generator(0, "bootstrap")
    whole = np.array([_score(metric, target, y, of) for of in outputs])
    scores = np.empty((resamples, len(outputs)))
    for at in range(resamples):
        rows = draws.integers(len(y), size=len(y))
        scores[at] = [_score(metric, target, y[rows], of[rows]) for of in outputs]
    scores = scores[np.isfinite(scores).all(axis=1)]
    pairs = [(first, second) for first in range(len(outputs)) for second in range(first + 1, len(outputs))]
    found = []
    for first, second in pairs:
        sample = scores[:, first] - scores[:, second]
        own, joint = (_interval(sample, (1 - level) / share) for share in (1, len(pairs)))
        found.append(Difference(first, second, float(whole[first] - whole[second]), *own, *joint, None))
    return found


def _score(metric: str, target: Target, y: NDArray[Any], outputs: NDArray[np.floating]) -> float:
    value = metrics.score(metric, target, y, outputs)
    return np.nan if value is None else value


def _interval(sample: NDArray[np.float64], outside: float) -> tuple[float, float]:
    low, high = np.quantile(sample, [outside / 2, 1 - outside / 2]) if len(sample) else (-np.inf, np.inf)
    return float(low), float(high)
