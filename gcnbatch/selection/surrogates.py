"""Models that a campaign fits in each round: from known rows to mean and deviation of all rows."""

from __future__ import annotations

import warnings
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
from gcnbatch.mixture.kernel import RIDGES
from gcnbatch.mixture.molecules import Molecules, Preparation
from gcnbatch.mixture.similarity import Similarity, blas_threads
from gcnbatch.training import run

Float64 = NDArray[np.float64]
# Takes the known rows, ascending; returns mean and standard deviation (N,) of all rows.
Surrogate = Callable[[Int64], tuple[Float64, Float64]]
_LEAST_VARIANCE = 1e-6


class Kernel:
    """A Gaussian process with the kernel of a mixture.

    The ridge has the least leave-one-out error; the variance of the process is its maximum-likelihood estimate.
    Similarities to a row are computed when it becomes known.

    Parameters
    ----------
    molecules : Molecules
        All N of them: their descriptors are scaled together.
    y : float64, (N,)
        The values of known rows are read.
    """

    def __init__(self, molecules: Molecules, y: Float64) -> None:
        self._molecules, self._y = Preparation.fit(molecules).apply(molecules), y
        self._rows, self._similarities = np.zeros(0, np.int64), np.zeros((len(y), 0))

    def __call__(self, known: Int64) -> tuple[Float64, Float64]:
        """Return mean and standard deviation of the process."""
        if len(new := np.setdiff1d(known, self._rows)):
            more = Similarity(self._molecules[new], cores()).matrix(self._molecules)
            self._rows = np.concatenate([self._rows, new])
            self._similarities = np.concatenate([self._similarities, more], axis=1)
        k, y = self._similarities, self._y[self._rows]
        center = y.mean()
        with blas_threads(cores()):
            values, vectors = np.linalg.eigh(k[self._rows])
            rotated = vectors.T @ (y - center)

            def left_out(ridge: float) -> float:
                inverse = 1 / (values + ridge)
                return float(np.mean((vectors @ (inverse * rotated) / (vectors**2 @ inverse)) ** 2))

            inverse = 1 / (values + min(RIDGES, key=left_out))
            variance = float(inverse * rotated @ rotated) / len(y)
            projected = k @ vectors
            mean = center + projected @ (inverse * rotated)
            share = 1 - projected**2 @ inverse
        return mean, np.sqrt(variance * np.maximum(share, _LEAST_VARIANCE))


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
        with warnings.catch_warnings():  # as in `gcnbatch.mixture.forest.grow`
            warnings.simplefilter("ignore")
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
