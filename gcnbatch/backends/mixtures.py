"""The interface of a backend's operations for mixtures: what fits a kernel, and predicts with kernels and trees.

All arrays are the host's. `gcnbatch.mixture` says what is computed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Fingerprint(NamedTuple):
    """Bits of n molecules, four in a column, as a CSR array without zeros.

    Parameters
    ----------
    indptr : int array, (n + 1,)
    indices : int array, (entries,)
        The column of each entry; a row has each once.
    bits : uint8, (entries,)
        Below 16.
    columns : int
    """

    indptr: NDArray[np.integer]
    indices: NDArray[np.integer]
    bits: NDArray[np.uint8]
    columns: int

    def take(self, rows: slice) -> Fingerprint:
        """Return some consecutive molecules."""
        indptr = self.indptr[rows.start : rows.stop + 1]
        entries = slice(indptr[0], indptr[-1])
        return Fingerprint(indptr - indptr[0], self.indices[entries], self.bits[entries], self.columns)


class Compared(NamedTuple):
    """What n molecules are compared by: at least one fingerprint, and scores (n, D), float32."""

    fingerprints: tuple[Fingerprint, ...]
    scores: NDArray[np.float32]

    def take(self, rows: slice) -> Compared:
        """Return some consecutive molecules."""
        return Compared(tuple(own.take(rows) for own in self.fingerprints), self.scores[rows])


class Similarity(Protocol):
    """Similarities of molecules to M landmarks; `gcnbatch.mixture.similarity` says what they are.

    Those of a molecule do not depend on the others.
    """

    def products(self, molecules: Compared, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return their products (n, K) with weights (M, K), summed in float64.

        Raises
        ------
        InputError
            When fingerprints or scores have other columns than those of the landmarks.
        """


class Nodes(NamedTuple):
    """T regression trees with K outputs, node by node; `gcnbatch.mixture.forest` says what they are.

    Parameters
    ----------
    nodes : int64
        The number of the first child, the threshold and the column, in 32, 16 and 16 bits. A row goes to the second
        child if its value is larger.
    leaves : int32
        Of each node: the number of its leaf, or -1.
    roots : int32, (T,)
    values : float32, (leaves, K)
    """

    nodes: NDArray[np.int64]
    leaves: NDArray[np.int32]
    roots: NDArray[np.int32]
    values: NDArray[np.float32]


class Forest(Protocol):
    """Trees in the backend's memory. Results of a row do not depend on the others."""

    def means(self, x: NDArray[np.int16]) -> NDArray[np.float64]:
        """Return the mean of the trees' values, (n, K), for rows x (n, P)."""


class Inverse(Protocol):
    """The inverse G (n, n) of a positive definite matrix in the backend's memory."""

    def sums(self) -> NDArray[np.float64]:
        """Return the sum of each row of G, (n,)."""

    def products(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return G x, (n, C)."""

    def block(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the rows and columns of G with these numbers, which ascend."""


class MixtureOps(Protocol):
    """What fits the kernel of a mixture, and predicts with the members beside the networks."""

    def similarity(self, landmarks: Compared, weight: float) -> Similarity:
        """Return similarities to landmarks, in which the part of the scores has this weight."""

    def inverse(self, molecules: Compared, weight: float, diagonal: NDArray[np.float64]) -> Inverse:
        """Return the inverse of the similarities of n molecules to each other, with `diagonal` (n,) added.

        Raises
        ------
        numpy.linalg.LinAlgError
            When the sum is not positive definite.
        MachineError
            When it does not fit the backend's memory.
        """

    def forest(self, nodes: Nodes) -> Forest:
        """Return a forest."""

    def release(self) -> None:
        """Give memory that nothing uses back to the device."""
