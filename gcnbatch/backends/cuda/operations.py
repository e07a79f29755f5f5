"""All operations of the backends ``batched`` and ``nonbatched``, dense and sparse, in a class each."""

from __future__ import annotations

from typing import Any

from gcnbatch.backends.cuda.ops.dense import DenseOps
from gcnbatch.backends.cuda.ops.matmul import Precision
from gcnbatch.backends.cuda.ops.matmul_wgmma import WgmmaDenseOps
from gcnbatch.backends.cuda.ops.per_graph import PerGraphDenseOps
from gcnbatch.backends.cuda.ops.relu_dropout import Kept
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.large import compress_relu_dropout, reads_activations
from gcnbatch.backends.cuda.spmm.ops import PerGraphSparseOps, SparseOps
from gcnbatch.backends.ops import DropoutKey, Reader
from gcnbatch.reference.composed import ComposedOps


class BatchedOps(WgmmaDenseOps, SparseOps, ComposedOps):
    """Operations with one or two launches for the whole batch."""

    def __init__(self, device: Device, precision: Precision, kernel: str) -> None:
        DenseOps.__init__(self, device, precision)
        SparseOps.__init__(self, device, kernel)

    def relu_dropout(
        self,
        x: DeviceArray,
        rate: float,
        key: DropoutKey,
        out: DeviceArray | None = None,
        reader: Reader | None = None,
    ) -> tuple[Any, Kept]:
        large = None if reader is None else self.large_of(reader.adjacency)
        if reader is None or large is None or not reads_activations(large, x.shape[1], reader.zeros, key.first):
            return super().relu_dropout(x, rate, key, out)
        kept = self.kept_of(x, rate, key)
        assert large.scales is not None, "only unweighted matrices read compressed rows"
        return compress_relu_dropout(self.device, x, kept, large.scales.columns, rate, key), kept


class PerGraphOps(PerGraphDenseOps, PerGraphSparseOps, ComposedOps):
    """Operations with a launch per graph and channel for MatMul, Add and SpMM of graph convolutions."""

    def __init__(self, device: Device, precision: Precision, kernel: str) -> None:
        DenseOps.__init__(self, device, precision)
        SparseOps.__init__(self, device, kernel)
