"""Backends ``batched`` and ``nonbatched``: operations, memory, data and clock of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Feed, Launched, Ops
from gcnbatch.backends.cuda.batches.streaming import open_batches
from gcnbatch.backends.cuda.ops.dense import DenseOps
from gcnbatch.backends.cuda.ops.geometry import Precision
from gcnbatch.backends.cuda.ops.per_graph import LoopedDenseOps
from gcnbatch.backends.cuda.ops.tall import TallDenseOps
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.events import Event, Observation
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.ops import LoopedSparseOps, SparseOps
from gcnbatch.config import CudaConfig, TrainConfig
from gcnbatch.data.batches import BatchSource

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.fused.engine import FusedEngine
    from gcnbatch.backends.cuda.fused.kipf.engine import KipfEngine
    from gcnbatch.backends.cuda.fused.kipf.step import TwoLayers
    from gcnbatch.backends.cuda.fused.shared.model import Model, Optimizer
    from gcnbatch.backends.cuda.fused.shared.stack import Stack

RESIDENT_SHARE = 0.6  # of the memory that is free when the data set is opened; the rest is for computing
HOLD = "meter_hold"  # the kernel that holds back a queue: no work of the backend's
HOLD_SECONDS = 0.5  # a held queue runs after this time even if the host is not done: it may be waiting for the device


# What cuda.spmm = "auto" means: our fastest by measurement, and the kernel of the papers' non-batched baseline.
AUTO = {"fused": "auto", "batched": "auto", "nonbatched": "tf"}


class BatchedOps(TallDenseOps, SparseOps):
    """A launch or two per operation for the whole batch."""

    def __init__(self, device: Device, precision: Precision, kernel: str) -> None:
        DenseOps.__init__(self, device, precision)
        SparseOps.__init__(self, device, kernel)


class LoopedOps(LoopedDenseOps, LoopedSparseOps):
    """MatMul, Add and SpMM of graph convolutions as a launch per graph and channel, the rest as `BatchedOps`."""

    def __init__(self, device: Device, precision: Precision, kernel: str) -> None:
        DenseOps.__init__(self, device, precision)
        SparseOps.__init__(self, device, kernel)


class CudaBackend:
    """`gcnbatch.backends.base.Backend` on a device.

    Parameters
    ----------
    name : {"fused", "batched", "nonbatched"}
        The operations of ``fused`` are those of ``batched``; its steps are not made of them.
    device : Device
    options : CudaConfig
    automatic : bool
        Whether nobody asked for this backend by name.
    """

    def __init__(self, name: str, device: Device, options: CudaConfig, automatic: bool = False) -> None:
        self.name, self.device, self._resident = name, device, options.resident
        self._options, self.automatic = options, automatic
        self._looped = name == "nonbatched"
        self._kernel = AUTO[name] if options.spmm == "auto" else options.spmm
        form = LoopedOps if self._looped else BatchedOps
        self.ops: Ops = form(device, options.precision, self._kernel)
        self.meter = DeviceMeter(device)

    def zeros(self, count: int, dtype: type[np.floating[Any]] = np.float32) -> DeviceArray:
        return self.device.zeros(count, dtype)

    def view(self, flat: DeviceArray, start: int, shape: tuple[int, ...]) -> DeviceArray:
        return flat.view(start, shape)

    def write(self, array: DeviceArray, values: NDArray[Any]) -> None:
        self.device.upload(np.asarray(values, dtype=array.dtype), array)

    def read(self, array: DeviceArray) -> NDArray[Any]:
        return self.device.download(array)

    def feed(self, source: BatchSource, targets: NDArray[Any]) -> Feed:
        budget = int(self.device.memory().free * RESIDENT_SHARE)
        return open_batches(self.device, source, targets, self._resident, budget, self._kernel, self._looped)

    def batched(self) -> CudaBackend:
        """Return the backend ``batched`` on the same device."""
        return CudaBackend("batched", self.device, self._options)

    def fused_refusal(self, stack: Stack, source: BatchSource, targets: NDArray[Any], train: TrainConfig) -> str:
        """Return what the fused step cannot take here, or nothing; see `fused.shared.data.refusal`."""
        from gcnbatch.backends.cuda.fused.shared import data

        budget = int(self.device.memory().free * RESIDENT_SHARE)
        here = (budget, self.device.compute_capability, self._options)
        return data.refusal(source, targets, stack, train, *here)

    def fused(
        self,
        stack: Stack,
        model: Model,
        rule: Optimizer,
        source: BatchSource,
        targets: NDArray[Any],
        label_weights: NDArray[np.float64],
        seed: int,
    ) -> FusedEngine:
        """Return the fused step of a model on a data set, which `fused_refusal` has nothing against."""
        from gcnbatch.backends.cuda.fused import engine
        from gcnbatch.backends.cuda.fused.shared import data

        products = stack.products(self.device.compute_capability, self._options.precision)
        in_halves = data.trains_in_halves(stack, products, source)
        held = data.FusedSet(self.device, source, targets, label_weights, products, in_halves)
        return engine.FusedEngine(self.device, stack, replace(model, products=products), held, rule, seed)

    def fused_kipf_refusal(
        self, layers: TwoLayers, source: BatchSource, targets: NDArray[Any], clip_norm: float
    ) -> str:
        """Return what the fused step of a node-level set cannot take here, or nothing; as `fused_refusal`."""
        from gcnbatch.backends.cuda.fused.kipf import engine as kipf

        budget = int(self.device.memory().free * RESIDENT_SHARE)
        here = (budget, self.device.compute_capability, self._options)
        return kipf.refusal(source, targets, layers, clip_norm, *here)

    def fused_kipf(
        self,
        layers: TwoLayers,
        model: Model,
        rule: Optimizer,
        source: BatchSource,
        targets: NDArray[np.int32],
        class_weights: NDArray[np.float32],
        seed: int,
    ) -> KipfEngine:
        """Return the fused step of Kipf's GCN on a graph, which `fused_kipf_refusal` has nothing against."""
        from gcnbatch.backends.cuda.fused.kipf import data as kipf_data
        from gcnbatch.backends.cuda.fused.kipf import engine as kipf

        assert source.prepared is not None
        rates = (layers.rate if key else 0.0 for key in (layers.x_dropout, layers.z_dropout))
        graph = kipf_data.KipfGraph(source.prepared, targets[:, 0], layers.hidden, layers.n_out, *rates)
        weight = float(class_weights[graph.labels].sum(dtype=np.float64))
        on = (self.device, self.ops, source.prepared)
        return kipf.KipfEngine(*on, layers, model, graph, weight, rule, seed)


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
        """A kernel at the head of the queue waits for a flag in the host's memory, at most `HOLD_SECONDS`."""
        flag, address = self._device.mapped_flag()
        flag[0] = 0
        nanoseconds = int(HOLD_SECONDS * 1e9)
        self._device.launch(HOLD, Launch((1, 1, 1), (1, 1, 1)), address, nanoseconds)
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
