"""Layer normalisation of the rows of a batch, optionally with ReLU in the same launch (dense/layer_norm.cu)."""

from __future__ import annotations

from typing import NamedTuple

from gcnbatch.backends.cuda.ops.common import KernelOps
from gcnbatch.backends.cuda.runtime.launch import BLOCK_THREADS, FLOAT_BYTES, Launch, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared

ROWS: int = declared("dense/layer_norm.cu").constant("LAYER_NORM_ROWS")


class LayerNormSaved(NamedTuple):
    """Arrays that the backward pass reads: the input, `statistics` (2, N), and the output with ReLU, else None."""

    x: DeviceArray
    statistics: DeviceArray
    y: DeviceArray | None


def warp_rows(N: int) -> Launch:
    """Return the launch of an operation with a warp per row.

    >>> warp_rows(950)
    Launch(grid=(119, 1, 1), block=(256, 1, 1), shared=0)
    """
    return Launch((ceil_div(N, ROWS), 1, 1), (BLOCK_THREADS, 1, 1))


class LayerNormOps(KernelOps):
    """`layer_norm` of `gcnbatch.backends.ops.Ops` and its gradients."""

    def layer_norm(
        self, x: DeviceArray, gamma: DeviceArray, beta: DeviceArray, epsilon: float, relu: bool = False
    ) -> tuple[DeviceArray, LayerNormSaved]:
        N, P = x.shape
        y, statistics = self.device.empty((N, P)), self.device.empty((2, N))
        out = {"y": y, "statistics": statistics, "x": x, "gamma": gamma, "beta": beta, "epsilon": epsilon}
        self.device.launch("layer_norm_forward", warp_rows(N), **out, N=N, P=P, relu=relu)
        return y, LayerNormSaved(x, statistics, y if relu else None)

    def layer_norm_backward(
        self,
        dy: DeviceArray,
        saved: LayerNormSaved,
        gamma: DeviceArray,
        out: tuple[DeviceArray, DeviceArray] | None = None,
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        (N, P), (x, statistics, y) = dy.shape, saved
        dx = self.device.empty((N, P))
        dgamma, dbeta = out or (self.device.empty((P,)), self.device.empty((P,)))
        plan, partials, counters = self.column_sums(N, P, 2 * FLOAT_BYTES)
        both = {"dy": dy, "x": x, "y": y, "statistics": statistics, "N": N, "P": P}
        self.device.launch(
            "layer_norm_backward_sums",
            plan.launch,
            dgamma=dgamma,
            dbeta=dbeta,
            partials=partials,
            counters=counters,
            rows_per_chunk=plan.rows_per_chunk,
            **both,
        )
        self.device.launch("layer_norm_backward_dx", warp_rows(N), dx=dx, gamma=gamma, **both)
        return dx, dgamma, dbeta
