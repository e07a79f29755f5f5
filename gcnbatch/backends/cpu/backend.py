"""Backend ``cpu`` with its batches and its clock, all in host memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Feed, Launched, Stacked
from gcnbatch.backends.cpu.distributed import distributed_ops
from gcnbatch.backends.cpu.ops import CpuOps, Float
from gcnbatch.backends.cpu.sources import HostAdjacency
from gcnbatch.backends.cpu.stacked import stacked
from gcnbatch.backends.ops import Adjacency, GraphFeatures, Ops, OpsOnPart, PartialOps
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graph_part import GraphPart
from gcnbatch.data.labelled import labelled_rows, rows_of
from gcnbatch.data.sparse import ragged_rows
from gcnbatch.ranks.communicator import Communicator


class HostMeter:
    """`gcnbatch.backends.base.Meter` on the host: calls are synchronous, and no kernel is launched.

    Parameters
    ----------
    loops : str
        The library that runs the operations outside BLAS, for reports.
    """

    clock: Literal["device", "host"] = "host"
    launches = 0

    def __init__(self, loops: str = "NumPy") -> None:
        self._loops = loops

    def about(self) -> dict[str, str]:
        from gcnbatch.environment import blas, cpu_model

        libraries = "; ".join(f"{entry['name']} {entry['version']}, threads: {entry['threads']}" for entry in blas())
        return {"processor": cpu_model(), "BLAS": libraries, "loops": self._loops}

    def mark(self) -> float:
        return time.perf_counter()

    def microseconds(self, start: float, stop: float) -> float:
        return (stop - start) * 1e6

    def synchronize(self) -> None:
        pass

    def queued(self) -> nullcontext[None]:
        return nullcontext()

    @contextmanager
    def traced(self) -> Iterator[list[Launched]]:
        yield []

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Measure with tracemalloc, which NumPy informs of every array that it allocates."""
        tracemalloc.start()
        try:
            run()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


class HostBatch(NamedTuple):
    """`gcnbatch.backends.base.Batch` in NumPy arrays."""

    x: Any
    adjacency: Adjacency
    node_ptr: NDArray[np.int64]
    targets: NDArray[Any]
    graph_features: GraphFeatures | None = None
    labelled: HostBatch | None = None


class HostFeed:
    """`gcnbatch.backends.base.Feed` in host memory. A node-level set of one graph is its only batch, made once."""

    def __init__(self, source: BatchSource, targets: NDArray[Any]) -> None:
        self._source, self._targets = source, targets
        self._batches: Sequence[NDArray[np.int64]] = ()

    def begin_epoch(self, batches: Sequence[NDArray[np.int64]]) -> None:
        self._batches = batches

    def batch(self, index: int) -> HostBatch:
        return self.gather(self._batches[index])

    def gather(self, graphs: NDArray[np.int64]) -> HostBatch:
        if self._only is not None and len(graphs) == 1:
            return self._only
        batch, prepared = self._source.batch(graphs), self._source.prepared
        plain, targets = batch.adjacency, self._targets[batch.rows]
        atoms = None if prepared is None else prepared.atoms
        if atoms is not None:
            atoms = replace(atoms, numbers=atoms.numbers[ragged_rows(self._source.node_ptr, graphs)[0]])
        adjacency = HostAdjacency(plain.forward, lambda: plain.transpose, plain.n_channels, batch.x, atoms)
        return HostBatch(batch.x, adjacency, batch.node_ptr, targets, batch.graph_features)

    @cached_property
    def _only(self) -> HostBatch | None:
        """The batch of a node-level set of one graph in memory; None for other sets."""
        source = self._source
        if source.prepared is None or source.n_graphs != 1 or source.header.level != "node":
            return None
        whole, rows = source.prepared.whole, labelled_rows(self._targets)
        batch = HostBatch(whole.x, whole.adjacency, whole.node_ptr, self._targets)
        if rows is None:
            return batch
        few_rows = rows_of(whole.adjacency.forward, whole.adjacency.n_channels, rows)
        few = batch._replace(adjacency=few_rows, targets=self._targets[rows])
        return batch._replace(labelled=few)

    def close(self) -> None:
        pass


class GraphPartFeed:
    """`gcnbatch.backends.base.Feed` of this rank's part of a set of one graph: the same batch at each step."""

    def __init__(self, part: GraphPart, targets: NDArray[Any], rank: int) -> None:
        first, stop = (int(bound) for bound in part.bounds[rank : rank + 2])
        batch = HostBatch(part.x, part.adjacency, np.array([0, stop - first]), targets[first:stop])
        if part.labelled is not None:
            few = batch._replace(adjacency=part.labelled.adjacency, targets=batch.targets[part.labelled.rows])
            batch = batch._replace(labelled=few)
        self._batch = batch

    def begin_epoch(self, batches: Sequence[NDArray[np.int64]]) -> None:
        pass

    def batch(self, index: int) -> HostBatch:
        return self._batch

    def gather(self, graphs: NDArray[np.int64]) -> HostBatch:
        return self._batch

    def close(self) -> None:
        pass


class CpuBackend:
    """Backend in host memory; `BatchSource` assembles its batches."""

    name = "cpu"
    ops: Ops = CpuOps()
    meter = HostMeter()

    def zeros(self, count: int, dtype: type[np.generic] = np.float32) -> NDArray[Any]:
        return np.zeros(count, dtype=dtype)

    def view(self, flat: Float, start: int, shape: tuple[int, ...]) -> Float:
        return flat[start : start + prod(shape)].reshape(shape)

    def write(self, array: Float, values: NDArray[Any]) -> None:
        array[...] = values

    def read(self, array: Float) -> NDArray[Any]:
        return np.array(array)

    def feed(self, source: BatchSource, targets: NDArray[Any]) -> Feed:
        return HostFeed(source, targets)

    def stacked(self, parameters: Sequence[Mapping[str, Float]]) -> Stacked:
        return stacked(self.ops, parameters)

    def mixture_ops(self) -> None:
        return None

    def check_ranks(self) -> None:
        """Raise nothing: MPI moves host arrays."""

    def communicator(self, ranks: Communicator) -> Communicator:
        """Return `ranks`: this backend's arrays are host arrays."""
        return ranks

    def distributed_ops(self, ranks: Communicator, sync_batch_norm: bool) -> OpsOnPart:
        """Return the operations on this rank's part of global batches."""
        return distributed_ops(cast(PartialOps, self.ops), ranks, sync_batch_norm)

    def part_feed(self, part: GraphPart, targets: NDArray[Any], ranks: Communicator) -> Feed:
        """Return the feed of this rank's part of one graph; `targets` (N, K) are those of the whole graph."""
        return GraphPartFeed(part, targets, ranks.rank)
