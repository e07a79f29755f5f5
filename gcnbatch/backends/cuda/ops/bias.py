"""Bias: a row added to every row of a matrix; its gradient is the column sums."""

from __future__ import annotations

from typing import Any

from gcnbatch.backends.cuda.ops.common import KernelOps, row_tiles
from gcnbatch.backends.cuda.runtime.launch import FLOAT_BYTES
from gcnbatch.backends.cuda.runtime.memory import DeviceArray


class BiasOps(KernelOps):
    """`bias_add` of `gcnbatch.backends.ops.Ops` and its gradient."""

    def bias_add(
        self, y: DeviceArray, b: DeviceArray, graphs: Any = None, out: DeviceArray | None = None
    ) -> DeviceArray:
        N, P = y.shape
        out = self.or_empty(out, (N, P))
        self.add_bias(out, y, b, (N, P), (P, P))
        return out

    def bias_add_backward(self, dy: DeviceArray, out: DeviceArray | None = None, graphs: Any = None) -> DeviceArray:
        N, P = dy.shape
        db = self.or_empty(out, (P,))
        self.sum_columns(db, dy, (N, P), P)
        return db

    def add_bias(
        self, y: DeviceArray, x: DeviceArray, b: DeviceArray, sizes: tuple[int, int], strides: tuple[int, int]
    ) -> None:
        """Y = X + b on every row, for `sizes` (N, P) and `strides` (ldy, ldx); y may be x."""
        (N, P), (ldy, ldx) = sizes, strides
        self.device.launch("bias_add_forward", row_tiles(N, P), y=y, x=x, b=b, ldy=ldy, ldx=ldx, N=N, P=P)

    def sum_columns(
        self, db: DeviceArray, dy: DeviceArray, sizes: tuple[int, int], stride: int, accumulate: bool = False
    ) -> None:
        """db = column sums of dY (db += with `accumulate`), for `sizes` (N, P) and rows `stride` elements apart."""
        N, P = sizes
        plan, partials, counters = self.column_sums(N, P, FLOAT_BYTES)
        self.device.launch(
            "bias_add_backward",
            plan.launch,
            db=db,
            partials=partials,
            counters=counters,
            dy=dy,
            lddy=stride,
            N=N,
            P=P,
            rows_per_chunk=plan.rows_per_chunk,
            accumulate=accumulate,
        )
