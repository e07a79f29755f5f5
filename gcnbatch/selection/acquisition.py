"""Acquisition functions: score a molecule by its prediction and deviation. More is better.

mu and sigma are mean and standard deviation of the prediction. f* is the value that a fifth of the measured molecules
reaches, not the best one: so campaigns find more of the best 5 %.

- ``expected-improvement``: E max(f - f*, 0) of a normal f: (mu - f*) Phi(z) + sigma phi(z), z = (mu - f*) / sigma
  (Jones, Schonlau, Welch 1998).
- ``upper-bound``: mu + k sigma (GP-UCB; Srinivas et al. 2010).
- ``thompson``: a draw from the normal distribution of each molecule, independent of the others.
- ``uncertainty``: sigma; of probabilities, the deviation of the label, sqrt(p (1 - p)).
- ``greedy``: mu.

Values to minimise enter with the other sign; probabilities of label 1 as 1 - p.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.errors import InputError

Acquisition = Literal["expected-improvement", "upper-bound", "thompson", "uncertainty", "greedy"]
SHOWN = {
    "expected-improvement": "expected improvement",
    "upper-bound": "upper bound",
    "thompson": "draw",
    "uncertainty": "deviation",
    "greedy": "prediction",
}
HIGH = 0.8  # quantile of the measured values that is f*
Float64 = NDArray[np.float64]


def named(by: str) -> Acquisition:
    """Return the acquisition of this name.

    Raises
    ------
    InputError
        When there is none.
    """
    for known in get_args(Acquisition):
        if by == known:
            return known
    raise InputError("--by", by, ", ".join(SHOWN))


def scores(
    by: Acquisition, mean: Float64, deviation: Float64, high: float, deviations: float, draws: Float64
) -> Float64:
    """Return the score (R,) of each molecule.

    Parameters
    ----------
    by : str
    mean, deviation : float64, (R,)
        Oriented so that more is better. "greedy" does not read `deviation`.
    high : float
        f*, which "expected-improvement" reads.
    deviations : float
        k of "upper-bound".
    draws : float64, (R,)
        Standard normal, which "thompson" reads; see `normal`.
    """
    if by == "greedy":
        return mean
    if by == "uncertainty":
        return deviation
    if by == "upper-bound":
        return mean + deviations * deviation
    if by == "thompson":
        return mean + deviation * draws
    from scipy.special import ndtr

    spread = np.maximum(deviation, np.finfo(float).tiny)
    z = np.clip((mean - high) / spread, -1e150, 1e150)
    return (mean - high) * ndtr(z) + spread * np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)


def normal(seed: int, first: int, count: int) -> Float64:
    """Return standard normal draws (count,) of the rows from `first` on: those of a row depend on nothing else."""
    from scipy.special import ndtri

    bits = philox.bits(seed, "selection.draws", 0, 0, count, first)
    return np.asarray(ndtri((bits.astype(np.float64) + 0.5) / 2.0**32))
