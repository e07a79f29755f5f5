"""Registry entries for tests: they open given backends, refuse tasks, or cannot start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.backends import registry
from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.cpu import CpuBackend
from gcnbatch.backends.mixtures import Compared, Fingerprint, Nodes
from gcnbatch.backends.registry import BackendEntry, BackendStatus
from gcnbatch.errors import MachineError
from gcnbatch.runners import ops
from gcnbatch.runners.cohort import JoinedRunner
from gcnbatch.runners.task import RunnerTask


@dataclass(frozen=True)
class MadeEntry(BackendEntry):
    """An entry without a module.

    Parameters
    ----------
    made : Backend or MachineError or str
        The backend or the error of `open`; a text is the reason why the backend cannot start.
    refused : str
        The reason why it refuses every task; empty: it takes all.
    opened : list
        Arguments of the calls of `open`.
    """

    summary: str = "made for a test"
    backend: str = "none"
    made: Backend | MachineError | str = field(default_factory=CpuBackend)
    refused: str = ""
    opened: list[tuple[Any, ...]] = field(default_factory=list)

    def probe(self, device: int = 0) -> BackendStatus:
        if isinstance(self.made, str):
            return BackendStatus(self.name, False, self.made, "Fix it.")
        return BackendStatus(self.name, True)

    def open(self, *how: Any) -> Backend:
        self.opened.append(how)
        if isinstance(self.made, MachineError):
            raise self.made
        assert not isinstance(self.made, str)
        return self.made

    @property
    def runners(self) -> Any:
        """Its module of runners: the entry itself."""
        return self

    def refuses(self, backend: Backend, task: RunnerTask) -> str | None:
        return self.refused or None

    def cohort_size(self, backend: Backend, tasks: Sequence[RunnerTask]) -> int:
        return 1

    def make_runner(self, backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
        return ops.make_runner(backend, tasks)


@dataclass(frozen=True)
class CohortEntry(MadeEntry):
    """An entry whose backend trains up to `most` models in a cohort; `sizes` notes those of its cohorts."""

    steps_are_operations: bool = False
    most: int = 64
    sizes: list[int] = field(default_factory=list)

    def cohort_size(self, backend: Backend, tasks: Sequence[RunnerTask]) -> int:
        return min(self.most, len(tasks))

    def make_runner(self, backend: Backend, tasks: Sequence[RunnerTask]) -> Runner:
        self.sizes.append(len(tasks))
        return JoinedRunner([ops.make_runner(backend, [task]) for task in tasks])


class NamedBackend(CpuBackend):
    """The backend ``cpu`` under another name."""

    def __init__(self, name: str) -> None:
        self.name = name


class ComparingBackend(NamedBackend):
    """The same, which predicts with members of mixtures; `rows` notes how many molecules each call compares."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.rows: list[int] = []

    def mixture_ops(self) -> Any:
        return self

    def similarity(self, landmarks: Compared, weight: float) -> Any:
        return HostSimilarity(self.rows, landmarks, weight)

    def forest(self, nodes: Nodes) -> Any:
        return HostForest(nodes)

    def release(self) -> None:
        self.rows.append(0)

    def inverse(self, molecules: Compared, weight: float, diagonal: NDArray[np.float64]) -> Any:
        self.rows.append(len(diagonal))
        return HostInverse(HostSimilarity([], molecules, weight).matrix(molecules) + np.diag(diagonal))


@dataclass
class HostSimilarity:
    """`gcnbatch.backends.mixtures.Similarity` by whole matrices of float64."""

    rows: list[int]
    landmarks: Compared
    weight: float

    def matrix(self, molecules: Compared) -> NDArray[np.float32]:
        left, right = molecules.scores.astype(float), self.landmarks.scores.astype(float)
        distances = ((left[:, None] - right) ** 2).sum(axis=2)
        total = self.weight * np.exp(-distances / max(left.shape[1], 1))
        for own, other in zip(molecules.fingerprints, self.landmarks.fingerprints, strict=True):
            a, b = _bits(own), _bits(other)
            common = a @ b.T
            total += common / np.maximum(a.sum(axis=1)[:, None] + b.sum(axis=1) - common, 1)
        return (total / (self.weight + len(molecules.fingerprints))).astype(np.float32)

    def products(self, molecules: Compared, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        self.rows.append(len(molecules.scores))
        return self.matrix(molecules) @ weights


class HostInverse:
    """`gcnbatch.backends.mixtures.Inverse` of a matrix (n, n)."""

    def __init__(self, matrix: NDArray[np.float64]) -> None:
        self._inverse = np.linalg.inv(matrix)

    def sums(self) -> NDArray[np.float64]:
        return self._inverse.sum(axis=1)

    def products(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._inverse @ x

    def block(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._inverse[np.ix_(rows, rows)]


@dataclass
class HostForest:
    """`gcnbatch.backends.mixtures.Forest`, row by row."""

    trees: Nodes

    def means(self, x: NDArray[np.int16]) -> NDArray[np.float64]:
        return np.stack([self._sum(row) for row in x]) / len(self.trees.roots) if len(x) else self.trees.values[:0]

    def _sum(self, row: NDArray[np.int16]) -> NDArray[np.float64]:
        nodes, leaves, roots, values = self.trees
        total = np.zeros(values.shape[1])
        for root in roots.tolist():
            node = root
            while leaves[node] < 0:
                packed = int(nodes[node])
                node = (packed >> 32) + (row[packed & 0xFFFF] > np.array(packed >> 16 & 0xFFFF).astype(np.int16))
            total += values[leaves[node]]
        return total


def _bits(of: Fingerprint) -> NDArray[np.float64]:
    """Return the bits of molecules, (n, 4 columns)."""
    found = np.zeros((len(of.indptr) - 1, of.columns, 4))
    rows = np.repeat(np.arange(len(found)), np.diff(of.indptr))
    found[rows, of.indices] = of.bits[:, None] >> np.arange(4) & 1
    return found.reshape(len(found), 4 * of.columns)


def register(monkeypatch: pytest.MonkeyPatch, *entries: BackendEntry) -> None:
    """Replace the registry with these entries, fastest first."""
    monkeypatch.setattr(registry, "BACKENDS", entries)
