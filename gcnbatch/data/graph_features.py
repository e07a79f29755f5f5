"""Features of whole graphs, such as descriptors of molecules: those of a batch, and their scaling.

A set has D features of each graph, float32 (G, D), NaN where one is missing. The last `Header.graph_feature_counts`
columns are counts of fragments, which a model takes as they are. The others are scaled to mean 0 and deviation 1 of the
training rows. A network reads the first `Header.n_joined` columns: of several fingerprints, the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.sparse import Array

LIMIT = 10.0  # of a scaled feature: a few descriptors have values far outside those of the training rows
_SPREAD = 1e-6  # a column whose deviation is a smaller share of its largest value is constant, up to rounding


@dataclass(slots=True, eq=False)
class GraphFeatures:
    """Features of the graphs of a batch: row b is ``values[rows[b]]``, so that no batch copies them.

    Parameters
    ----------
    values : float32, (G, D)
        Those of the data set, or of the batch alone.
    rows : integers, (B,)
    """

    values: Array
    rows: Array

    def map(self, move: Callable[[Any], Any]) -> GraphFeatures:
        """Return these features with both arrays moved."""
        return GraphFeatures(move(self.values), move(self.rows))


@dataclass(frozen=True)
class FeatureScaling:
    """Mean and reciprocal deviation of each graph feature, float32 (D,): a model takes ``(value - mean) * scale``."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]

    @classmethod
    def of(cls, blocks: Callable[[], Iterable[NDArray[np.float32]]], n_counts: int) -> FeatureScaling:
        """Return the scaling that gives the rows of all blocks mean 0 and deviation 1.

        Missing values are left out. A constant column, or one without any value, has scale 0: it tells nothing. Counts
        keep their values.

        Parameters
        ----------
        blocks : callable
            Returns the rows of the training set in blocks (R, D - n_counts), at least one; called twice.
        n_counts : int
            Number of columns of counts, which follow.
        """
        count: Any = 0
        total: Any = 0.0
        squares: Any = 0.0
        largest: Any = 0.0
        for known, values in _measured(blocks()):
            count, total = count + known.sum(axis=0), total + values.sum(axis=0)
            largest = np.maximum(largest, np.abs(values).max(axis=0, initial=0))
        centre = total / np.maximum(count, 1)
        for known, values in _measured(blocks()):
            squares = squares + (np.where(known, values - centre, 0) ** 2).sum(axis=0)
        deviation = np.sqrt(squares / np.maximum(count, 1))
        scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > _SPREAD * largest)
        mean = np.concatenate([centre, np.zeros(n_counts)])
        return cls(mean.astype(np.float32), np.concatenate([scale, np.ones(n_counts)]).astype(np.float32))


def _measured(blocks: Iterable[NDArray[np.float32]]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.float64]]]:
    """Yield which values are known, and the values, 0 where missing."""
    for block in blocks:
        values = block.astype(np.float64)
        known = ~np.isnan(values)
        yield known, np.where(known, values, 0)
