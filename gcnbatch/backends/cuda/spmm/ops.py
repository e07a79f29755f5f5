"""The sparse operations on a device: one launch per batch, or one per graph and channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gcnbatch.backends.cuda.batches.batch import ChannelMatrices, DeviceAdjacency, GraphLayout
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm import geometry as geometry_sparse
from gcnbatch.backends.cuda.spmm import large as spmm_large
from gcnbatch.backends.cuda.spmm.kernels import Blocks, SpmmKernel, SpmmOperands, spmm_kernel, vector_width
from gcnbatch.backends.cuda.spmm.large import CompressedRows
from gcnbatch.backends.cuda.spmm.pieces import Large
from gcnbatch.data.sparse import Csr

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


class SparseOps:
    """`spmm`, `sddmm` and `sparse_matmul` of `gcnbatch.backends.ops.Ops`, a launch per operation.

    Parameters
    ----------
    device : Device
    kernel : {"auto", "csr", "naive", "swa_csr", "swa_coo", "tf"}
        The kernel of the adjacency product; "auto" takes the fastest by measurement. Results repeat to the bit, except
        with "swa_coo" and "tf", which add atomically.

    Notes
    -----
    `spmm` takes the adjacency of batches from `ResidentSet` and `StreamingSet`; `sparse_matmul` takes any `Csr` of
    device arrays.
    """

    def __init__(self, device: Device, kernel: str = "csr") -> None:
        self.device = device
        self._kernel = spmm_kernel(kernel)

    def spmm(self, adjacency: Any, h: Any, zeros: float = 0.0) -> DeviceArray:
        width = h.shape[1] // adjacency.n_channels
        y = self.device.empty((adjacency.forward.indptr.shape[0] - 1, width))
        blocks = Blocks(adjacency.node_ptr, adjacency.layout, 1)
        self.sparse_product(y, h, adjacency.forward, blocks, zeros)
        return y

    def large_of(self, adjacency: Any) -> Large | None:
        """Return the pieces that `spmm` with this adjacency multiplies by; None if another kernel runs."""
        return self._large(adjacency.forward) if isinstance(adjacency, DeviceAdjacency) else None

    def _large(self, matrix: Any) -> Large | None:
        return getattr(matrix, "large", None) if self._kernel.pieces else None

    def spmm_backward(self, adjacency: Any, dy: DeviceArray, zeros: float = 0.0) -> DeviceArray:
        width = dy.shape[1]
        dh = self.device.empty((adjacency.layout.n_nodes, adjacency.n_channels * width))
        blocks = Blocks(adjacency.node_ptr, adjacency.layout, adjacency.n_channels)
        self.sparse_product(dh, dy, adjacency.transpose, blocks, zeros)
        return dh

    def sddmm(self, a: DeviceArray, b: DeviceArray, rows: DeviceArray, columns: DeviceArray) -> DeviceArray:
        n_entries, width = rows.size, a.shape[1]
        out = self.device.empty((n_entries,))
        vector = vector_width(width, a, b)
        launch, lane_bits = geometry_sparse.sampled_products(n_entries, width, vector)
        self.device.launch(
            f"sddmm_float{vector}",
            launch,
            out=out,
            a=a,
            b=b,
            rows=rows,
            columns=columns,
            n_entries=n_entries,
            width=width,
            lane_bits=lane_bits,
        )
        return out

    def sparse_matmul(self, x: Csr, w: DeviceArray) -> DeviceArray:
        n_rows, width = x.indptr.size - 1, w.shape[1]
        y = self.device.empty((n_rows, width))
        self._sparse_rows(y, w, x, SpmmOperands(y, w, x, 0, 0, width, width, 0, 0, x.indices.size, n_rows, width, 0))
        return y

    def sparse_matmul_backward(self, dy: DeviceArray, x: Any, out: DeviceArray | None = None) -> DeviceArray:
        width = dy.shape[1]
        dw = self.device.empty((x.n_cols, width)) if out is None else out
        vector = vector_width(width, dw, dy)
        launch, lane_bits = geometry_sparse.sparse_columns(x.n_cols, width, vector)
        self.device.launch(
            f"sparse_matmul_backward_float{vector}",
            launch,
            dw=dw,
            dy=dy,
            data=x.data,
            t_indptr=x.column_ptr,
            t_rows=x.column_rows,
            order=x.column_order,
            width=width,
            lane_bits=lane_bits,
        )
        return dw

    def sparse_product(
        self,
        out: DeviceArray,
        dense: DeviceArray | CompressedRows,
        matrix: Csr,
        blocks: Blocks,
        zeros: float = 0.0,
        accumulate: bool = False,
        stride: int | None = None,
        columns: tuple[int, int] | None = None,
    ) -> None:
        """Launch ``out = A dense``. Of a matrix in pieces, `accumulate`: ``out += A dense``.

        Rows of its operand may be further than their width apart: by `stride` elements. It may have columns `columns` =
        (first, stop) of a wider one, and then computes these of `out`.
        """
        n_rows, n_entries = matrix.indptr.shape[0] - 1, matrix.indices.shape[0]
        of_row = out.shape[1] // blocks.rows_per_node
        first, stop = columns or (0, of_row)
        place = (first, 0, of_row, stride or of_row, 0, 0, n_entries, n_rows, stop - first, int(accumulate))
        large = self._large(matrix)
        if isinstance(dense, CompressedRows):
            assert large is not None, "rows are compressed for its product"
            spmm_large.multiply_compressed(self.device, SpmmOperands(out, dense.rows, matrix, *place), dense, large)
            return
        operands = SpmmOperands(out, dense, matrix, *place)
        if large is not None:
            spmm_large.multiply(self.device, operands, large, zeros)
            return
        assert not accumulate, "a matrix in pieces"
        self._kernel.batched(self.device, operands, blocks)

    def _sparse_rows(self, y: DeviceArray, w: DeviceArray, x: Csr, operands: SpmmOperands) -> None:
        n_rows, width = operands.n_rows, operands.width
        vector = vector_width(width, y, w)
        shape = geometry_sparse.sparse_rows(n_rows, operands.n_entries, width, vector, self.device.multiprocessors)
        self.device.launch(
            f"sparse_matmul_forward_float{vector}",
            shape.launch,
            y=y,
            w=w,
            indptr=x.indptr,
            indices=x.indices,
            data=x.data,
            y_first=operands.out_first,
            w_first=operands.dense_first,
            y_stride=operands.out_stride,
            w_stride=operands.dense_stride,
            first_row=operands.first_row,
            n_rows=n_rows,
            width=width,
            **shape.shares(),
        )


class PerGraphSparseOps(SparseOps):
    """`SparseOps` as the papers' non-batched loop: a launch per graph and channel.

    The loop sums over channels: channel 0 overwrites, the others add. Kernels with atomic additions first launch a
    kernel that zeros the output. `sddmm` and the gradient by the weights of sparse features, which the papers do not
    have, are one launch each.
    """

    def spmm(self, adjacency: Any, h: DeviceArray, zeros: float = 0.0) -> DeviceArray:
        width = h.shape[1] // adjacency.n_channels
        y = self.device.empty((h.shape[0], width))
        about = (y, h, adjacency.forward, adjacency.layout, width)
        launch_each(self.device, self._kernel, *about, sums_channels=True)
        return y

    def spmm_backward(self, adjacency: Any, dy: DeviceArray, zeros: float = 0.0) -> DeviceArray:
        width = dy.shape[1]
        dh = self.device.empty((dy.shape[0], adjacency.n_channels * width))
        about = (dh, dy, adjacency.transpose, adjacency.layout, width)
        launch_each(self.device, self._kernel, *about, sums_channels=False)
        return dh

    def sparse_matmul(self, x: Any, w: DeviceArray) -> DeviceArray:
        layout, columns = x.layout, w.shape[1]
        channels = layout.n_channels if columns % layout.n_channels == 0 else 1
        width, mean = columns // channels, x.indices.size // max(layout.n_nodes, 1)
        y = self.device.empty((layout.n_nodes, columns))
        for first, n in layout.graphs:
            for c in range(0, columns, width):
                place = (first * columns + c, c, columns, columns, first, 0, mean * n)
                self._sparse_rows(y, w, x, SpmmOperands(y, w, x, *place, n, width, 0))
        return y


def launch_each(
    device: Device,
    kernel: SpmmKernel,
    out: DeviceArray,
    dense: DeviceArray,
    matrices: ChannelMatrices,
    layout: GraphLayout,
    width: int,
    sums_channels: bool,
) -> None:
    """Launch a product per graph and channel; the wide operand holds the channels side by side."""
    places = iter(matrices.place_list)
    wide = layout.n_channels * width
    for first, n in layout.graphs:
        narrow_first, wide_first = first * width, first * wide
        for c in range(layout.n_channels):
            sides = (narrow_first, wide_first + c * width, width, wide)
            if not sums_channels:
                sides = (sides[1], sides[0], sides[3], sides[2])
            operands = SpmmOperands(out, dense, matrices, *sides, *next(places), n, width, int(sums_channels and c > 0))
            kernel.graph(device, operands)
