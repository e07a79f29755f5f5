"""Matrices for the measurement of SpGEMM: typical classes, the adjacency of a data set, Matrix Market files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.data.sparse import MAX_ENTRIES, ScipyCsr
from gcnbatch.errors import InputError, closest
from gcnbatch.fileio import StrPath, open_regular
from gcnbatch.machine import blame
from gcnbatch.text import is_storable


class SpgemmProblem(NamedTuple):
    """A product to measure: a square matrix times itself, or a rectangular one times its transpose."""

    name: str
    left: ScipyCsr
    right: ScipyCsr


def problem(name: str, matrix: ScipyCsr) -> SpgemmProblem:
    """Return the problem A A, or A Aᵀ if A is not square."""
    square = matrix.shape[0] == matrix.shape[1]
    return SpgemmProblem(name, matrix, matrix if square else canonical(matrix.T))


def canonical(matrix: Any) -> ScipyCsr:
    """Return a matrix as float32 CSR with sorted, distinct columns and int32 indices."""
    found = sp.csr_array(matrix, dtype=np.float32)
    found.sum_duplicates()
    return sp.csr_array((found.data, found.indices.astype(np.int32), found.indptr.astype(np.int32)), shape=found.shape)


def molecules(scale: float, rng: np.random.Generator) -> ScipyCsr:
    """Adjacency with self-loops of a batch of synthetic molecules with the sizes of Tox21: 8,000 at scale 1."""
    from gcnbatch.data import synthetic
    from gcnbatch.data.graphs import concatenate

    count = max(round(8000 * scale), 1)
    return batch_matrix(concatenate(list(synthetic.generate("tox21", int(rng.integers(2**31)), count))))


def batch_matrix(graphs: Any) -> ScipyCsr:
    """Return the block-diagonal adjacency of all graphs of a set, summed over channels."""
    from gcnbatch.data.khop import adjacency

    return adjacency(graphs)


def power_law(scale: float, rng: np.random.Generator) -> ScipyCsr:
    """Power-law graph: 200,000 nodes and 1 M entries, both ends drawn by Pareto weights (density ~ degree^-3)."""
    nodes, entries = max(round(200_000 * scale), 2), max(round(1_000_000 * scale), 1)
    weights = np.cumsum((1.0 - rng.random(nodes)) ** -0.5)
    ends = np.searchsorted(weights, rng.random((2, entries)) * weights[-1], side="right")
    return _from_entries(np.minimum(ends, nodes - 1), nodes, rng)


def stencil(scale: float, rng: np.random.Generator) -> ScipyCsr:
    """27-point stencil on a cube with 64 points per side at scale 1."""
    side = max(round(64 * scale ** (1 / 3)), 1)
    line: Any = sp.csr_array(np.abs(np.subtract.outer(np.arange(side), np.arange(side))) <= 1, dtype=np.float32)
    found = canonical(sp.kron(sp.kron(line, line), line))
    found.data = _values(found.nnz, rng)
    return found


def uniform(scale: float, rng: np.random.Generator) -> ScipyCsr:
    """Random matrix: 500,000 rows with 8 entries in random columns."""
    nodes = max(round(500_000 * scale), 1)
    rows = np.repeat(np.arange(nodes), 8)
    return _from_entries(np.stack([rows, rng.integers(0, nodes, 8 * nodes)]), nodes, rng)


CLASSES: dict[str, Callable[[float, np.random.Generator], ScipyCsr]] = {
    "molecules": molecules,
    "power_law": power_law,
    "stencil": stencil,
    "uniform": uniform,
}


def check_class(name: str, scale: float) -> None:
    """Raise InputError for an unknown class, or a scale outside 0 to 16."""
    if name not in CLASSES:
        raise InputError("--classes", f"'{name}'", ", ".join(CLASSES), closest(name, CLASSES))
    if not 0.0 < scale <= 16.0:
        raise InputError("--scale", f"{scale:g}", "above 0, at most 16")


def of_class(name: str, scale: float = 1.0, seed: int = 0) -> SpgemmProblem:
    """Return the problem of a class of matrices; the same name, scale and seed give the same matrix.

    Raises
    ------
    InputError
        As `check_class`.
    """
    check_class(name, scale)
    return problem(name, CLASSES[name](scale, philox.generator(seed, f"bench.spgemm.{name}")))


def of_dataset(path: StrPath) -> SpgemmProblem:
    """Return the problem with the block-diagonal adjacency of all graphs of a data set."""
    from gcnbatch.data.store import Dataset

    with Dataset(path) as dataset:
        return problem(Path(path).name, batch_matrix(dataset.load()))


def of_file(path: StrPath) -> SpgemmProblem:
    """Return the problem with a Matrix Market file (.mtx, .mtx.gz); a pattern matrix gets ones.

    Raises
    ------
    InputError
        When the file cannot be read as a matrix, is complex, or is too large for 32-bit indices.
    """
    from scipy.io import mminfo, mmread

    open_regular(path, "a Matrix Market file").close()
    if not is_storable(str(path)):  # SciPy does not open it
        raise InputError(str(path), "a path that is not UTF-8", "one in UTF-8", "Rename it.")
    try:
        rows, columns, entries, _, kind, _ = mminfo(path)
        if kind == "complex":
            raise InputError(str(path), "complex values", "real, integer or pattern")
        if max(rows, columns, entries) > MAX_ENTRIES:
            raise InputError(str(path), f"{rows:,} x {columns:,} with {entries:,} entries", f"at most {MAX_ENTRIES:,}")
        matrix = canonical(mmread(path))
    except (OSError, ValueError, OverflowError) as error:
        blame(error)
        raise InputError(str(path), str(error), "a Matrix Market file") from error
    return problem(Path(path).name, matrix)


def _from_entries(ends: NDArray[np.int64], nodes: int, rng: np.random.Generator) -> ScipyCsr:
    keys = np.unique(ends[0] * nodes + ends[1])
    indptr = np.concatenate([[0], np.cumsum(np.bincount(keys // nodes, minlength=nodes))]).astype(np.int32)
    return sp.csr_array((_values(len(keys), rng), (keys % nodes).astype(np.int32), indptr), shape=(nodes, nodes))


def _values(count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return positive values, so that no sum in a product cancels to 0."""
    return rng.random(count, dtype=np.float32) + np.float32(0.5)
