"""Differences of models that were scored on the same rows, with confidence intervals.

`differences` compares scores of the same folds (Tukey's HSD), `resampled` outputs for the same test rows (bootstrap).

Dimensions: n blocks (a fold of a repeat), M models. A score of model m in block b is ``mean + effect_m + block_b +
error``; the block's effect cancels in a difference. The variance of the error is estimated with
``(n - 1) (M - 1)`` degrees of freedom.

Folds share training rows, so their scores are not independent, and the variance of a mean over n folds exceeds the
error's variance / n. The correction of Nadeau and Bengio (Inference for the Generalization Error, Machine Learning
52:239, 2003) takes ``1/n + test rows / training rows`` in place of ``1/n``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import metrics, resampling
from gcnbatch.data.schema import Target
from gcnbatch.moments import in_units, unit_of


@dataclass(frozen=True)
class Difference:
    """Mean score of model `first` minus that of `second`, with confidence intervals.

    Parameters
    ----------
    first, second : int
        Numbers of the models.
    mean : float
    low, high : float
        Interval of this pair alone (paired t).
    joint_low, joint_high : float
        Interval that holds for all pairs at once (Tukey's HSD).
    p : float or None
        Of all pairs at once; None where no distribution is assumed.
    """

    first: int
    second: int
    mean: float
    low: float
    high: float
    joint_low: float
    joint_high: float
    p: float | None

    @property
    def shown(self) -> bool:
        """Whether a difference is shown: the joint interval leaves out 0."""
        return self.joint_low > 0 or self.joint_high < 0


def differences(scores: NDArray[np.float64], overlap: float, level: float = 0.95) -> list[Difference]:
    """Return the differences of all pairs of models.

    Parameters
    ----------
    scores : float64, (n, M)
        A row per block; at least 2 rows and 2 columns.
    overlap : float
        Test rows / training rows of a block; 0: the blocks are independent.
    level : float
        Confidence level.
    """
    from scipy import stats

    exponent = unit_of(scores)
    (scores,) = in_units(exponent, scores)
    n, models = scores.shape
    freedom = (n - 1) * (models - 1)
    residual = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
    factor = 1 / n + overlap
    error = math.sqrt(float((residual**2).sum()) / freedom * factor)  # of a mean
    range_at = float(stats.studentized_range.ppf(level, models, freedom))
    t_at = float(stats.t.ppf((1 + level) / 2, n - 1))
    found = []
    for first, second in combinations(range(models), 2):
        difference = scores[:, first] - scores[:, second]
        mean = float(difference.mean())
        own = t_at * math.sqrt(float(difference.var(ddof=1)) * factor)
        joint = range_at * error
        p = 0.0 if mean else 1.0
        if error > 0:
            p = float(stats.studentized_range.sf(abs(mean) / error, models, freedom))
        mean, own, joint = (math.ldexp(of, exponent) for of in (mean, own, joint))
        found.append(Difference(first, second, mean, mean - own, mean + own, mean - joint, mean + joint, p))
    return found


def resampled(
    metric: str,
    target: Target,
    y: NDArray[Any],
    outputs: Sequence[NDArray[np.floating]],
    level: float = 0.95,
    resamples: int = resampling.RESAMPLES,
) -> list[Difference]:
    """Return the differences of all pairs of models by resampling their test rows; joint intervals are Bonferroni's.

    Parameters
    ----------
    metric, target
        See `gcnbatch.metrics`.
    y : (R, K) or (R, 1)
    outputs : sequence of M arrays (R, K) or (R, C)
        Of the same test rows.
    level : float
        Confidence level.
    resamples : int
        Resamples in which a score is not defined are left out. Each model has a score on all rows, so some are left.
    """
    draws = [resampling.figures(target, y, of, resamples, (metric,))[metric] for of in outputs]
    scores = np.array([metrics.mean_over_tasks(target, y, *of) for of in zip(outputs, draws, strict=True)])
    scores = scores[:, np.isfinite(scores).all(axis=0)]
    whole = [np.nan if (of := metrics.score(metric, target, y, out)) is None else of for out in outputs]
    pairs = list(combinations(range(len(outputs)), 2))
    found = []
    for first, second in pairs:
        own, joint = (
            resampling.central(scores[first] - scores[second], 1 - (1 - level) / share) for share in (1, len(pairs))
        )
        found.append(Difference(first, second, whole[first] - whole[second], *own, *joint, None))
    return found
