"""Problems of `bench spmm`: the papers' random batches (figures 8 to 10), similar ones, batches of a data set.

Source: Nagasaka, Nukada, Kojima, Matsuoka, "Batched sparse matrix multiplication for accelerating graph convolutional
networks", CCGrid 2019, section V. Matrices are square, each with its own pattern; every row has the same number of
entries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import GraphLayout
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.sparse import MAX_ENTRIES, Adjacency, Csr
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from gcnbatch.lab.bench import traffic

COLUMNS = tuple(2**power for power in range(1, 11))
MAX_COLUMNS = 1 << 16
# Arrays of one element per row and column that a check holds at once: operand and float32 results, float64 results.
HOST_BYTES = 3 * 4 + 3 * 8


@dataclass(frozen=True)
class BatchShape:
    """A family of problems: `batch` matrices; sizes and entries per row are drawn from ranges (fewest, most).

    Entries per row are drawn once per matrix, as in the papers, or, with `ragged`, for every row.
    """

    name: str
    batch: int
    dim: tuple[int, int]
    per_row: tuple[int, int]
    columns: tuple[int, ...] = COLUMNS
    ragged: bool = False


FIGURES = {
    shape.name: shape
    for shape in (
        BatchShape("8a", 50, (50, 50), (2, 2)),
        BatchShape("8b", 100, (50, 50), (3, 3)),
        BatchShape("9a", 100, (32, 32), (3, 3)),
        BatchShape("9b", 100, (64, 64), (3, 3)),
        BatchShape("9c", 100, (128, 128), (3, 3)),
        BatchShape("9d", 50, (64, 64), (3, 3)),
        BatchShape("9e", 100, (64, 64), (1, 1)),
        BatchShape("9f", 100, (64, 64), (5, 5)),
        BatchShape("10", 100, (32, 256), (1, 5)),
    )
}


@dataclass(frozen=True)
class SpmmProblem:
    """A block-diagonal batch of sparse matrices, in the backends' form.

    Parameters
    ----------
    name : str
        Name of the figure or data set.
    about : dict
        Identification in a record: batch, dim, nnz_per_row, seed.
    adjacency : Adjacency
        Host arrays; only the forward matrix is used.
    layout : GraphLayout
    """

    name: str
    about: dict[str, Any]
    adjacency: Adjacency
    layout: GraphLayout

    @cached_property
    def matrix(self) -> Any:
        """The block-diagonal matrix (N, N*C) for SciPy, float32."""
        csr = self.adjacency.forward
        shape = (len(csr.indptr) - 1, csr.n_cols)
        return sp.csr_array((csr.data, csr.indices, csr.indptr), shape=shape)

    @property
    def equal(self) -> bool:
        """Whether all matrices have the same size."""
        return len(set(np.diff(self.layout.node_ptr).tolist())) <= 1

    def dense(self, columns: int) -> NDArray[np.float32]:
        """Return the operand (N*C, columns), the same for the same seed."""
        rng = np.random.default_rng([self.about["seed"], columns])
        return rng.random((self.matrix.shape[1], columns), dtype=np.float32)

    def work(self, columns: int) -> traffic.Traffic:
        """Return the compulsory bytes of the product and its 2 nnz `columns` flops."""
        n_nodes, channels = self.matrix.shape[0], self.adjacency.n_channels
        return traffic.spmm(self.adjacency, _Shaped((n_nodes, channels * columns)))


@dataclass(frozen=True)
class _Shaped:
    shape: tuple[int, int]


def chosen(
    figures: Sequence[str],
    batch: int | None,
    dim: int | str | None,
    per_row: int | str | None,
    columns: tuple[int, ...] | None,
) -> list[BatchShape]:
    """Return the shapes for the options of the command line.

    Parameters
    ----------
    figures : sequence of str
        Names in `FIGURES`, or "all"; none with free parameters, whose defaults are those of figure 8b.
    batch, dim, per_row, columns
        Replacements for the figure's values: a count, 50 or "32-256", 3 or "1-5", (2, 64, 512).

    Raises
    ------
    InputError
        For an unknown figure, and numbers that are invalid or inconsistent.
    """
    free = (batch, dim, per_row) != (None, None, None)
    names = list(FIGURES) if "all" in figures or not (figures or free) else list(dict.fromkeys(figures))
    for name in names:
        if name not in FIGURES:
            raise InputError("--figure", f"'{name}'", f"all, {', '.join(FIGURES)}")
    if figures and free:
        hint = "Leave out --figure, or --batch, --dim and --nnz-per-row."
        raise InputError("--figure", "free parameters beside it", "one or the other", hint)
    shapes = [FIGURES[name] for name in names] if not free else [replace(FIGURES["8b"], name="free")]
    changes: dict[str, Any] = {"batch": batch, "columns": columns}
    changes["dim"] = None if dim is None else span("--dim", dim)
    changes["per_row"] = None if per_row is None else span("--nnz-per-row", per_row)
    given = {key: value for key, value in changes.items() if value is not None}
    return [checked(replace(shape, **given)) for shape in shapes]


def span(option: str, text: int | str) -> tuple[int, int]:
    """Return (fewest, most) of 50, "50" or "32-256"."""
    found = re.fullmatch(r"\s*(\d{1,12})(?:\s*-\s*(\d{1,12}))?\s*", str(text))
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= fewest <= most:
        raise InputError(option, f"'{text}'", "a count such as 50, or a range such as 32-256")
    return fewest, most


def counts(option: str, words: Sequence[int | str]) -> tuple[int, ...]:
    """Return counts that may be texts as numbers."""
    numbers = tuple(int(word) if re.fullmatch(r"\s*\d{1,12}\s*", str(word)) else 0 for word in words)
    if not all(1 <= number <= MAX_COLUMNS for number in numbers):
        raise InputError(
            option, f"'{','.join(map(str, words))}'", f"counts from 1 to {MAX_COLUMNS}, such as 64 or 2,64,512"
        )
    return numbers


def checked(shape: BatchShape) -> BatchShape:
    """Return `shape` after checking that its numbers are consistent.

    Raises
    ------
    InputError
        For more entries in a row than columns, and more rows or entries than 32-bit indices can address.
    """
    if shape.batch < 1:
        raise InputError("--batch", str(shape.batch), "at least 1")
    if shape.per_row[1] > shape.dim[0]:
        raise InputError(
            "--nnz-per-row",
            f"{shape.per_row[1]} entries in a row of {shape.dim[0]} columns",
            "at most as many as columns (--dim)",
        )
    entries = shape.batch * shape.dim[1] * shape.per_row[1]
    if entries > MAX_ENTRIES:
        raise InputError("--batch", f"up to {entries} entries", f"at most {MAX_ENTRIES}", "Lower --batch or --dim.")
    rows = shape.batch * shape.dim[1]
    check_memory(f"problem {shape.name}", HOST_BYTES * rows * max(shape.columns) + 16 * entries)
    return shape


def check_memory(what: str, nbytes: int, available: int | None = None, where: str = "this machine") -> None:
    """Refuse a problem that does not fit in memory.

    Raises
    ------
    InputError
        When `nbytes` exceed `available`; None: the free memory of this machine.
    """
    if available is None:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if nbytes > available:
        raise InputError(
            what,
            f"takes {nbytes / 2**30:,.1f} GiB",
            f"at most the {available / 2**30:,.1f} GiB free on {where}",
            "Lower --batch, --dim or --columns.",
        )


def random_batch(shape: BatchShape, seed: int = 0) -> SpmmProblem:
    """Return a batch of random matrices, each row's columns drawn without repetition."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(shape.dim[0], shape.dim[1] + 1, shape.batch)
    node_ptr = np.concatenate([[0], np.cumsum(sizes)])
    fewest, most = shape.per_row
    per_row = rng.integers(fewest, most + 1, node_ptr[-1] if shape.ragged else shape.batch)
    n, z = np.repeat(sizes, sizes), per_row if shape.ragged else np.repeat(per_row, sizes)
    columns = _distinct(n, z, rng) + np.repeat(node_ptr[:-1], sizes)[:, None]
    present = np.arange(columns.shape[1]) < z[:, None]
    columns = np.sort(np.where(present, columns, np.iinfo(np.int64).max), axis=1)
    indices = columns[present].astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(z)]).astype(np.int32)
    data = rng.random(len(indices), dtype=np.float32)
    csr = Csr(indptr, indices, data, len(n))
    about = {"batch": shape.batch, "dim": list(shape.dim), "nnz_per_row": list(shape.per_row), "seed": seed}
    return SpmmProblem(shape.name, about, Adjacency(csr, csr, 1), GraphLayout(node_ptr))


def _distinct(n: NDArray[Any], z: NDArray[Any], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return z[i] distinct random numbers below n[i] in row i, by Floyd's algorithm; ignore columns from z[i] on.

    Source: Bentley and Floyd, "A sample of brilliance", CACM 30 (1987).
    """
    found = np.full((len(n), int(z.max(initial=0))), -1, dtype=np.int64)
    for i in range(found.shape[1]):
        last = n - z + i
        drawn = (rng.random(len(n)) * (last + 1)).astype(np.int64)
        taken = (found[:, :i] == drawn[:, None]).any(axis=1)
        found[:, i] = np.where(taken, last, drawn)
    return found


def from_dataset(path: Path, batch: int | None, columns: Sequence[int], seed: int = 0) -> SpmmProblem:
    """Return `batch` random graphs (default 50) of an HDF5 data set, with all channels, symmetrically normalised.

    Raises
    ------
    InputError
        When the file is not a data set, or has fewer graphs.
    """
    with Dataset(path) as dataset:
        size = min(50, dataset.n_graphs) if batch is None else batch
        if not 1 <= size <= dataset.n_graphs:
            raise InputError("--batch", str(size), f"1 to {dataset.n_graphs}, the graphs of {path}")
        graphs = np.random.default_rng(seed).permutation(dataset.n_graphs)[:size]
        found = BatchSource(dataset).batch(graphs)
        name = dataset.header.name
    rows = found.n_nodes * found.adjacency.n_channels
    check_memory(str(path), HOST_BYTES * rows * max(columns))
    about = {"data": name, "batch": size, "channels": found.adjacency.n_channels, "seed": seed}
    return SpmmProblem(name, about, found.adjacency, GraphLayout(found.node_ptr, found.adjacency.n_channels))
