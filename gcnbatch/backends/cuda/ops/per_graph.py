"""Dense products as in the papers' non-batched version: one launch per graph and channel."""

from __future__ import annotations

from typing import Any

from gcnbatch.backends.cuda.ops.dense import DenseOps
from gcnbatch.backends.cuda.ops.relu_dropout import Kept
from gcnbatch.backends.cuda.runtime.memory import DeviceArray


class PerGraphDenseOps(DenseOps):
    """`DenseOps` whose products loop over the given graphs and channels; without graphs a product is one launch.

    Consider B graphs with nodes, C channels and a layer with bias. The forward pass launches MatMul and Add B C times
    each. The backward pass launches the bias gradient and dW B C times each: the first launch overwrites, the others
    add in order. It launches dX B times, because one product sums over the channels.
    """

    def matmul(self, x: DeviceArray, w: DeviceArray, graphs: Any = None) -> DeviceArray:
        if graphs is None:
            return super().matmul(x, w)
        (N, F), columns = x.shape, w.shape[1]
        y, width = self.device.empty((N, columns)), columns // graphs.n_channels
        for first, n in _filled(graphs):
            for c in range(0, columns, width):
                arrays = (_from(y, first * columns + c), _from(x, first * F), _from(w, c))
                self.multiply(*arrays, (n, F, width), (columns, F, columns))
        return y

    def matmul_backward(
        self,
        dy: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        need_dx: bool = True,
        out: DeviceArray | None = None,
        graphs: Any = None,
    ) -> tuple[DeviceArray | None, DeviceArray]:
        if graphs is None or not _filled(graphs):
            return super().matmul_backward(dy, x, w, need_dx, out)
        F, columns = w.shape
        width = columns // graphs.n_channels
        dx = self.matmul_dx(dy, w, graphs) if need_dx else None
        dw = self.or_empty(out, (F, columns))
        for number, (first, n) in enumerate(_filled(graphs)):
            for c in range(0, columns, width):
                arrays = (_from(dw, c), _from(x, first * F), _from(dy, first * columns + c))
                self.multiply_wgrad(*arrays, (n, F, width), (columns, F, columns), accumulate=number > 0)
        return dx, dw

    def matmul_dx(self, dy: DeviceArray, w: DeviceArray, graphs: Any = None, kept: Kept | None = None) -> DeviceArray:
        if graphs is None:
            return super().matmul_dx(dy, w, kept=kept)
        F, columns = w.shape
        dx = self.device.empty((dy.shape[0], F))
        for first, n in _filled(graphs):
            arrays = (_from(dx, first * F), _from(dy, first * columns), w)
            self.multiply_dgrad(*arrays, (n, F, columns), (F, columns, columns), kept, first * F)
        return dx

    def linear(self, x: DeviceArray, w: DeviceArray, b: DeviceArray, graphs: Any = None) -> DeviceArray:
        if graphs is None:
            return super().linear(x, w, b)
        y = self.matmul(x, w, graphs)
        return self.bias_add(y, b, graphs, out=y)

    def linear_backward(
        self,
        dy: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        need_dx: bool = True,
        out: tuple[DeviceArray, DeviceArray] | None = None,
        graphs: Any = None,
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray]:
        if graphs is None or not _filled(graphs):
            return super().linear_backward(dy, x, w, need_dx, out)
        dw, db = out or (None, None)
        db = self.bias_add_backward(dy, db, graphs)
        dx, dw = self.matmul_backward(dy, x, w, need_dx, dw, graphs)
        return dx, dw, db

    def bias_add(
        self, y: DeviceArray, b: DeviceArray, graphs: Any = None, out: DeviceArray | None = None
    ) -> DeviceArray:
        if graphs is None:
            return super().bias_add(y, b, out=out)
        N, columns = y.shape
        out, width = self.or_empty(out, (N, columns)), columns // graphs.n_channels
        for first, n in _filled(graphs):
            for c in range(0, columns, width):
                start = first * columns + c
                self.add_bias(_from(out, start), _from(y, start), _from(b, c), (n, width), (columns, columns))
        return out

    def bias_add_backward(self, dy: DeviceArray, out: DeviceArray | None = None, graphs: Any = None) -> DeviceArray:
        if graphs is None or not _filled(graphs):
            return super().bias_add_backward(dy, out)
        columns = dy.shape[1]
        db, width = self.or_empty(out, (columns,)), columns // graphs.n_channels
        for number, (first, n) in enumerate(_filled(graphs)):
            for c in range(0, columns, width):
                part = _from(dy, first * columns + c)
                self.sum_columns(_from(db, c), part, (n, width), columns, accumulate=number > 0)
        return db


def _filled(graphs: Any) -> list[tuple[int, int]]:
    """Return (first node, number of nodes) of the graphs that have nodes."""
    return [place for place in graphs.layout.graphs if place[1]]


def _from(array: DeviceArray, start: int) -> DeviceArray:
    """Return `array` from element `start` on."""
    return array.view(start, (array.size - start,))
