"""All operations of the backends ``batched`` and ``nonbatched``, dense and sparse, in a class each."""

from __future__ import annotations

from gcnbatch.backends.cuda.ops.dense import DenseOps
from gcnbatch.backends.cuda.ops.matmul import Precision
from gcnbatch.backends.cuda.ops.matmul_tall import TallDenseOps
from gcnbatch.backends.cuda.ops.per_graph import PerGraphDenseOps
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.spmm.ops import PerGraphSparseOps, SparseOps


class BatchedOps(TallDenseOps, SparseOps):
    """Operations with one or two launches for the whole batch."""

    def __init__(self, device: Device, precision: Precision, kernel: str) -> None:
        DenseOps.__init__(self, device, precision)
        SparseOps.__init__(self, device, kernel)


class PerGraphOps(PerGraphDenseOps, PerGraphSparseOps):
    """Operations with a launch per graph and channel for MatMul, Add and SpMM of graph convolutions."""

    def __init__(self, device: Device, precision: Precision, kernel: str) -> None:
        DenseOps.__init__(self, device, precision)
        SparseOps.__init__(self, device, kernel)
