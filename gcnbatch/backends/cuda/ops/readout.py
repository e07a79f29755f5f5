"""Readout: reduce the nodes of each graph to one row (graph/readout.cu)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gcnbatch.backends.cuda.ops.common import KernelOps, columns_by_rows
from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.ops import Readout


class ReadoutSaved(NamedTuple):
    """The number of nodes; for "max" also the row of each maximum, int32 (B, P)."""

    n_nodes: int
    argmax: DeviceArray | None


@lru_cache(maxsize=4096)
def readout_geometry(B: int, P: int) -> Launch:
    """Return the launch of the readout of B graphs: one block per graph and group of up to 32 columns."""
    x, y = columns_by_rows(P)
    return Launch((B, ceil_div(P, x), 1), (x, y, 1))


class ReadoutOps(KernelOps):
    """`readout` of `gcnbatch.backends.ops.Ops` and its gradient."""

    def readout(self, h: DeviceArray, node_ptr: DeviceArray, kind: Readout) -> tuple[DeviceArray, ReadoutSaved]:
        B, (N, P) = len(node_ptr) - 1, h.shape
        r, launch = self.device.empty((B, P)), readout_geometry(B, P)
        if kind == "max":
            argmax = self.device.empty((B, P), np.int32)
            self.device.launch("readout_max_forward", launch, r=r, argmax=argmax, h=h, node_ptr=node_ptr, P=P)
            return r, ReadoutSaved(N, argmax)
        self.device.launch("readout_sum_forward", launch, r=r, h=h, node_ptr=node_ptr, P=P, mean=kind == "mean")
        return r, ReadoutSaved(N, None)

    def readout_backward(
        self, dr: DeviceArray, node_ptr: DeviceArray, kind: Readout, saved: ReadoutSaved
    ) -> DeviceArray:
        B, P = dr.shape
        dh, launch = self.device.empty((saved.n_nodes, P)), readout_geometry(B, P)
        both = {"dh": dh, "dr": dr, "node_ptr": node_ptr, "P": P}
        if saved.argmax is not None:
            self.device.launch("readout_max_backward", launch, argmax=saved.argmax, **both)
        else:
            self.device.launch("readout_sum_backward", launch, mean=kind == "mean", **both)
        return dh
