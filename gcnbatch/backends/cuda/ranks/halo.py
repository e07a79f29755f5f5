"""A rank's part of one large graph on its device, and what it exchanges with the other ranks for a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.batches.batch import DeviceAdjacency, DeviceBatch, GraphLayout
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.kernels import spmm_kernel
from gcnbatch.data.graph_part import GraphPart
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
    """

    rows: DeviceArray
    sent: Sequence[int]
    received: Sequence[int]

    @property
    def n_sent(self) -> int:
        """Rows sent to all ranks."""
        return sum(self.sent)

    @property
    def n_received(self) -> int:
        """Rows received from all ranks: the nodes of the halo."""
        return sum(self.received)

    def sent_rows(self) -> list[DeviceArray]:
        """Return `rows` by rank."""
        return _by_rank(self.rows, self.sent)

    def sent_parts(self, packed: DeviceArray) -> list[DeviceArray]:
        """Return the rows of `packed` (n_sent, P) by rank."""
        return _by_rank(packed, self.sent)

    def received_parts(self, halo: DeviceArray) -> list[DeviceArray]:
        """Return the rows of `halo` (n_received, P) by rank."""
        return _by_rank(halo, self.received)


def _by_rank(array: DeviceArray, counts: Sequence[int]) -> list[DeviceArray]:
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    width = array.size // max(len(array), 1)
    shape = array.shape[1:]
    return [array.view(start * width, (count, *shape)) for start, count in zip(starts, counts, strict=True)]


@dataclass(slots=True, eq=False)
class DeviceHalo(DeviceAdjacency):
    """The rows of an adjacency that a rank holds: `forward` as in `gcnbatch.data.graph_part.HaloAdjacency`.

    Parameters
    ----------
    wide : DeviceAdjacency
        The same matrices over own nodes and halo: the layout of `transpose`.
    exchanged : Exchanged
    """

    wide: DeviceAdjacency
    exchanged: Exchanged


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
        form, halo, upload = spmm_kernel(kernel), part.adjacency, device.upload
        first, stop = (int(bound) for bound in part.bounds[rank : rank + 2])
        own, wide = (GraphLayout(np.array([0, n]), halo.n_channels) for n in (stop - first, _columns(halo)))
        scales = (halo.scales, halo.scales[::-1]) if halo.scales else (None, None)
        forward, transpose = (
            batch.csr(matrix, form.coo, form.pieces, alone=True, scales=of).map(upload)
            for matrix, of in zip((halo.forward, halo.transpose), scales, strict=True)
        )
        node_ptr, whole = (upload(layout.node_ptr.astype(np.int32)) for layout in (own, wide))
        rows = upload(np.concatenate([*halo.sent, np.zeros(0)]).astype(np.int32))
        about = (forward, transpose, halo.n_channels)
        exchanged = Exchanged(rows, [len(some) for some in halo.sent], list(halo.received))
        adjacency = DeviceHalo(*about, node_ptr, own, DeviceAdjacency(*about, whole, wide), exchanged)
        x = batch.features(part.x, own).map(upload) if isinstance(part.x, Csr) else upload(np.ascontiguousarray(part.x))
        self._batch = DeviceBatch(node_ptr, x, adjacency, upload(targets[first:stop]), own)

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


def _columns(halo: Any) -> int:
    """Return the number of own nodes and nodes of the halo."""
    return int(halo.forward.n_cols // halo.n_channels)
