"""The kernel: similarity of two molecules, 1 for equal ones.

It is the mean of a Tanimoto similarity for each fingerprint of counts, and of a radial basis function (RBF)

    exp(-|s - s'|² / S)        of the S normal scores of descriptors.

Counts enter the Tanimoto similarity as bits, "at least 1, 2, 3, 5", so that intersections are products of matrices:

    T(a, b) = |a and b| / (|a| + |b| - |a and b|)
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gcnbatch.mixture.molecules import Prepared

THRESHOLDS = (1, 2, 3, 5)
BLOCK = 64  # rows of a block: few, as a product of one molecule takes the time of them all


class Similarity:
    """The kernel between any molecules and the M landmarks, which it holds ready for products.

    Parameters
    ----------
    landmarks : Prepared
    jobs : int
        Threads; results do not depend on it.
    """

    def __init__(self, landmarks: Prepared, jobs: int = 1) -> None:
        self._jobs = jobs
        self._bits = []
        for counts in landmarks.counts:
            bits = thresholds(counts)
            self._bits.append((np.ascontiguousarray(bits.T.toarray()), np.diff(bits.indptr).astype(np.float32)))
        self._scores = np.ascontiguousarray(landmarks.scores.T)
        self._norms = (landmarks.scores**2).sum(axis=1)

    def blocks(self, molecules: Prepared, jobs: int = 0) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield slices of rows and their similarities (rows, M), in order; memory does not grow with n.

        `jobs` threads, if that is not 0.
        """
        jobs = jobs or self._jobs
        slices = [slice(first, first + BLOCK) for first in range(0, len(molecules), BLOCK)]
        if len(slices) == 1:  # a thread takes longer to start
            yield slices[0], self._block(molecules)
            return
        with ThreadPoolExecutor(jobs) as threads:
            for first in range(0, len(slices), jobs):
                some = slices[first : first + jobs]
                yield from zip(some, threads.map(self._block, [molecules[of] for of in some]), strict=True)

    def matrix(self, molecules: Prepared) -> NDArray[np.float64]:
        """Return all similarities, (n, M)."""
        found = np.empty((len(molecules), len(self._norms)), np.float64)
        with blas_threads(1):
            for rows, block in self.blocks(molecules):
                found[rows] = block
        return found

    def _block(self, molecules: Prepared) -> NDArray[np.float32]:
        own = (molecules.scores**2).sum(axis=1)
        total = 2 * by_rows(molecules.scores, self._scores)
        total -= own[:, None]
        total -= self._norms
        total /= max(self._scores.shape[0], 1)
        np.minimum(total, 0, out=total)
        np.exp(total, out=total)
        for counts, (landmarks, sizes) in zip(molecules.counts, self._bits, strict=True):
            bits = thresholds(counts)
            common = bits @ landmarks
            either = np.diff(bits.indptr).astype(np.float32)[:, None] + sizes - common
            total += np.divide(common, either, out=common, where=either > 0)
        total /= 1 + len(self._bits)
        return np.asarray(total, np.float32)


def by_rows(block: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """Return the product of at most `BLOCK` rows with a matrix; each row's is equal to the bit in any block.

    BLAS adds in an order that depends on the number of rows, so it is always the same.
    """
    if len(block) == BLOCK:
        return block @ matrix
    whole = np.zeros((BLOCK, block.shape[1]), block.dtype)
    whole[: len(block)] = block
    return (whole @ matrix)[: len(block)]


def blas_threads(count: int) -> Any:
    """Return a context in which BLAS has `count` threads: 1 where blocks have threads of their own."""
    return _threadpools().limit(limits=count, user_api="blas")


@cache
def _threadpools() -> Any:
    """Return the libraries with threads: to find them takes milliseconds."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def thresholds(counts: Any) -> Any:
    """Return the bits "at least 1, 2, 3, 5" of counts (n, F) as a CSR array (n, 4 F) of ones, float32."""
    parts = []
    for least in THRESHOLDS:
        bits = counts.copy()
        bits.data = (counts.data >= least).astype(np.float32)
        bits.eliminate_zeros()
        parts.append(bits)
    return sparse.csr_array(sparse.hstack(parts, format="csr"))
