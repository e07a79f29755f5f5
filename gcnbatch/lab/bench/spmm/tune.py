"""`gcnbatch bench tune`: times candidate kernels for adjacency products on a grid; tabulates the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gcnbatch.backends.cuda import entry
from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.spmm import table as spmm_table
from gcnbatch.backends.cuda.spmm.kernels import CANDIDATES, vector_width
from gcnbatch.backends.cuda.spmm.table import SpmmTable
from gcnbatch.errors import BackendUnavailable, CheckFailed
from gcnbatch.fileio import StrPath
from gcnbatch.lab.bench.clock import DeviceClock, machine
from gcnbatch.lab.bench.spmm.methods import launch_batch
from gcnbatch.lab.bench.spmm.problems import FIGURES, BatchShape, SpmmProblem, random_batch
from gcnbatch.progress import counter

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.backend import CudaBackend
    from gcnbatch.backends.cuda.spmm.kernels import SpmmKernel

ROWS = (16, 32, 64, 128)
PER_ROW = (1, 2, 3, 5, 8)
COLUMNS = (4, 16, 32, 64, 128, 256, 512, 1024)
BATCHES = (10, 50, 100, 1000, 10_000)
GRID: tuple[tuple[int, ...], ...] = (ROWS, PER_ROW, COLUMNS, BATCHES)
REPEATS = 9
LARGEST_BYTES = 1 << 28  # of the dense operand; wider points take the choice of the widest measured one
CHECKED = 1 << 17  # most elements of a result for which candidates are compared
CLOSE = 1.08  # most time on equal rows, relative to the fastest, of a candidate chosen for ragged rows

Point = tuple[int, int, int, int]


class Check(NamedTuple):
    """A point of the papers' figures: the candidate that a table chooses, the fastest one, and their ratio."""

    figure: str
    columns: int
    chosen: str
    fastest: str
    ratio: float


@dataclass
class Tuning:
    """Measurements of every candidate (microseconds) at the points of a grid.

    Parameters
    ----------
    axes : tuple of tuples
        As `SpmmTable.axes`.
    measured : dict
        GPU, driver, CUDA version and commit.
    times : dict
        By point (rows, per_row, columns, batch): times by candidate on each batch of `batches_of`.
    checks : list of Check
        The table's choices on the papers' figures, which are not grid points, against the fastest.
    """

    axes: tuple[tuple[int, ...], ...]
    measured: dict[str, Any]
    times: dict[Point, list[dict[str, float]]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def table(self) -> SpmmTable:
        """Return the table of the fastest; an unmeasured point takes the choice for the next smaller width."""
        fastest: dict[Point, str] = {}
        for point in points(self.axes):
            rows, per_row, columns, size = point
            place = self.axes[2].index(columns)
            narrower = fastest.get((rows, per_row, self.axes[2][place - 1], size)) if place else None
            fastest[point] = _fastest(self.times.get(point, []), narrower)
        names = tuple(fastest[point] for point in points(self.axes))
        return SpmmTable(self.axes, names, self.measured)

    def counts(self) -> list[list[Any]]:
        """Return the number of points that each candidate wins, the most first."""
        return [[name, count] for name, count in Counter(self.table().fastest).most_common()]

    def save(self, path: StrPath | None = None) -> Path:
        """Write the table to `path` (None: where "auto" reads it); return the path."""
        target = spmm_table.output(None if path is None else Path(path), str(self.measured["gpu"]))
        spmm_table.save(self.table(), target)
        return target.path


def _fastest(measured: Sequence[Mapping[str, float]], narrower: str | None) -> str:
    """Among candidates close to the fastest on equal rows, return the fastest on both batches together."""
    if not measured:
        return narrower or next(iter(CANDIDATES))
    equal, ragged = measured[0], measured[-1]
    good = [name for name in equal if equal[name] <= CLOSE * min(equal.values())]
    return min(good, key=lambda name: equal[name] * ragged[name])


def points(axes: tuple[tuple[int, ...], ...]) -> Iterator[Point]:
    """Yield the points of a grid, with the last axis fastest."""
    yield from product(*axes)


def batches_of(rows: int, per_row: int, size: int) -> list[BatchShape]:
    """Return the batches of a point: rows of equal length, and rows of 1 to 2 `per_row` - 1 entries."""
    equal = BatchShape("tune", size, (rows, rows), (per_row, per_row))
    return [equal, *([replace(equal, per_row=(1, 2 * per_row - 1), ragged=True)] if per_row > 1 else [])]


def tune(device: int = 0, axes: tuple[tuple[int, ...], ...] = GRID, repeats: int = REPEATS) -> Tuning:
    """Measure all candidates on a device.

    Raises
    ------
    InputError, BackendUnavailable
        When the device does not exist, or there is none.
    CheckFailed
        When candidates do not give the same bits.

    Notes
    -----
    Figures 8 to 10 are measured after the grid, to check the table's choices.
    """
    try:
        backend = entry.open_backend("batched", device)
    except BackendUnavailable as error:
        raise BackendUnavailable("bench tune", error.got, hint="It measures a GPU; see 'gcnbatch info'.") from error
    clock = DeviceClock(backend, repeats)
    found = Tuning(axes, machine(backend))
    batches = list(product(axes[0], axes[1], axes[3]))
    with counter(len(batches), " batches", leave=False) as bar:
        for rows, per_row, size in batches:
            for shape in batches_of(rows, per_row, size):
                measured = _Measured(backend, clock, random_batch(shape))
                for columns in axes[2]:
                    if 4 * rows * size * columns <= LARGEST_BYTES:
                        times = found.times.setdefault((rows, per_row, columns, size), [])
                        times.append(measured.times(columns))
            bar.update()
    table = found.table()
    for shape in FIGURES.values():
        measured = _Measured(backend, clock, random_batch(shape))
        found.checks += [measured.check(table, columns) for columns in shape.columns]
    return found


class _Measured:
    """A batch on the device, on which candidates are timed."""

    def __init__(self, backend: CudaBackend, clock: DeviceClock, problem: SpmmProblem) -> None:
        self._device, self._clock, self._problem = backend.device, clock, problem
        self._found = batch.adjacency(problem.adjacency, problem.layout, coo=False).map(self._device.upload)

    def times(self, columns: int) -> dict[str, float]:
        """Return the median microseconds of each distinct candidate at this width."""
        device, (rows, inner) = self._device, self._problem.matrix.shape
        noise = np.random.default_rng(columns).random((1 << 16,), dtype=np.float32)
        dense = device.upload(np.resize(noise, (inner, columns)))
        out = device.empty((rows, columns))
        times, expected = {}, None
        for name in candidates(rows, columns, vector_width(columns, out, dense)):
            kernel = CANDIDATES[name]

            def call(kernel: SpmmKernel = kernel) -> None:
                launch_batch(device, kernel, out, dense, self._found)

            call()
            if rows * columns <= CHECKED:
                got = device.download(out)
                expected = got if expected is None else expected
                if got.tobytes() != expected.tobytes():
                    raise CheckFailed("bench tune", f"{name} and others differ", hint="Report this with your GPU.")
            times[name] = float(np.median(self._clock.warm(call)))
        return times

    def check(self, table: SpmmTable, columns: int) -> Check:
        """Compare the choice of `table` with the fastest candidate at this width."""
        problem, times, vector = self._problem, self.times(columns), 4 if columns % 4 == 0 else 1
        rows, per_row = problem.matrix.shape[0], problem.matrix.nnz / problem.matrix.shape[0]
        named = table.nearest((rows / problem.layout.n_graphs, per_row, columns, problem.layout.n_graphs))
        chosen, best = served_as(named, rows, columns, vector), min(times, key=times.__getitem__)
        return Check(problem.name, columns, chosen, best, round(times[chosen] / times[best], 3))


def candidates(n_rows: int, columns: int, vector: int) -> list[str]:
    """Return the distinct candidates at this size, the first of equal ones."""
    return list(dict.fromkeys(served_as(name, n_rows, columns, vector) for name in CANDIDATES))


def served_as(name: str, n_rows: int, columns: int, vector: int) -> str:
    """Return the first candidate with the same launches as `name` at this size."""
    size = (n_rows, columns, vector)
    plan = CANDIDATES[name].plan(*size)
    return next(other for other in CANDIDATES if CANDIDATES[other].plan(*size) == plan)
