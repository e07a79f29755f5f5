"""Dense products of very many rows on Hopper's tensor cores: launches and geometry of dense/matmul_wgmma.cu."""

from __future__ import annotations

from functools import lru_cache

from gcnbatch.backends.cuda.ops.matmul import Tile, WgradGeometry, wgrad_plan
from gcnbatch.backends.cuda.ops.matmul_tall import Sizes, TallDenseOps
from gcnbatch.backends.cuda.ops.relu_dropout import ALL_KEPT, Kept
from gcnbatch.backends.cuda.runtime.launch import FLOAT_BYTES, Launch, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared

HOPPER = (9, 0)  # compute capability with wgmma
COLUMNS = (64, 128)  # of the product that the kernels are compiled for
NARROW = 32  # columns for which most of a tile would be empty
LEAST_WORK = 1 << 22  # rows x depth of a product from which these kernels are faster
LEAST_ROWS = 1 << 15  # the same of a weight gradient, rows
DEEPEST = 192  # depth whose weights fit in the shared memory of a block, with 128 columns
THREADS, DEPTH, GRADIENT_ROWS = (
    declared("dense/matmul_wgmma.cu").constant(name) for name in ("WGMMA_THREADS", "WGMMA_DEPTH", "GRADIENT_ROWS")
)


def compiled_columns(columns: int) -> int | None:
    """Return the number of columns that the kernels of a product are compiled for, or None if there are none."""
    return next((width for width in COLUMNS if NARROW < columns <= width), None)


@lru_cache(maxsize=4096)
def product_launch(rows: int, columns: int, depth: int, multiprocessors: int) -> tuple[int, Launch] | None:
    """Return compiled columns and launch of a product, or None if these kernels do not compute it or are not faster.

    >>> product_launch(614_355, 128, 100, 132)
    (128, Launch(grid=(132, 1, 1), block=(256, 1, 1), shared=131072))
    >>> product_launch(614_355, 128, 602, 132) is None
    True
    """
    compiled = compiled_columns(columns)
    if compiled is None or depth > DEEPEST or rows * depth < LEAST_WORK:
        return None
    shared = 2 * FLOAT_BYTES * ceil_div(depth, DEPTH) * DEPTH * compiled
    return compiled, Launch((multiprocessors, 1, 1), (THREADS, 1, 1), shared)


@lru_cache(maxsize=4096)
def wgrad_launch(N: int, F: int, P: int, multiprocessors: int) -> tuple[int, WgradGeometry] | None:
    """Return compiled columns and geometry of the gradient (F, N) x (N, P), or None as `product_launch`.

    >>> wgrad_launch(614_355, 128, 47, 132)[1][:3]
    ('wgmma_64', Launch(grid=(1, 1, 132), block=(256, 1, 1), shared=32768), 4672)
    """
    compiled = compiled_columns(P)
    if compiled is None or F <= NARROW or N < LEAST_ROWS:
        return None
    tile = Tile(f"wgmma_{compiled}", GRADIENT_ROWS, compiled, DEPTH, THREADS, 1.0)
    _, plan = wgrad_plan(tile, N, F, P, multiprocessors, side_by_side=1)
    shared = 2 * 2 * FLOAT_BYTES * DEPTH * compiled
    return compiled, plan._replace(launch=Launch(plan.launch.grid, plan.launch.block, shared))


class WgmmaDenseOps(TallDenseOps):
    """`TallDenseOps` with kernels for fp32 products of very many rows with 33 to 128 columns, on Hopper."""

    @property
    def _has_kernels(self) -> bool:
        return self.precision == "fp32" and self.device.compute_capability == HOPPER

    def multiply(
        self,
        y: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        sizes: Sizes,
        strides: Sizes,
        bias: DeviceArray | None = None,
    ) -> None:
        (N, F, P), (ldy, ldx, ldw) = sizes, strides
        found = product_launch(N, P, F, self.device.multiprocessors) if self._has_kernels else None
        if found is None:
            super().multiply(y, x, w, sizes, strides, bias)
            return
        columns, launch = found
        entry = f"matmul_wgmma_{columns}_forward"
        self.device.launch(entry, launch, y=y, x=x, w=w, bias=bias, ldy=ldy, ldx=ldx, ldw=ldw, N=N, F=F, P=P)

    def multiply_dgrad(
        self,
        dx: DeviceArray,
        dy: DeviceArray,
        w: DeviceArray,
        sizes: Sizes,
        strides: Sizes,
        kept: Kept | None = None,
        first: int = 0,
    ) -> None:
        (N, F, P), (lddx, lddy, ldw) = sizes, strides
        found = product_launch(N, F, P, self.device.multiprocessors) if self._has_kernels else None
        if found is None:
            super().multiply_dgrad(dx, dy, w, sizes, strides, kept, first)
            return
        columns, launch = found
        passes = ALL_KEPT if kept is None else kept.from_element(first)
        strides_of = {"lddx": lddx, "lddy": lddy, "ldw": ldw}
        entry = f"matmul_wgmma_{columns}_dgrad"
        self.device.launch(entry, launch, dx=dx, dy=dy, w=w, kept=passes, **strides_of, N=N, F=F, P=P)

    def multiply_wgrad(
        self,
        dw: DeviceArray,
        x: DeviceArray,
        dy: DeviceArray,
        sizes: Sizes,
        strides: Sizes,
        accumulate: bool = False,
    ) -> None:
        found = wgrad_launch(*sizes, self.device.multiprocessors) if self._has_kernels else None
        if found is None:
            super().multiply_wgrad(dw, x, dy, sizes, strides, accumulate)
            return
        columns, plan = found
        self.launch_wgrad(f"matmul_wgmma_{columns}_wgrad", plan, dw, x, dy, sizes, strides, accumulate)
