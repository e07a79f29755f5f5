"""Batch normalisation over the rows of a batch, optionally with ReLU in the same launch (dense/batch_norm.cu)."""

from __future__ import annotations

from typing import NamedTuple

from gcnbatch.backends.cuda.ops.common import KernelOps, row_tiles
from gcnbatch.backends.cuda.runtime.launch import FLOAT_BYTES
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
        N, P = x.shape
        if not training:
            y = self.device.empty((N, P))
            output = {"y": y, "x": x, "gamma": gamma, "beta": beta, "N": N, "P": P, "relu": relu}
            running = {"running_mean": running_mean, "running_var": running_var, "epsilon": epsilon}
            self.device.launch("batch_norm_evaluate", row_tiles(N, P), **output, **running)
            return y, None
        statistics = self.device.empty((2, P))
        self.batch_norm_statistics(x, statistics, running_mean, running_var, epsilon, momentum)
        y = self.batch_norm_normalise(x, statistics, gamma, beta, relu)
        return y, BatchNormSaved(x, statistics, y if relu else None)

    def batch_norm_statistics(
        self,
        x: DeviceArray,
        statistics: DeviceArray,
        running_mean: DeviceArray,
        running_var: DeviceArray,
        epsilon: float,
        momentum: float,
    ) -> None:
        """Write `statistics` of the rows of x and update the running ones; without rows, write nothing."""
        N, P = x.shape
        if not N:
            return
        plan, partials, counters = self.column_sums(N, P, 3 * FLOAT_BYTES)
        self.device.launch(
            "batch_norm_statistics",
            plan.launch,
            statistics=statistics,
            running_mean=running_mean,
            running_var=running_var,
            partials=partials,
            counters=counters,
            x=x,
            epsilon=epsilon,
            momentum=momentum,
            N=N,
            P=P,
            rows_per_chunk=plan.rows_per_chunk,
        )

    def batch_norm_normalise(
        self, x: DeviceArray, statistics: DeviceArray, gamma: DeviceArray, beta: DeviceArray, relu: bool
    ) -> DeviceArray:
        """Return y for these statistics."""
        (N, P), y = x.shape, self.device.empty(x.shape)
        output = {"y": y, "x": x, "statistics": statistics, "gamma": gamma, "beta": beta}
        self.device.launch("batch_norm_normalise", row_tiles(N, P), **output, N=N, P=P, relu=relu)
        return y

    def batch_norm_backward(
        self,
        dy: DeviceArray,
        saved: BatchNormSaved,
        gamma: DeviceArray,
        out: tuple[DeviceArray, DeviceArray] | None = None,
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        dgamma, dbeta = self.batch_norm_sums(dy, saved, out)
        return self.batch_norm_dx(dy, saved, gamma, dgamma, dbeta), dgamma, dbeta

    def batch_norm_sums(
        self, dy: DeviceArray, saved: BatchNormSaved, out: tuple[DeviceArray, DeviceArray] | None = None
    ) -> tuple[DeviceArray, DeviceArray]:
        """Return dgamma and dbeta, written to `out`."""
        N, P = dy.shape
        dgamma, dbeta = out or (self.device.empty((P,)), self.device.empty((P,)))
        plan, partials, counters = self.column_sums(N, P, 2 * FLOAT_BYTES)
        self.device.launch(
            "batch_norm_backward_sums",
            plan.launch,
            dgamma=dgamma,
            dbeta=dbeta,
            partials=partials,
            counters=counters,
            dy=dy,
            N=N,
            P=P,
            rows_per_chunk=plan.rows_per_chunk,
            **saved._asdict(),
        )
        return dgamma, dbeta

    def batch_norm_dx(
        self, dy: DeviceArray, saved: BatchNormSaved, gamma: DeviceArray, dgamma: DeviceArray, dbeta: DeviceArray
    ) -> DeviceArray:
        """Return dx, for sums of the same rows."""
        (N, P), dx = dy.shape, self.device.empty(dy.shape)
        sums = {"gamma": gamma, "dgamma": dgamma, "dbeta": dbeta}
        self.device.launch("batch_norm_backward_dx", row_tiles(N, P), dx=dx, dy=dy, N=N, P=P, **sums, **saved._asdict())
        return dx
