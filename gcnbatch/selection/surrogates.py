"""Models that a campaign fits in each round: from known rows to mean and deviation of all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from gcnbatch.baselines.forest import Forest
from gcnbatch.config import Config
from gcnbatch.data.graphs import Int64
from gcnbatch.data.store import Dataset
from gcnbatch.data.writer import write_graphset
from gcnbatch.inference import ensemble
from gcnbatch.machine import cores
from gcnbatch.mixture.forest import without_warnings
from gcnbatch.mixture.kernel import RIDGES
from gcnbatch.mixture.molecules import Molecules, Preparation, Prepared
from gcnbatch.mixture.similarity import Similarity, blas_threads
from gcnbatch.training import run

Float64 = NDArray[np.float64]
# Takes the known rows, ascending; returns mean and standard deviation (N,) of all rows.
Surrogate = Callable[[Int64], tuple[Float64, Float64]]
_LEAST_VARIANCE = 1e-6
_WHOLE = 0.9  # of the fragments' error: the most that the whole kernel may leave


class Kernel:
    """A Gaussian process with the kernel of a mixture, or with that of its circular fragments alone.

    Kernel and ridge have the least leave-one-out error; the whole kernel must save a tenth of it. The variance of the
    process is its maximum-likelihood estimate. Similarities to a row are computed when it becomes known.

    Parameters
    ----------
    molecules : Molecules
        All N of them: their descriptors are scaled together.
    y : float64, (N,)
        The values of known rows are read.
    """

    def __init__(self, molecules: Molecules, y: Float64) -> None:
        whole = Preparation.fit(molecules).apply(molecules)
        # Without scores, the RBF is 1: a constant, which is the variance of the mean of the process.
        self._features = Prepared(whole.counts[:1], whole.scores[:, :0]), whole
        self._y, self._rows = y, np.zeros(0, np.int64)
        self._similarities = [np.zeros((len(y), 0)) for _ in self._features]

    def __call__(self, known: Int64) -> tuple[Float64, Float64]:
        """Return mean and standard deviation of the process."""
        if len(new := np.setdiff1d(known, self._rows)):
            more = [Similarity(of[new], cores()).matrix(of) for of in self._features]
            self._rows = np.concatenate([self._rows, new])
            self._similarities = [np.concatenate(pair, axis=1) for pair in zip(self._similarities, more, strict=True)]
        with blas_threads(cores()):
            fragments, whole = (Process.fit(k, self._rows, self._y[self._rows]) for k in self._similarities)
            return (whole if whole.error < _WHOLE * fragments.error else fragments).predict()


@dataclass(frozen=True)
class Process:
    """A Gaussian process that is fitted to n of N rows.

    Parameters
    ----------
    k : float64, (N, n)
        Covariances with the known rows, before they are scaled.
    vectors, inverse, rotated : float64, (n, n), (n,), (n,)
        Eigenvectors of the known rows' covariances, inverse eigenvalues with the ridge, centred y in their basis.
    center : float
    error : float
        Leave-one-out.
    """

    k: Float64
    vectors: Float64
    inverse: Float64
    rotated: Float64
    center: float
    error: float

    @classmethod
    def fit(cls, k: Float64, rows: Int64, y: Float64) -> Process:
        """Return the process of values `y (n,)` of rows with the best ridge."""
        center = float(y.mean())
        values, vectors = np.linalg.eigh(k[rows])
        rotated = vectors.T @ (y - center)

        def left_out(ridge: float) -> float:
            inverse = 1 / (values + ridge)
            return float(np.mean((vectors @ (inverse * rotated) / (vectors**2 @ inverse)) ** 2))

        error, ridge = min((left_out(ridge), ridge) for ridge in RIDGES)
        return cls(k, vectors, 1 / (values + ridge), rotated, center, error)

    def predict(self) -> tuple[Float64, Float64]:
        """Return mean and standard deviation (N,)."""
        weighted = self.inverse * self.rotated
        variance = float(weighted @ self.rotated) / len(weighted)
        projected = self.k @ self.vectors
        share = 1 - projected**2 @ self.inverse
        return self.center + projected @ weighted, np.sqrt(variance * np.maximum(share, _LEAST_VARIANCE))


@dataclass(frozen=True)
class RandomForest:
    """The random forest of the baseline, on counts of fragments and descriptors.

    Parameters
    ----------
    dataset : Dataset
    x : float32, (N, F)
    seed : int
    """

    dataset: Dataset
    x: NDArray[np.float32]
    seed: int

    def __call__(self, known: Int64) -> tuple[Float64, Float64]:
        """Return the forest's values; no deviation."""
        with without_warnings():
            found = Forest(seed=self.seed).predict(self.dataset.header, self.x, self.dataset.measured, known)
        return found[:, 0].astype(np.float64), np.zeros(len(found))


@dataclass(frozen=True)
class Recipe:
    """A whole run of a configuration."""

    config: Config
    dataset: Dataset

    def __call__(self, known: Int64) -> tuple[Float64, Float64]:
        """Return mean and deviation of the run's models."""
        with TemporaryDirectory(prefix="gcnbatch-") as place:
            data = Path(place) / "known.h5"
            write_graphset(data, self.dataset.read(known))
            changed = {
                "data": self.config.data.model_copy(update={"path": str(data)}),
                "split": self.config.split.model_copy(update={"test": 0.0, "kind": "random"}),
            }
            folder, _ = run.start(self.config.model_copy(update=changed), Path(place) / "run", quiet=True)
            found = ensemble.predict([folder], self.dataset.load(), level=None)
        deviation = np.zeros(len(found.outputs)) if found.std is None else found.std[:, 0].astype(np.float64)
        return found.outputs[:, 0].astype(np.float64), deviation


def features(molecules: Molecules) -> NDArray[np.float32]:
    """Return what a forest reads of all rows: counts of fragments, then descriptors, 0 where missing."""
    counts = molecules.counts[0].toarray().astype(np.float32)
    return np.concatenate([counts, np.nan_to_num(molecules.descriptors, nan=0.0).astype(np.float32)], axis=1)
