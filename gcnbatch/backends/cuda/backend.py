"""Backends ``batched`` and ``nonbatched``: operations, memory, data feed and clock of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Feed, Launched
from gcnbatch.backends.cuda.batches.streaming import open_batches
from gcnbatch.backends.cuda.mixture.ops import DeviceMixtureOps
from gcnbatch.backends.cuda.operations import BatchedOps, PerGraphOps
from gcnbatch.backends.cuda.ranks.halo import GraphPartBatch
from gcnbatch.backends.cuda.ranks.ops import DeviceCommunicator, DeviceDistributedOps
from gcnbatch.backends.cuda.runtime.context import FEWER_GRAPHS, SMALLER_PARTS
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.events import Event, Observation
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.nccl import NcclCommunicator, load_nccl
from gcnbatch.backends.ops import Ops, OpsOnPart
from gcnbatch.config_sections import CudaConfig
from gcnbatch.data.batches import BatchSource
from gcnbatch.data.graph_part import GraphPart
from gcnbatch.ranks.communicator import Communicator

RESIDENT_SHARE = 0.6  # of the memory that is free when the data set is opened; the rest is for activations
HOLD = "meter_hold"  # the kernel that delays a queue; meters do not count it
HOLD_SECONDS = 0.5  # time limit of a delay: without it, a host that waits for the device would wait forever
PAPERS_KERNEL = "tf"  # cuda.spmm = "auto" of the non-batched backend: the kernel of the papers' baseline


class CudaBackend:
    """`gcnbatch.backends.base.Backend` on a device.

    Parameters
    ----------
    name : str
        ``"nonbatched"`` launches the operations of graph convolutions per graph; all others per batch.
    device : Device
    options : CudaConfig
    """

    def __init__(self, name: str, device: Device, options: CudaConfig) -> None:
        self.name, self.device, self.options = name, device, options
        self._per_graph = name == "nonbatched"
        self._kernel = PAPERS_KERNEL if self._per_graph and options.spmm == "auto" else options.spmm
        form = PerGraphOps if self._per_graph else BatchedOps
        self.ops: Ops = form(device, options.precision, self._kernel)
        self.meter = DeviceMeter(device)

    @property
    def resident_budget(self) -> int:
        """Bytes of device memory that a resident data set may take."""
        return int(self.device.memory().free * RESIDENT_SHARE)

    def zeros(self, count: int, dtype: type[np.generic] = np.float32) -> DeviceArray:
        return self.device.zeros(count, dtype)

    def view(self, flat: DeviceArray, start: int, shape: tuple[int, ...]) -> DeviceArray:
        return flat.view(start, shape)

    def write(self, array: DeviceArray, values: NDArray[Any]) -> None:
        self.device.upload(np.asarray(values, dtype=array.dtype), array)

    def read(self, array: DeviceArray) -> NDArray[Any]:
        return self.device.download(array)

    def feed(self, source: BatchSource, targets: NDArray[Any]) -> Feed:
        how = (self.options.resident, self.resident_budget, self._kernel, self._per_graph)
        self.device.takes_less = FEWER_GRAPHS if source.n_graphs > 1 else SMALLER_PARTS
        return open_batches(self.device, source, targets, *how)

    def stacked(self, parameters: Sequence[Mapping[str, DeviceArray]]) -> None:
        return None

    def mixture_ops(self) -> DeviceMixtureOps:
        return DeviceMixtureOps(self.device)

    def check_ranks(self) -> None:
        """Raise unless ranks can exchange device arrays."""
        load_nccl()

    def communicator(self, ranks: Communicator) -> NcclCommunicator:
        """Return the communicator of device arrays, given that of host arrays."""
        return NcclCommunicator(self.device, ranks)

    def distributed_ops(self, ranks: Communicator, sync_batch_norm: bool) -> OpsOnPart:
        """Return the operations on this rank's part of global batches."""
        local, communicator = cast(BatchedOps, self.ops), cast(DeviceCommunicator, ranks)
        return cast(OpsOnPart, DeviceDistributedOps(local, communicator, sync_batch_norm))

    def part_feed(self, part: GraphPart, targets: NDArray[Any], ranks: Communicator) -> Feed:
        """Return the feed of this rank's part of one graph; `targets` (N, K) are those of the whole graph."""
        self.device.takes_less = SMALLER_PARTS
        return GraphPartBatch(self.device, part, targets, ranks, self._kernel)


class DeviceMeter:
    """`gcnbatch.backends.base.Meter` on a device's stream."""

    clock: Literal["device", "host"] = "device"

    def __init__(self, device: Device) -> None:
        self._device = device

    @property
    def launches(self) -> int:
        return self._device.launches

    def about(self) -> dict[str, str]:
        return self._device.about()

    def mark(self) -> Event:
        return self._device.event()

    def microseconds(self, start: Event, stop: Event) -> float:
        return stop.since(start)

    def synchronize(self) -> None:
        self._device.synchronize()

    @contextmanager
    def queued(self) -> Iterator[None]:
        """Delay the queue by a kernel that waits for a flag in host memory, for at most `HOLD_SECONDS`."""
        flag, address = self._device.mapped_flag()
        flag[0] = 0
        nanoseconds = int(HOLD_SECONDS * 1e9)
        self._device.launch(HOLD, Launch((1, 1, 1), (1, 1, 1)), released=address, nanoseconds=nanoseconds)
        self._device.launches -= 1
        try:
            yield
        finally:
            flag[0] = 1

    @contextmanager
    def traced(self) -> Iterator[list[Launched]]:
        observed: list[Observation] = []
        found: list[Launched] = []
        self._device.observer = observed
        try:
            yield found
        finally:
            self._device.observer = None
            found.extend(Launched(one.entry, one.start, one.stop) for one in observed if one.entry != HOLD)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        before = self._device.active_bytes
        self._device.peak_bytes = before
        run()
        return self._device.peak_bytes - before
