"""Distinct undirected bonds of one network in four bytes each, and their edges in the order of the file format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64, bounded_ranges
from gcnbatch.data.sparse import row_pointer

EDGE_BLOCK, SHARE = 1 << 16, 64  # edges per block: at least the first, or this share of the bonds
WAITING = 1_000_000  # most unsorted bonds while the set is less than four times as large
BUCKETS = 64  # at least, if there are enough nodes: sorting copies a bucket
EdgeEnds = tuple[NDArray[np.int32], NDArray[np.int32]]


class Bonds:
    """A growing set of bonds between `nodes` nodes.

    Bonds are stored in buckets by their smaller end. A bucket covers few enough smaller ends that the key
    ``smaller * nodes + larger``, relative to the bucket's first key, fits in 32 bits.

    Attributes
    ----------
    count : int
        Number of bonds after the last `settle`.
    """

    def __init__(self, nodes: int) -> None:
        self.nodes, self.count = nodes, 0
        self._ends = max(min(2**32 // nodes, nodes // BUCKETS), 1)
        n_buckets = -(-nodes // self._ends)
        self._starts = np.arange(n_buckets + 1) * (self._ends * nodes)
        self._settled = [np.empty(0, dtype=np.uint32)] * n_buckets
        self._new: list[list[NDArray[np.uint32]]] = [[] for _ in range(n_buckets)]
        self._waiting = 0

    def add(self, keys: Int64) -> None:
        """Add bonds as keys ``smaller * nodes + larger``; they may repeat, or be in the set already."""
        keys.sort()
        cuts = np.searchsorted(keys, self._starts)
        for bucket, new in enumerate(self._new):
            part = keys[cuts[bucket] : cuts[bucket + 1]]
            if len(part):
                new.append((part - self._starts[bucket]).astype(np.uint32))
        self._waiting += len(keys)
        if self._waiting > max(WAITING, self.count // 4):
            self.settle()

    def settle(self) -> None:
        """Merge the added bonds into the set."""
        for bucket, new in enumerate(self._new):
            if new:
                keys = np.concatenate([self._settled[bucket], *new])
                new.clear()
                keys.sort()
                self._settled[bucket] = keys[np.concatenate([np.ones(1, bool), keys[1:] != keys[:-1]])]
        self.count, self._waiting = sum(map(len, self._settled)), 0

    def edges(self) -> Iterator[EdgeEnds]:
        """Yield every bond in both directions and a self-loop for every node, ordered by (dst, src), in blocks.

        The set is empty afterwards.
        """
        indptr, larger, degree = self._rows()
        edge_ptr = row_pointer(degree)
        for low, high in bounded_ranges(edge_ptr, max(EDGE_BLOCK, self.count // SHARE)):
            yield self._block(indptr, larger, low, high)

    def _rows(self) -> tuple[Int64, NDArray[np.int32], Int64]:
        """Return the bonds as rows by smaller end (indptr, larger ends), and each node's number of stored edges."""
        length = np.zeros(self.nodes, dtype=np.int64)
        degree = np.ones(self.nodes, dtype=np.int64)
        larger = np.empty(self.count, dtype=np.int32)
        filled = 0
        for bucket in range(len(self._settled)):
            keys, self._settled[bucket] = self._settled[bucket], np.empty(0, dtype=np.uint32)
            first = bucket * self._ends
            ends = min(self._ends, self.nodes - first)
            length[first : first + ends] += np.bincount(keys // np.uint32(self.nodes), minlength=ends)
            keys %= np.uint32(self.nodes)
            larger[filled : filled + len(keys)] = keys
            degree += np.bincount(keys, minlength=self.nodes)
            filled += len(keys)
        return row_pointer(length), larger, degree + length

    def _block(self, indptr: Int64, larger: NDArray[np.int32], low: int, high: int) -> EdgeEnds:
        """Return the edges into nodes low ... high - 1."""
        own, start, stop = np.arange(low, high), int(indptr[low]), int(indptr[high])
        inside = larger[:stop] >= low
        inside &= larger[:stop] < high
        smaller_end = np.flatnonzero(inside)
        del inside
        keys = np.empty(stop - start + len(smaller_end) + len(own), dtype=np.int64)
        parts = np.split(keys, [stop - start, stop - start + len(smaller_end)])
        parts[0][:] = np.repeat((own - low) * self.nodes, np.diff(indptr[low : high + 1])) + larger[start:stop]
        parts[1][:] = (larger[smaller_end].astype(np.int64) - low) * self.nodes
        parts[1] += np.searchsorted(indptr, smaller_end, side="right") - 1
        parts[2][:] = (own - low) * self.nodes + own
        keys.sort()
        src, dst = np.empty((2, len(keys)), dtype=np.int32)
        np.remainder(keys, self.nodes, out=src, casting="unsafe")
        np.floor_divide(keys, self.nodes, out=dst, casting="unsafe")
        dst += np.int32(low)
        return src, dst
