"""Batch normalisation over the rows of a batch, optionally with ReLU in the same launch (dense/batch_norm.cu)."""

from __future__ import annotations

from typing import NamedTuple

from gcnbatch.backends.cuda.ops.common import FLOAT_BYTES, KernelOps, row_tiles
from gcnbatch.backends.cuda.runtime.memory import DeviceArray


class BatchNormSaved(NamedTuple):
    """Arrays that the backward pass of `batch_norm` reads.

    They are the input, `statistics` (2, P) of dense/batch_norm.cu, and the output if it includes ReLU, else None.
    """

    x: DeviceArray
    statistics: DeviceArray
    y: DeviceArray | None


class BatchNormOps(KernelOps):
    """`batch_norm` of `gcnbatch.backends.ops.Ops` and its gradients."""

    def batch_norm(
        self,
        x: DeviceArray,
        gamma: DeviceArray,
        beta: DeviceArray,
        running_mean: DeviceArray,
        running_var: DeviceArray,
        epsilon: float,
        momentum: float,
        training: bool,
        relu: bool = False,
    ) -> tuple[DeviceArray, BatchNormSaved | None]:
        (N, P), launch = x.shape, self.device.launch
        y = self.device.empty((N, P))
        tiles = row_tiles(N, P)
        output = {"y": y, "x": x, "gamma": gamma, "beta": beta, "N": N, "P": P, "relu": relu}
        running = {"running_mean": running_mean, "running_var": running_var, "epsilon": epsilon}
        if not training:
            launch("batch_norm_evaluate", tiles, **output, **running)
            return y, None
        statistics = self.device.empty((2, P))
        if N:
            plan, partials, counters = self.column_sums(N, P, 3 * FLOAT_BYTES)
            launch(
                "batch_norm_statistics",
                plan.launch,
                statistics=statistics,
                partials=partials,
                counters=counters,
                x=x,
                momentum=momentum,
                N=N,
                P=P,
                rows_per_chunk=plan.rows_per_chunk,
                **running,
            )
            launch("batch_norm_normalise", tiles, statistics=statistics, **output)
        return y, BatchNormSaved(x, statistics, y if relu else None)

    def batch_norm_backward(
        self,
        dy: DeviceArray,
        saved: BatchNormSaved,
        gamma: DeviceArray,
        out: tuple[DeviceArray, DeviceArray] | None = None,
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        (N, P), (x, statistics, y) = dy.shape, saved
        dx = self.device.empty((N, P))
        dgamma, dbeta = out or (self.device.empty((P,)), self.device.empty((P,)))
        plan, partials, counters = self.column_sums(N, P, 2 * FLOAT_BYTES)
        both = {"dgamma": dgamma, "dbeta": dbeta, "dy": dy, "x": x, "y": y, "statistics": statistics, "N": N, "P": P}
        self.device.launch(
            "batch_norm_backward_sums",
            plan.launch,
            partials=partials,
            counters=counters,
            rows_per_chunk=plan.rows_per_chunk,
            **both,
        )
        self.device.launch("batch_norm_backward_dx", row_tiles(N, P), dx=dx, gamma=gamma, **both)
        return dx, dgamma, dbeta
