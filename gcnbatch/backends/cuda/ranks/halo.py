"""A rank's part of one large graph on its device: its rows of the adjacency, and whose rows a product needs besides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.batches.batch import DeviceAdjacency, DeviceBatch, DeviceCsr, GraphLayout
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.kernels import Blocks, spmm_kernel
from gcnbatch.backends.cuda.spmm.large import mark
from gcnbatch.backends.cuda.spmm.pieces import DENSE_ROWS, LARGE_ENTRIES, Large, Scales, cut_rows
from gcnbatch.data.graph_part import GraphPart, Halo
from gcnbatch.data.sparse import Csr

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


@dataclass(frozen=True)
class Exchanged:
    """The rows that a rank sends before a product, and receives.

    Parameters
    ----------
    rows : int32, (n_sent,)
        Own nodes whose values other ranks need, rank by rank.
    sent, received : sequence of int
        By rank, the number of rows sent there and received from there; 0 for this rank itself.
    firsts : int32, (ranks + 1,)
        Where the rows for each rank begin, and their number.
    """

    rows: DeviceArray
    sent: Sequence[int]
    received: Sequence[int]
    firsts: DeviceArray

    @property
    def n_received(self) -> int:
        """Rows received from all ranks: the nodes of the halo."""
        return sum(self.received)

    def sent_parts(self, packed: DeviceArray) -> list[DeviceArray]:
        """Return the rows of `packed` (n_sent, P) by rank."""
        starts, width = np.cumsum([0, *self.sent[:-1]]).tolist(), packed.shape[1]
        return [packed.view(start * width, (count, width)) for start, count in zip(starts, self.sent, strict=True)]


@dataclass(frozen=True)
class HaloRows:
    """The rows of a matrix that a rank holds, as `gcnbatch.data.graph_part.Halo`.

    Parameters
    ----------
    own : DeviceCsr
        Their columns of own nodes; without `halo`, of own nodes and halo.
    halo : DeviceCsr or None
        Their columns of the halo, if they are multiplied separately. Both are in pieces then.
    exchanged : Exchanged
    blocks : Blocks
        Of the rows.
    columns_per_node : int
    """

    own: DeviceCsr
    halo: DeviceCsr | None
    exchanged: Exchanged
    blocks: Blocks
    columns_per_node: int


@dataclass(slots=True, eq=False)
class DeviceHalo(DeviceAdjacency):
    """The rows of an adjacency and of its transpose that a rank holds; `forward` and `transpose` are their `own`."""

    of_forward: HaloRows
    of_transpose: HaloRows


class GraphPartBatch:
    """`gcnbatch.backends.base.Feed` of this rank's part of a set of one graph: the same batch at each step.

    Parameters
    ----------
    device : Device
    part : GraphPart
    targets : (N, K)
        Of the whole graph.
    rank : int
    kernel : str
        As in `gcnbatch.backends.cuda.spmm.ops.SparseOps`.
    """

    def __init__(self, device: Device, part: GraphPart, targets: NDArray[Any], rank: int, kernel: str) -> None:
        form, found, upload = spmm_kernel(kernel), part.adjacency, device.upload
        first, stop = (int(bound) for bound in part.bounds[rank : rank + 2])
        layout = GraphLayout(np.array([0, stop - first]), found.n_channels)
        node_ptr, nodes = upload(layout.node_ptr.astype(np.int32)), int(part.bounds[-1])

        def rows(matrix: Csr, halo: Halo, per_node: int, columns_per_node: int) -> HaloRows:
            asked = upload(np.concatenate([*halo.sent, np.zeros(0)]).astype(np.int32))
            sent = [len(some) for some in halo.sent]
            firsts = upload(np.cumsum([0, *sent]).astype(np.int32))
            exchanged = Exchanged(asked, sent, list(halo.received), firsts)
            blocks = Blocks(node_ptr, layout, per_node)
            if not (form.pieces and is_split(halo.entries, nodes)):
                held = batch.csr(matrix, form.coo, form.pieces, alone=True, scales=halo.scales).map(upload)
                return HaloRows(held, None, exchanged, blocks, columns_per_node)
            parts = split(matrix, (stop - first) * columns_per_node, halo.scales)
            own, others = (in_pieces(device, *each) for each in parts)
            return HaloRows(own, others, exchanged, blocks, columns_per_node)

        of_forward = of_transpose = rows(found.forward, found.of_forward, 1, found.n_channels)
        if found.transpose is not found.forward:
            of_transpose = rows(found.transpose, found.of_transpose, found.n_channels, 1)
        about = of_forward.own, of_transpose.own, found.n_channels, node_ptr, layout
        adjacency = DeviceHalo(*about, of_forward, of_transpose)
        dense = isinstance(part.x, np.ndarray)
        x = upload(np.ascontiguousarray(part.x)) if dense else batch.features(part.x, layout).map(upload)
        self._batch = DeviceBatch(node_ptr, x, adjacency, upload(targets[first:stop]), layout)

    def begin_epoch(self, batches: Sequence[NDArray[np.int64]]) -> None:
        """Do nothing: every step has the same batch."""

    def batch(self, index: int) -> DeviceBatch:
        """Return the batch."""
        return self._batch

    def gather(self, graphs: NDArray[np.int64]) -> DeviceBatch:
        """Return the batch."""
        return self._batch

    def close(self) -> None:
        """Do nothing: the memory is freed with its last reference."""


def is_split(entries: Sequence[int], nodes: int) -> bool:
    """Return whether ranks multiply the columns of their own nodes while they exchange rows, then those of the halo.

    It costs one more pass over the result, so rows must be long; `entries` are those of each rank's rows.

    >>> is_split([60_000_000, 50_000_000], 2_400_000), is_split([60_000_000, 1_000], 2_400_000)
    (True, False)
    """
    return min(entries) >= LARGE_ENTRIES and sum(entries) >= DENSE_ROWS * nodes


def split(matrix: Csr, n_own: int, scales: tuple[Any, Any] | None) -> Iterator[tuple[Csr, Scales | None]]:
    """Yield the first `n_own` columns of a matrix, and the others, each with its scales instead of values, if any.

    The sender scales rows of the halo, so the others have no scales of columns.
    """
    is_own = matrix.indices < n_own
    before = np.concatenate([[0], np.cumsum(is_own, dtype=np.int32)])[matrix.indptr]
    for own, indptr in ((True, before), (False, matrix.indptr - before)):
        held = is_own if own else ~is_own
        of_columns = Scales(scales[0], scales[1][:n_own] if own else None) if scales else None
        data = matrix.data[:0] if scales else matrix.data[held]
        indices = matrix.indices[held] - np.int32(0 if own else n_own)
        yield Csr(indptr.astype(np.int32), indices, data, n_own if own else matrix.n_cols - n_own), of_columns


def in_pieces(device: Device, matrix: Csr, scales: Scales | None) -> DeviceCsr:
    """Return a matrix on the device, in pieces whatever its size."""
    large = Large(cut_rows(matrix.indptr), scales)
    held = DeviceCsr(matrix.indptr, matrix.indices, matrix.data, matrix.n_cols, None, large).map(device.upload)
    return held if scales is None else mark(device, held, np.bincount(matrix.indices, minlength=matrix.n_cols))
