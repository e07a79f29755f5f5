"""Normal scores: each column of an array mapped monotonically to a standard normal distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class NormalScores:
    """Piecewise linear maps of D columns, fitted to training rows; the ends of a map are constant.

    Parameters
    ----------
    values : float64, (knots of all columns,)
        Distinct values of each column, ascending.
    scores : float64, the same shape
        Normal quantiles of their mean ranks.
    starts : int64, (D + 1,)
        First knot of each column.
    """

    values: NDArray[np.float64]
    scores: NDArray[np.float64]
    starts: NDArray[np.int64]

    @classmethod
    def fit(cls, x: NDArray[Any], knots: int) -> NormalScores:
        """Return the maps of the columns of `x (n, D)`, which may hold NaN, with at most `knots` knots each."""
        values, scores = zip(*(_knots(column, knots) for column in np.asarray(x, np.float64).T), strict=True)
        starts = np.concatenate([[0], np.cumsum([len(of) for of in values])]).astype(np.int64)
        return cls(np.concatenate(values), np.concatenate(scores), starts)

    @property
    def varied(self) -> NDArray[np.int64]:
        """Columns that have more than one value."""
        return np.flatnonzero(np.diff(self.starts) > 1)

    def apply(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Return the scores (n, D) of `x (n, D)`; NaN stays NaN."""
        return self._map(x, self.values, self.scores)

    def invert(self, z: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values (n, D) that have the scores `z (n, D)`."""
        return self._map(z, self.scores, self.values)

    def arrays(self) -> Arrays:
        """Return what `from_arrays` takes."""
        return {"values": self.values, "scores": self.scores, "starts": self.starts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NormalScores:
        """Return the object that `arrays` was called on."""
        return cls(arrays["values"], arrays["scores"], arrays["starts"])

    def _map(self, x: NDArray[Any], known: NDArray[np.float64], mapped: NDArray[np.float64]) -> NDArray[np.float64]:
        """Interpolate each column as `np.interp` does, all columns at once: a single row would take as many calls."""
        first, last = self.starts[:-1], self.starts[1:] - 1
        place = np.broadcast_to(first, x.shape).copy()  # the last knot that is not above x, or the first
        for step in self._steps:
            further = np.minimum(place + step, last)
            np.copyto(place, further, where=known.take(further) <= x)
        following = np.minimum(place + 1, last)
        start, width = known[place], known[following] - known[place]
        with np.errstate(all="ignore"):  # 0 / 0 at the last knot
            found = (mapped[following] - mapped[place]) / width * (x - start) + mapped[place]
        found = np.where((width == 0) | (x <= start), mapped[place], found)
        found[np.isnan(x)] = np.nan
        return found

    @cached_property
    def _steps(self) -> list[int]:
        """Steps of a binary search in the longest map: powers of two that descend."""
        longest = int(np.diff(self.starts).max(initial=1))
        return [1 << power for power in reversed(range((longest - 1).bit_length()))]


def _knots(column: NDArray[np.float64], most: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from scipy.special import ndtri

    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    if not len(values):
        return np.zeros(1), np.zeros(1)
    scores = ndtri((np.cumsum(counts) - counts / 2) / counts.sum())
    if len(values) > most:
        kept = np.linspace(0, len(values) - 1, most).round().astype(np.int64)
        values, scores = values[kept], scores[kept]
    return values, scores
