"""Concatenation by columns, sums and maxima of arrays: how layers with several inputs join them. Rows by number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from gcnbatch.backends.cuda.ops.common import KernelOps, row_tiles
from gcnbatch.backends.cuda.runtime.launch import elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray


class ConcatenateOps(KernelOps):
    """`add`, `maximum`, `take` and `concatenate` of `gcnbatch.backends.ops.Ops` (dense/NAME.cu)."""

    def add(self, a: DeviceArray, b: DeviceArray) -> DeviceArray:
        y = self.device.empty(a.shape)
        self.device.launch("add_forward", elementwise(y.size, per_thread=4), y=y, a=a, b=b, n=y.size)
        return y

    def maximum(self, a: DeviceArray, b: DeviceArray) -> DeviceArray:
        y = self.device.empty(a.shape)
        self.device.launch("maximum_forward", elementwise(y.size, per_thread=4), y=y, a=a, b=b, n=y.size)
        return y

    def maximum_backward(self, dy: DeviceArray, a: DeviceArray, b: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        da, db = self.device.empty(dy.shape), self.device.empty(dy.shape)
        launch = elementwise(dy.size, per_thread=4)
        self.device.launch("maximum_backward", launch, da=da, db=db, dy=dy, a=a, b=b, n=dy.size)
        return da, db

    def take(self, x: DeviceArray, rows: DeviceArray) -> DeviceArray:
        (M,), P = rows.shape, x.shape[1]
        y = self.device.empty((M, P))
        self.device.launch("take_rows", row_tiles(M, P), y=y, x=x, rows=rows, M=M, P=P)
        return y

    def concatenate(self, parts: Sequence[DeviceArray]) -> DeviceArray:
        N, widths = parts[0].shape[0], [part.shape[1] for part in parts]
        y = self.device.empty((N, sum(widths)))
        for start, part in zip(accumulate(widths, initial=0), parts, strict=False):
            self._copy(y, part, (start, 0), (sum(widths), part.shape[1]), part.shape)
        return y

    def concatenate_backward(self, dy: DeviceArray, widths: Sequence[int]) -> tuple[DeviceArray, ...]:
        N, total = dy.shape
        parts = tuple(self.device.empty((N, width)) for width in widths)
        for start, part in zip(accumulate(widths, initial=0), parts, strict=False):
            self._copy(part, dy, (0, start), (part.shape[1], total), part.shape)
        return parts

    def _copy(
        self,
        y: DeviceArray,
        x: DeviceArray,
        starts: tuple[int, int],
        strides: tuple[int, int],
        sizes: tuple[int, ...],
    ) -> None:
        """Copy (N, P) = `sizes` elements from x to y. `starts` and `strides` (in elements) are those of y and x."""
        N, P = sizes
        if not N:
            return
        to, of = (array.view(start, (array.size - start,)) for array, start in zip((y, x), starts, strict=True))
        self.device.launch("copy_columns", row_tiles(N, P), y=to, x=of, ldy=strides[0], ldx=strides[1], N=N, P=P)
