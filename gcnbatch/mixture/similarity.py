"""The kernel: similarity of two molecules, 1 for equal ones.

It is a weighted mean of a Tanimoto similarity for each fingerprint of counts, and of a radial basis function (RBF)

    exp(-|s - s'|² / S)        of the S normal scores of descriptors.

The RBF has a weight of its own; the weight of each Tanimoto similarity is 1.

Counts enter the Tanimoto similarity as bits, "at least 1, 2, 3, 5":

    T(a, b) = |a and b| / (|a| + |b| - |a and b|)

The level of a count is the number of its bits, so that |a and b| is the sum of  min(level in a, level in b)  over
fragments: a product of the matrix that has a 1 for each fragment and level of a molecule, and of these minima for each
landmark. The sums are bytes, and two of them are added as one 16-bit word: a molecule whose sums could be larger has
several rows in the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gcnbatch.mixture.molecules import Prepared

THRESHOLDS = (1, 2, 3, 5)
BLOCK = 256  # rows of a block
_ROWS = 8  # rows of a product: few, as one molecule takes the time of all. BLAS adds each of 4 or 8 alike, not of 16
_COLUMNS = 512  # landmarks of a block: what a thread computes for it fits the cache of a core
_BITS = 256 - len(THRESHOLDS)  # of a row of a product, before its last fragment: all fit a byte
_LEVELS = np.searchsorted(THRESHOLDS, np.arange(256), side="right").astype(np.uint8)  # of each count
_MASKS = ((1 << _LEVELS.astype(np.int64)) - 1).astype(np.uint8)  # its bits, that of the least threshold first


class Similarity:
    """The kernel between any molecules and the M landmarks, which it holds ready for products.

    Parameters
    ----------
    landmarks : Prepared
    jobs : int
        Threads; results do not depend on it.
    weight : float
        Of the RBF.
    """

    def __init__(self, landmarks: Prepared, jobs: int = 1, weight: float = 1.0) -> None:
        self._landmarks, self._size, self._jobs, self._weight = landmarks, len(landmarks), jobs, weight
        self._columns = _column_blocks(self._size)
        with ThreadPoolExecutor(jobs) as threads:
            minima = [threads.map(partial(_minima, counts), self._columns) for counts in landmarks.counts]
            self._minima = [(list(of), _bits(counts)) for of, counts in zip(minima, landmarks.counts, strict=True)]
        self._rbf = _Rbf(landmarks)

    def blocks(self, molecules: Prepared) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield slices of rows and their similarities (rows, M), in order; memory does not grow with n."""
        jobs = self._jobs
        slices = [slice(first, first + BLOCK) for first in range(0, len(molecules), BLOCK)]
        with ThreadPoolExecutor(jobs) as threads:
            for first in range(0, len(slices), jobs):
                some = slices[first : first + jobs]
                yield from zip(some, threads.map(self.block, [molecules[of] for of in some]), strict=True)

    def products(self, molecules: Prepared, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the products (n, K) of the similarities with weights (M, K), block by block."""
        found = np.empty((len(molecules), weights.shape[1]))
        for first in range(0, len(molecules), BLOCK):
            rows = slice(first, first + BLOCK)
            found[rows] = by_rows(self.block(molecules[rows]), weights)
        return found

    def matrix(self, molecules: Prepared) -> NDArray[np.float64]:
        """Return all similarities, (n, M)."""
        found = np.empty((len(molecules), self._size), np.float64)
        with blas_threads(1):
            for rows, block in self.blocks(molecules):
                found[rows] = block
        return found

    def square(self) -> NDArray[np.float64]:
        """Return the similarities among the landmarks, (M, M); that of each pair is computed once."""
        found = np.empty((self._size, self._size), np.float64)

        def fill(first: int) -> None:
            rows = slice(first, first + BLOCK)
            block = self.block(self._landmarks[rows], -(-rows.stop // _COLUMNS))
            found[rows, : block.shape[1]] = block

        with blas_threads(1), ThreadPoolExecutor(self._jobs) as threads:
            list(threads.map(fill, range(0, self._size, BLOCK)))
        return mirrored(found)

    def block(self, molecules: Prepared, columns: int | None = None) -> NDArray[np.float32]:
        """Return the similarities (n, M) of at most `BLOCK` molecules, or those in the first blocks of columns."""
        blocks = self._columns[:columns]
        found = np.empty((len(molecules), blocks[-1].stop), np.float32)
        levels = [(*_one_hot(counts), _bits(counts)[:, None]) for counts in molecules.counts]
        for number, own in enumerate(blocks):
            total = self._rbf.block(molecules, own)
            total *= self._weight
            for (ones, starts, bits), (minima, sizes) in zip(levels, self._minima, strict=True):
                products = (ones @ minima[number]).view(np.uint8)[:, : total.shape[1]]
                common = _summed(products.astype(np.float32), starts)
                either = bits + sizes[own]
                either -= common
                common /= np.maximum(either, 1, out=either)  # both are 0 of molecules without fragments
                total += common
            total /= self._weight + len(self._minima)
            found[:, own] = total
        return found


def masks(counts: Any) -> NDArray[np.uint8]:
    """Return the bits of each stored count of a fingerprint: bit t says that it is at least THRESHOLDS[t]."""
    return _MASKS[counts.data]


def reweigh(matrix: NDArray[np.float64], molecules: Prepared, weight: float, jobs: int = 1) -> None:
    """Give the RBF another weight than 1 in the similarities (n, n) of all molecules, in their memory."""
    rbf, fingerprints = _Rbf(molecules), len(molecules.counts)

    def change(first: int) -> None:
        rows = slice(first, first + BLOCK)
        some = molecules[rows]
        matrix[rows] *= (1 + fingerprints) / (weight + fingerprints)
        for own in _column_blocks(len(molecules)):
            matrix[rows, own] += (weight - 1) / (weight + fingerprints) * rbf.block(some, own)

    with blas_threads(1), ThreadPoolExecutor(jobs) as threads:
        list(threads.map(change, range(0, len(molecules), BLOCK)))


class _Rbf:
    """The radial basis function between any molecules and M landmarks."""

    def __init__(self, landmarks: Prepared) -> None:
        self._scores = np.ascontiguousarray(landmarks.scores.T)
        self._norms = (landmarks.scores**2).sum(axis=1)

    def block(self, molecules: Prepared, columns: slice) -> NDArray[np.float32]:
        """Return its values for a block of landmarks."""
        found = 2 * by_rows(molecules.scores, self._scores[:, columns])
        found -= (molecules.scores**2).sum(axis=1)[:, None]
        found -= self._norms[columns]
        found /= max(self._scores.shape[0], 1)
        np.minimum(found, 0, out=found)
        return np.exp(found, out=found)


def _column_blocks(size: int) -> list[slice]:
    """Return the blocks of landmarks; none has one alone.

    BLAS multiplies a single column in another way: on some processors, the bits of a row depend on its place then.
    """
    starts = range(0, max(size - 1, 1), _COLUMNS)
    return [slice(first, stop) for first, stop in zip(starts, (*starts[1:], size), strict=True)]


def by_rows(block: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """Return the product of rows with a matrix; each row's is equal to the bit in any block.

    BLAS adds in an order that depends on the number of rows, and on the place of a row among more than 8, so each
    product has `_ROWS` of them.
    """
    whole = np.zeros((-(-len(block) // _ROWS) * _ROWS, block.shape[1]), block.dtype)
    whole[: len(block)] = block
    products = [whole[first : first + _ROWS] @ matrix for first in range(0, len(whole), _ROWS)]
    return np.concatenate(products)[: len(block)]


def mirrored(lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric matrix of a lower triangle, in its memory."""
    for first in range(0, len(lower), _COLUMNS):
        own, others = slice(first, first + _COLUMNS), slice(first + _COLUMNS, None)
        square = lower[own, own]
        square[...] = np.tril(square) + np.tril(square, -1).T
        lower[own, others] = lower[others, own].T
    return lower


def blas_threads(count: int) -> Any:
    """Return a context in which BLAS has `count` threads: 1 where blocks have threads of their own."""
    return _threadpools().limit(limits=count, user_api="blas")


@cache
def _threadpools() -> Any:
    """Return the libraries that have threads; finding them takes milliseconds."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def _sums(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return the sum of the numbers before each one, and of all, (n + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers, dtype=np.int64)])


def _bits(counts: Any) -> NDArray[np.float32]:
    """Return the number of bits (n,) of counts (n, F)."""
    return np.diff(_sums(_LEVELS[counts.data])[counts.indptr]).astype(np.float32)


def _one_hot(counts: Any) -> tuple[Any, NDArray[np.int64]]:
    """Return a CSR array (m, 4 F) that has a 1 for the fragment and level of each count of `counts (n, F)`.

    A row has at most 255 bits: those of a molecule with more are in several rows. Also return the first row of each
    molecule, and m at the end, (n + 1,).
    """
    levels, lengths = _LEVELS[counts.data], np.diff(counts.indptr)
    bits = _sums(levels)
    of_rows = bits[counts.indptr]
    starts = _sums(np.maximum(-(-np.diff(of_rows) // _BITS), 1))
    rows = np.repeat(starts[:-1], lengths) + (bits[:-1] - np.repeat(of_rows[:-1], lengths)) // _BITS
    columns = counts.indices * len(THRESHOLDS) + (levels - 1)
    parts = np.ones(len(columns), np.uint16), columns, np.searchsorted(rows, np.arange(starts[-1] + 1))
    return sparse.csr_array(parts, shape=(starts[-1], len(THRESHOLDS) * counts.shape[1])), starts


def _summed(parts: NDArray[np.float32], starts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the sums (n, M) of the rows of each molecule, which begin at `starts` (n + 1,)."""
    sizes = np.diff(starts)
    if len(parts) == len(sizes):
        return parts
    found = parts[starts[:-1]]
    for number in range(1, int(sizes.max())):
        more = np.flatnonzero(sizes > number)
        found[more] += parts[starts[more] + number]
    return found


def _minima(counts: Any, block: slice) -> NDArray[np.uint16]:
    """Return min(level, own level) of each fragment, level and row of `counts (n, F)`: (4 F, rows) for a block of rows.

    They are bytes, those of two rows in a word. Common fragments of a block stay in the cache: products read all of it.
    """
    own = _LEVELS[counts[block].toarray()].T.copy()
    columns, rows = own.shape
    found = np.zeros((columns, len(THRESHOLDS), rows + rows % 2), np.uint8)
    for level in range(len(THRESHOLDS)):
        np.minimum(own, level + 1, out=found[:, level, :rows])
    return found.reshape(len(THRESHOLDS) * columns, -1).view(np.uint16)
