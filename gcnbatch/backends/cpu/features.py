"""Features of whole graphs on the CPU: counts of fragments, which are mostly 0, as a sparse matrix."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.graphs import ragged_rows
from gcnbatch.data.sparse import Csr


class HostFeatures(GraphFeatures):
    """Features of the graphs of a batch, the last ones of which are counts.

    Parameters
    ----------
    features : GraphFeatures
    counts : scipy.sparse.csr_array, (G, M)
        The last M columns of all graphs' features.
    """

    def __init__(self, features: GraphFeatures, counts: Any) -> None:
        super().__init__(features.values, features.rows)
        self._counts = counts

    @property
    def others(self) -> GraphFeatures:
        """The features without the counts."""
        return GraphFeatures(self.values[:, : -self._counts.shape[1]], self.rows)

    @cached_property
    def counts(self) -> Csr:
        """The counts of the graphs of the batch, (B, M)."""
        entries, indptr = ragged_rows(self._counts.indptr, self.rows)
        taken = self._counts.indices.take(entries), self._counts.data.take(entries)
        return Csr(indptr.astype(np.int32), *taken, self._counts.shape[1])

    def scaled_counts(self, mean: NDArray[Any], scale: NDArray[Any], limit: float) -> Csr | None:
        """Return the counts as `Ops.join` scales them; None if a count of 0 would not stay 0.

        `mean` and `scale` are (M,), or (K, 1, M) of K models: then the values are (K, 1, entries).
        """
        if mean.any():
            return None
        counts = self.counts
        values = np.clip(counts.data * scale[..., counts.indices], -limit, limit)
        values[np.isnan(values)] = 0
        return Csr(counts.indptr, counts.indices, values, counts.n_cols)
