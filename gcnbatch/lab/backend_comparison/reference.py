"""The reference as a backend: in float64, and in float32 runs that show what rounding costs a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Feed
from gcnbatch.backends.cpu import CpuBackend, CpuOps, HostBatch, HostFeed
from gcnbatch.backends.ops import Array, Ops
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.reference import ReferenceOps
from gcnbatch.reference.composed import ComposedOps

LOOP_ENTRIES = 50_000  # of a batch's adjacency and sparse features; the reference's loops take about 2 us each
UNIT = 2.0**-23  # distance from 1 to the next float32


OPERANDS = {"matmul": 2, "matmul_backward": 3, "linear": 3, "linear_backward": 3}  # the first arguments of products


@dataclass(frozen=True)
class Jitter:
    """How values are moved: at random, by up to so many units in the last place of float32.

    Parameters
    ----------
    rng : numpy.random.Generator
    units : float
        Of what operations return.
    operands : float
        Of what products are given: rounding it moves sums that cancel by far more than a rounding of the sum.
    """

    rng: np.random.Generator
    units: float
    operands: float = 0.0

    def move(self, value: Array) -> None:
        """Move a float array in place; leave everything else."""
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            np.multiply(value, self._factors(value, self.units), out=value, casting="same_kind")

    def moved(self, operand: NDArray[Any]) -> NDArray[Any]:
        """Return an operand of a product, moved."""
        found: NDArray[Any] = (operand * self._factors(operand, self.operands)).astype(operand.dtype)
        return found

    def _factors(self, value: NDArray[Any], units: float) -> NDArray[np.float64]:
        return self.rng.uniform(1 - units * UNIT, 1 + units * UNIT, value.shape)


def jitters(runs: int, units: float, operands: float = 0.0) -> Iterator[Jitter | None]:
    """Yield how each float32 run of the reference is moved: the first not at all, the others seeded by their number."""
    yield None
    for run in range(1, runs):
        yield Jitter(np.random.default_rng(run), units, operands)


def jittered(ops: Ops, jitter: Jitter) -> Ops:
    """Return operations whose float results, and products whose operands, are moved, each value on its own."""
    return cast(Ops, _Jittered(ops, jitter))


class ReferenceBackend(CpuBackend):
    """`ReferenceOps` in host memory, computing in `dtype`.

    Parameters
    ----------
    dtype : float64 or float32
    by_loops : bool
        Whether sparse products run as the reference's own loops, or, where these take too long, through SciPy in
        `dtype` (which ``tests`` hold to the loops).
    jitter : Jitter or None
        When given, every result is moved, and operands of products (Parker, "Monte Carlo arithmetic", UCLA, 1997).
    """

    name = "reference"

    def __init__(self, dtype: type[np.floating[Any]], by_loops: bool, jitter: Jitter | None = None) -> None:
        self.dtype = dtype
        exact: Ops = ReferenceOps() if by_loops else _SparseByScipy()
        self.ops = exact if jitter is None else jittered(exact, jitter)

    def zeros(self, count: int, dtype: type[np.generic] | None = None) -> NDArray[Any]:
        """Return a flat array (count,) of zeros, of this backend's type where none is asked for."""
        return np.zeros(count, dtype=dtype or self.dtype)

    def feed(self, source: BatchSource, targets: NDArray[Any]) -> Feed:
        """Return a feed whose batches are of this backend's type."""
        return _CastFeed(source, targets, self.dtype)


def entries(batch: HostBatch) -> int:
    """Return the stored entries that one pass over a batch's sparse matrices meets."""
    return len(batch.adjacency.forward.indices) + (len(batch.x.indices) if isinstance(batch.x, Csr) else 0)


class _SparseByScipy(ReferenceOps):
    """The reference with sparse products by SciPy, which computes in the type of its operands."""

    spmm = CpuOps.spmm
    spmm_backward = CpuOps.spmm_backward
    sparse_matmul = CpuOps.sparse_matmul
    sparse_matmul_backward = CpuOps.sparse_matmul_backward


class _Jittered(ComposedOps):
    """Composed operations, too, consist of operations whose results and operands are moved."""

    def __init__(self, ops: Ops, jitter: Jitter) -> None:
        self._ops, self._jitter = ops, jitter

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._ops, name)
        operands = OPERANDS.get(name, 0) if self._jitter.operands else 0

        def call(*arguments: Any, **keywords: Any) -> Any:
            given = (*map(self._jitter.moved, arguments[:operands]), *arguments[operands:])
            result = operation(*given, **keywords)
            for part in result if isinstance(result, tuple) else (result,):
                self._jitter.move(part)
            return result

        return call


class _CastFeed(HostFeed):
    """Batches in another float type."""

    def __init__(self, source: BatchSource, targets: NDArray[Any], dtype: type[np.floating[Any]]) -> None:
        super().__init__(source, targets)
        self._dtype = dtype

    def gather(self, graphs: NDArray[np.int64]) -> HostBatch:
        batch = super().gather(graphs)
        adjacency = batch.adjacency
        both = (self._cast(adjacency.forward), self._cast(adjacency.transpose))
        x, targets = self._cast(batch.x), self._cast(batch.targets)
        joined = batch.graph_features and batch.graph_features.map(self._cast)
        return HostBatch(x, Adjacency(*both, adjacency.n_channels), batch.node_ptr, targets, joined)

    def _cast(self, value: Any) -> Any:
        if isinstance(value, Csr):
            return Csr(value.indptr, value.indices, value.data.astype(self._dtype), value.n_cols)
        return value.astype(self._dtype) if value.dtype.kind == "f" else value
