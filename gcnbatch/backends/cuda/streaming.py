"""Batches of a data set that stays on the host: assembled by a thread, copied from pinned buffers while others compute.

`open_batches` decides between this and `gcnbatch.backends.cuda.resident`; both have the same methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda import batch
from gcnbatch.backends.cuda.batch import DeviceBatch, GraphLayout, Int64
from gcnbatch.backends.cuda.memory import DeviceArray
from gcnbatch.backends.cuda.resident import (
    ResidentSet,
    adjacency_bytes,
    can_reside,
    features_bytes,
    resident_bytes,
)
from gcnbatch.backends.cuda.spmm_kernels import spmm_kernel
from gcnbatch.data.batches import BatchSource, PreparedSet
from gcnbatch.data.sparse import MAX_ENTRIES, Csr
from gcnbatch.errors import MachineError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.device import Device

SLOTS = 2  # pinned buffers: one is filled while the other's copy is under way
AHEAD = 2  # batches that the thread assembles before they are asked for
ALIGNMENT = 256


class Batches(Protocol):
    """The way of batches to the device."""

    def begin_epoch(self, batches: Sequence[Int64]) -> None:
        """Announce the epoch: the graph numbers of every batch in order."""

    def batch(self, index: int) -> DeviceBatch:
        """Return batch `index` of the epoch."""

    def gather(self, graphs: Int64) -> DeviceBatch:
        """Return these graphs, in this order, as one batch, outside any epoch."""

    def close(self) -> None:
        """Give back what is held."""


def open_batches(
    device: Device,
    source: BatchSource,
    targets: NDArray[Any],
    resident: Literal["auto", "on", "off"],
    budget: int,
    kernel: str = "csr",
    looped: bool = False,
) -> Batches:
    """Return the batches of a data set: from device memory where it fits in `budget` bytes, else streamed.

    Raises
    ------
    MachineError
        When ``resident == "on"`` and the set does not fit, and, unless it is "off", when one graph does not: its only
        batch would be as large.
    """
    if resident != "off" and can_reside(source, targets, budget, kernel, looped):
        return ResidentSet(device, source, targets, kernel, looped)
    if resident == "auto" and source.n_graphs == 1 and source.prepared is not None:
        raise _too_large(source.prepared, targets, budget, kernel, looped)
    if resident == "on":
        needed = "not in memory"
        if source.prepared:
            needed = f"{resident_bytes(source.prepared, targets, kernel, looped) / 2**20:,.1f} MiB"
        raise MachineError(
            "data set on the device",
            needed,
            f"at most {budget / 2**20:,.1f} MiB and 32-bit indices",
            "Set cuda.resident = 'auto', which streams it.",
        )
    return StreamingSet(device, source, targets, kernel, looped)


def _too_large(prepared: PreparedSet, targets: NDArray[Any], budget: int, kernel: str, looped: bool) -> MachineError:
    """Return the error of one graph that does not fit, with what it takes and, if that fits, a smaller form."""
    hint = "Use --backend cpu or a GPU with more memory, or end other programs on this one (nvidia-smi lists them)."
    if len(prepared.forward.indices) > MAX_ENTRIES:
        got, expected = f"{len(prepared.forward.indices):,} stored edges", f"at most {MAX_ENTRIES:,}: 32-bit indices"
    else:
        parts = {
            "features": features_bytes(prepared),
            "adjacency": adjacency_bytes(prepared, kernel, looped),
            "targets": targets.nbytes,
        }
        shown = ", ".join(f"{name} {size / 2**30:,.2f}" for name, size in parts.items())
        got = f"{sum(parts.values()) / 2**30:,.2f} GiB needed ({shown})"
        expected = f"at most {budget / 2**30:,.2f} GiB of what is free; the rest is for computing"
        if (least := resident_bytes(prepared, targets, "auto")) <= budget:
            hint = f"Use --backend batched with cuda.spmm = 'auto', which takes {least / 2**30:,.2f} GiB."
    return MachineError("one graph on the device", got, expected, hint)


class StreamingSet:
    """Batches assembled on the host by one thread ahead of use, and copied asynchronously from pinned memory.

    Parameters as `ResidentSet`; the source may be an open file.
    """

    def __init__(
        self, device: Device, source: BatchSource, targets: NDArray[Any], kernel: str = "csr", looped: bool = False
    ) -> None:
        self._source, self._targets, self._looped = source, targets, looped
        self._kernel = spmm_kernel(kernel)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._slots = [_PinnedSlot(device) for _ in range(SLOTS)]
        self._turn = 0
        self._batches: Sequence[Int64] = ()
        self._waiting: dict[int, Future[DeviceBatch]] = {}

    def begin_epoch(self, batches: Sequence[Int64]) -> None:
        """Forget what was ordered and order the first batches."""
        self._forget()
        self._batches = batches
        self._order(0)

    def batch(self, index: int) -> DeviceBatch:
        """Return batch `index`; waits for the host's assembly where that is behind, never for the device's work."""
        self._order(index)
        found = self._waiting.pop(index).result()
        self._order(index + 1)
        return self._send(found)

    def gather(self, graphs: Int64) -> DeviceBatch:
        """Assemble here and now."""
        return self._send(self._assemble(graphs))

    def close(self) -> None:
        """End the thread."""
        self._forget()
        self._thread.shutdown()

    def _order(self, index: int) -> None:
        for i in range(index, min(index + AHEAD, len(self._batches))):
            if i not in self._waiting:
                self._waiting[i] = self._thread.submit(self._assemble, self._batches[i])

    def _forget(self) -> None:
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    def _assemble(self, graphs: Int64) -> DeviceBatch:
        """Return the batch in host memory: NumPy alone, so that any thread may."""
        found = self._source.batch(graphs)
        layout = GraphLayout(found.node_ptr, found.adjacency.n_channels)
        x = batch.features(found.x, layout) if isinstance(found.x, Csr) else found.x
        adjacency: Any
        if self._looped:
            adjacency = batch.channel_adjacency(found.adjacency, layout, self._kernel.coo)
        else:
            adjacency = batch.adjacency(found.adjacency, layout, self._kernel.coo, self._kernel.pieces)
        return DeviceBatch(found.node_ptr.astype(np.int32), x, adjacency, self._targets[found.rows], layout)

    def _send(self, found: DeviceBatch) -> DeviceBatch:
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % SLOTS
        return slot.send(found)


class _PinnedSlot:
    """A pinned buffer that holds one batch, until the copies from it are done."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._copied: Any = None

    def send(self, found: DeviceBatch) -> DeviceBatch:
        """Return the batch on the device; the copies are under way."""
        if self._copied is not None:
            self._copied.synchronize()
        self._reserve(found)
        used = 0

        def move(host: NDArray[Any]) -> DeviceArray:
            nonlocal used
            staged = self._buffer[used : used + host.nbytes].view(host.dtype).reshape(host.shape)
            used += _aligned(host.nbytes)
            np.copyto(staged, host)
            return self._device.upload_async(staged, self._device.empty(host.shape, host.dtype))

        sent = found.map(move)
        self._copied = self._device.event()
        return sent

    def _reserve(self, found: DeviceBatch) -> None:
        """Grow to what the batch takes; by half at least, for pinned memory is never given back."""
        needed = 0

        def count(host: NDArray[Any]) -> NDArray[Any]:
            nonlocal needed
            needed += _aligned(host.nbytes)
            return host

        found.map(count)
        if needed > self._buffer.nbytes:
            self._buffer = self._device.pinned(max(needed, self._buffer.nbytes * 3 // 2), np.uint8)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
