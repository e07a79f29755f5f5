"""Batches of a data set that stays on the host: a thread assembles them, and copies overlap with computation.

`open_batches` chooses between `StreamingSet` and `gcnbatch.backends.cuda.batches.resident.ResidentSet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.batches.batch import DeviceBatch, GraphLayout, Int64
from gcnbatch.backends.cuda.batches.resident import (
    ResidentSet,
    adjacency_bytes,
    can_reside,
    features_bytes,
    resident_bytes,
)
from gcnbatch.backends.cuda.runtime.copies import CopyBuffer, Sent
from gcnbatch.backends.cuda.spmm.kernels import spmm_kernel
from gcnbatch.data.batches import BatchSource, PreparedSet
from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.sparse import MAX_ENTRIES, Csr
from gcnbatch.errors import MachineError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

AHEAD = 2  # batches that the thread assembles in advance


class Batches(Protocol):
    """Batches of a data set on the device, resident or streamed."""

    def begin_epoch(self, batches: Sequence[Int64]) -> None:
        """Announce the epoch: the graph numbers of every batch in order."""

    def batch(self, index: int) -> DeviceBatch:
        """Return batch `index` of the epoch."""

    def gather(self, graphs: Int64) -> DeviceBatch:
        """Return these graphs, in this order, as one batch, outside any epoch."""

    def close(self) -> None:
        """Release the resources."""


def open_batches(
    device: Device,
    source: BatchSource,
    targets: NDArray[Any],
    resident: Literal["auto", "on", "off"],
    budget: int,
    kernel: str = "csr",
    per_graph: bool = False,
) -> Batches:
    """Return the batches of a data set: resident if it fits in `budget` bytes of device memory, else streamed.

    Raises
    ------
    MachineError
        When ``resident == "on"`` and the set does not fit, or ``resident == "auto"`` and a set of one graph does not
        fit: streaming its only batch would need as much memory.
    """
    if resident != "off" and can_reside(source, targets, budget, kernel, per_graph):
        return ResidentSet(device, source, targets, kernel, per_graph)
    if resident == "auto" and source.n_graphs == 1 and source.prepared is not None:
        raise _too_large(source.prepared, targets, budget, kernel, per_graph)
    if resident == "on":
        needed = "not in memory"
        if source.prepared:
            needed = f"{resident_bytes(source.prepared, targets, kernel, per_graph) / 2**20:,.1f} MiB"
        raise MachineError(
            "data set on the device",
            needed,
            f"at most {budget / 2**20:,.1f} MiB and 32-bit indices",
            "Set cuda.resident = 'auto', which streams it.",
        )
    return StreamingSet(device, source, targets, kernel, per_graph)


def _too_large(prepared: PreparedSet, targets: NDArray[Any], budget: int, kernel: str, per_graph: bool) -> MachineError:
    """Return the error of a single graph that does not fit: its size and, if one fits, a smaller form."""
    hint = "Use --backend cpu or a GPU with more memory, or end other programs on this one (nvidia-smi lists them)."
    if len(prepared.forward.indices) > MAX_ENTRIES:
        got, expected = f"{len(prepared.forward.indices):,} stored edges", f"at most {MAX_ENTRIES:,}: 32-bit indices"
    else:
        parts = {
            "features": features_bytes(prepared),
            "adjacency": adjacency_bytes(prepared, kernel, per_graph),
            "targets": targets.nbytes,
        }
        shown = ", ".join(f"{name} {size / 2**30:,.2f}" for name, size in parts.items())
        got = f"{sum(parts.values()) / 2**30:,.2f} GiB needed ({shown})"
        expected = f"at most {budget / 2**30:,.2f} GiB of what is free; the rest is for computing"
        if (least := resident_bytes(prepared, targets, "auto")) <= budget:
            hint = f"Use --backend batched with cuda.spmm = 'auto', which takes {least / 2**30:,.2f} GiB."
    return MachineError("one graph on the device", got, expected, hint)


class StreamingSet:
    """Batches that a host thread assembles in advance and that are copied while the device computes.

    The parameters are those of `ResidentSet`; the source may also be an open file.
    """

    def __init__(
        self, device: Device, source: BatchSource, targets: NDArray[Any], kernel: str = "csr", per_graph: bool = False
    ) -> None:
        self._source, self._targets, self._per_graph = source, targets, per_graph
        self._kernel = spmm_kernel(kernel)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._copies = device.copies
        self._batches: Sequence[Int64] = ()
        self._waiting: dict[int, Future[DeviceBatch]] = {}
        self._sent: dict[int, Sent[DeviceBatch]] = {}
        self._buffer: CopyBuffer | None = None
        self._largest = 0  # bytes of the largest batch sent

    def begin_epoch(self, batches: Sequence[Int64]) -> None:
        """Discard the queued batches and queue the first ones of the epoch."""
        self._forget()
        self._batches = batches
        self._order(0)

    def batch(self, index: int) -> DeviceBatch:
        """Return batch `index`, and start the copy of the next one if it is assembled.

        The host waits until this batch is assembled, and for earlier copies as `runtime.copies` explains. It never
        waits for the results of a step.
        """
        if index not in self._sent:
            self._send(index)
        found = self._sent.pop(index).arrive()
        self._send_ahead(index + 1)
        return found

    def gather(self, graphs: Int64) -> DeviceBatch:
        """Assemble these graphs in the caller's thread."""
        return self._copies.send(self._assemble(graphs)).arrive()

    def close(self) -> None:
        """End the thread and release the batches that were not used."""
        self._forget()
        self._thread.shutdown()

    def _order(self, index: int) -> None:
        for i in range(index, min(index + AHEAD, len(self._batches))):
            if i not in self._waiting and i not in self._sent:
                self._waiting[i] = self._thread.submit(self._assemble, self._batches[i])

    def _forget(self) -> None:
        for future in self._waiting.values():
            future.cancel()
        for sent in self._sent.values():
            sent.arrive()
        self._waiting.clear()
        self._sent.clear()
        self._buffer = None

    def _assemble(self, graphs: Int64) -> DeviceBatch:
        """Return the batch in host memory. It uses NumPy alone, so any thread may call it."""
        found = self._source.batch(graphs)
        layout = GraphLayout(found.node_ptr, found.adjacency.n_channels)
        x = batch.features(found.x, layout) if isinstance(found.x, Csr) else found.x
        adjacency: Any
        if self._per_graph:
            adjacency = batch.channel_adjacency(found.adjacency, layout, self._kernel.coo)
        else:
            adjacency = batch.adjacency(found.adjacency, layout, self._kernel.coo, self._kernel.pieces)
        joined = found.graph_features and _alone(found.graph_features)
        node_ptr, targets = found.node_ptr.astype(np.int32), self._targets[found.rows]
        return DeviceBatch(node_ptr, x, adjacency, targets, layout, joined)

    def _send(self, index: int) -> None:
        self._order(index)
        found = self._waiting.pop(index).result()
        self._order(index + 1)
        buffer, self._buffer = self._buffer, None
        sent = self._sent[index] = self._copies.send(found, buffer)
        self._largest = max(self._largest, sent.nbytes)

    def _send_ahead(self, index: int) -> None:
        """Start the copy of batch `index`, or allocate its memory, before the kernels of the batch before are launched.

        So the copy does not wait for those kernels. A batch that is not assembled yet, or failed to be, is left to
        `batch`: the device must not wait for it.
        """
        if index in self._sent or index >= len(self._batches):
            return
        self._buffer = self._copies.buffer(self._largest)
        ordered = self._waiting.get(index)
        if ordered and ordered.done() and not ordered.exception():
            self._send(index)


def _alone(features: GraphFeatures) -> GraphFeatures:
    """Return the features of a batch alone, with int32 rows."""
    values: NDArray[np.float32] = features.values[features.rows]
    return GraphFeatures(values, np.arange(len(values), dtype=np.int32))
