"""Features of whole graphs, such as descriptors of molecules: those of a batch, and their scaling.

A set has D features of each graph. The last `Header.graph_feature_counts` of them are counts of fragments, which a
model takes as they are. The others are measured, and scaled to mean 0 and deviation 1 of the training rows. A network
reads the first `Header.n_joined` features: of several fingerprints, the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.sparse import Array, Csr

LIMIT = 10.0  # of a scaled feature: a few descriptors have values far outside those of the training rows
_SPREAD = 1e-6  # a column whose deviation is a smaller share of its largest value is constant, up to rounding


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features of G graphs: about 50 of 2,048 counts are not 0, so these are sparse. NumPy reads it as float32 (G, D).

    Parameters
    ----------
    measured : float32, (G, D - M)
        NaN where missing.
    counts : Csr, (G, M)
        uint32, columns ascending.
    """

    measured: NDArray[np.float32]
    counts: Csr

    @classmethod
    def of(cls, columns: NDArray[np.float32], n_counts: int) -> FeatureTable:
        """Return the table of dense columns (G, D), the last `n_counts` of which are counts."""
        first = columns.shape[1] - n_counts
        counts = columns[:, first:] if n_counts else np.zeros((len(columns), 0), np.uint32)
        return cls(columns[:, :first], Csr.of(counts))

    @classmethod
    def joined(cls, tables: Sequence[FeatureTable]) -> FeatureTable:
        """Return the graphs of all tables, one table after the other."""
        if len(tables) == 1:
            return tables[0]
        return cls(np.concatenate([table.measured for table in tables]), Csr.joined([table.counts for table in tables]))

    def __len__(self) -> int:
        return len(self.measured)

    @property
    def shape(self) -> tuple[int, int]:
        """(G, D)."""
        return len(self), self.measured.shape[1] + self.counts.n_cols

    def __getitem__(self, graphs: NDArray[np.int64]) -> FeatureTable:
        """Return the features of the graphs with these numbers."""
        return FeatureTable(self.measured[graphs], self.counts.take(graphs))

    def first(self, width: int) -> FeatureTable:
        """Return the first `width` features."""
        measured = self.measured[:, :width]
        return FeatureTable(measured, self.counts.columns(0, width - measured.shape[1]))

    def counts_of(self, columns: slice) -> Csr:
        """Return counts (G, F): columns of the table, such as those of a fingerprint."""
        before = self.measured.shape[1]
        return self.counts.columns(columns.start - before, columns.stop - before)

    @property
    def dense_bytes(self) -> int:
        """Bytes of what `dense` returns."""
        return 4 * self.shape[0] * self.shape[1]

    def dense(self) -> NDArray[np.float32]:
        """Return all features, (G, D)."""
        found, before = np.zeros(self.shape, np.float32), self.measured.shape[1]
        found[:, :before] = self.measured
        self.counts.write_to(found[:, before:])
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.dense().astype(dtype or np.float32, copy=False)


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


class HostFeatures(GraphFeatures):
    """Features of the graphs of a batch in host memory, some of them counts: dense, (B, D), only where that is asked.

    Parameters
    ----------
    table : FeatureTable
        Of all graphs.
    graphs : integers, (B,)
    """

    def __init__(self, table: FeatureTable, graphs: NDArray[Any]) -> None:
        self._table, self._graphs = table, graphs
        self.rows = np.arange(len(graphs))

    @cached_property
    def values(self) -> Array:
        """All features of the batch."""
        return self._table[self._graphs].dense()

    @property
    def measured(self) -> GraphFeatures:
        """The features without the counts."""
        return GraphFeatures(self._table.measured, self._graphs)

    @cached_property
    def counts(self) -> Csr:
        """The counts of the batch as float32, (B, M)."""
        found = self._table.counts.take(self._graphs)
        return Csr(found.indptr.astype(np.int32), found.indices, found.data.astype(np.float32), found.n_cols)

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
