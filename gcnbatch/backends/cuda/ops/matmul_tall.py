"""Dense products of tall matrices with narrow weights: launches and geometry of dense/matmul_tall.cu."""

from __future__ import annotations

from typing import NamedTuple

from gcnbatch.backends.cuda.ops.dense import DenseOps
from gcnbatch.backends.cuda.ops.matmul import BackwardGeometry
from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared

TALL_ROWS, TALL_DEPTH = 1 << 15, 64  # from so many rows N and columns F of X on, these kernels are faster
PADDED = (16, 32)  # numbers of columns P that the kernels are compiled for
ROWS: int = declared("dense/matmul_tall.cu").constant("ROWS")
WGRAD_THREADS: int = declared("dense/matmul_tall.cu").constant("WGRAD_THREADS")  # upper bound
REDUCTION_THREADS: int = declared("dense/matmul_tall.cu").constant("REDUCTION_THREADS")
PARTS_PER_MULTIPROCESSOR, LEAST_ROWS = 2, 64

Sizes = tuple[int, int, int]


class TallWgrad(NamedTuple):
    """Geometry of `matmul_tall_*_wgrad`, and of `matmul_tall_reduce`, which adds its partial sums."""

    launch: Launch
    reduction: Launch
    parts: int
    rows_per_part: int


def padded_width(sizes: Sizes, strides: Sizes, precision: str) -> int | None:
    """Return the compiled width for a product of `sizes` (N, F, P), or None if dense/matmul.cu computes it.

    `strides` are those of the arrays (N or F, P), (N, F), (F or N, P); there must be no gaps between rows.
    """
    N, F, P = sizes
    if precision != "fp32" or N < TALL_ROWS or F < TALL_DEPTH or strides != (P, F, P):
        return None
    return next((width for width in PADDED if width >= P), None)


def wgrad(sizes: Sizes, multiprocessors: int) -> TallWgrad:
    """Return the launches of a weight gradient; its rows are split to give every multiprocessor work.

    >>> wgrad((232_965, 602, 16), 132)[0].grid, wgrad((232_965, 602, 16), 132)[0].block
    ((1, 264, 1), (320, 1, 1))
    """
    N, F, P = sizes
    threads = min(32 * ceil_div(F, 64), WGRAD_THREADS)
    columns = ceil_div(F, 2 * threads)
    wanted = max(PARTS_PER_MULTIPROCESSOR * multiprocessors // columns, 1)
    rows_per_part = max(ceil_div(N, wanted), LEAST_ROWS)
    parts = ceil_div(N, rows_per_part)
    reduction = Launch((ceil_div(F * P, REDUCTION_THREADS), 1, 1), (REDUCTION_THREADS, 1, 1))
    return TallWgrad(Launch((columns, parts, 1), (threads, 1, 1)), reduction, parts, rows_per_part)


class TallDenseOps(DenseOps):
    """`DenseOps` with separate kernels for fp32 products of very many rows with at most 32 columns of weights."""

    def all_gradients(self, sizes: Sizes, need_dx: bool) -> BackwardGeometry | None:
        N, F, P = sizes
        tall = padded_width(sizes, (P, F, P), self.precision)
        return super().all_gradients((N, F, P), need_dx) if tall is None else None

    def multiply(
        self,
        y: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        sizes: Sizes,
        strides: Sizes,
        bias: DeviceArray | None = None,
    ) -> None:
        width = padded_width(sizes, strides, self.precision)
        if width is None:
            super().multiply(y, x, w, sizes, strides, bias)
            return
        N, F, P = sizes
        launch = Launch((ceil_div(N, ROWS), 1, 1), (ROWS, 1, 1))
        self.device.launch(f"matmul_tall_{width}_forward", launch, y=y, x=x, w=w, N=N, F=F, P=P)
        if bias is not None:
            self.add_bias(y, y, bias, (N, P), (P, P))

    def multiply_wgrad(
        self,
        dw: DeviceArray,
        x: DeviceArray,
        dy: DeviceArray,
        sizes: Sizes,
        strides: Sizes,
        accumulate: bool = False,
    ) -> None:
        width = padded_width(sizes, strides, self.precision)
        if width is None or accumulate:
            super().multiply_wgrad(dw, x, dy, sizes, strides, accumulate)
            return
        (N, F, P), plan = sizes, wgrad(sizes, self.device.multiprocessors)
        partials = self.device.empty((plan.parts, F * P))
        self.device.launch(
            f"matmul_tall_{width}_wgrad",
            plan.launch,
            partials=partials,
            x=x,
            dy=dy,
            N=N,
            F=F,
            P=P,
            rows_per_part=plan.rows_per_part,
        )
        reduction = {"dw": dw, "partials": partials, "elements": F * P, "parts": plan.parts}
        self.device.launch("matmul_tall_reduce", plan.reduction, **reduction)
