"""Operations on a rank's rows that wait for what follows them, and products of rows that ranks push to each other.

`gcnbatch.backends.cuda.ranks.pipeline` has the order of launches, `gcnbatch.backends.cuda.ranks.landing` the exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ops.relu_dropout import Kept
from gcnbatch.backends.cuda.ranks.halo import MatrixPieces, PushedRows
from gcnbatch.backends.cuda.ranks.landing import slices_of
from gcnbatch.backends.cuda.ranks.pipeline import Call, RowWork, product_bounds, row_bounds, rows_of
from gcnbatch.backends.cuda.runtime.launch import PHILOX_ELEMENTS, ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm import large as spmm_large
from gcnbatch.backends.cuda.spmm.kernels import ROW_SPLIT, SpmmOperands
from gcnbatch.backends.cuda.spmm.large import (
    MOST_COLUMNS,
    ROW_BYTES,
    CompressedRows,
    compress,
    compress_relu_dropout,
    is_compressed,
)
from gcnbatch.backends.ops import DropoutKey
from gcnbatch.reference.composed import ComposedOps

PUSHED_COLUMNS = 64  # of dense rows at a time: the first columns are multiplied while the next are on their way


class OpsInChunks(ComposedOps):
    """Operations on rows; all others are those of `local`.

    Within `in_chunks`, operations on rows are not launched before it is known what follows them, except for their first
    chunk, and weight gradients not before rows are on their way that another operation waits for.

    Parameters
    ----------
    local : BatchedOps
    """

    def __init__(self, local: BatchedOps) -> None:
        self._local, self._device = local, local.device
        self._waits = False  # within `in_chunks`
        self._pushes = False  # whether a product has pushed rows: only then do operations on rows wait
        self._work = RowWork((0, 0))
        self._later: list[Callable[[], object]] = []
        self._last: list[Callable[[], object]] = []  # after all others

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, getattr(self._local, name))

    def _call(self, operation: Callable[..., Any], *about: Any, **options: Any) -> Any:
        """Launch what waits, then an operation of `local`: not when it is looked up, before its arguments are found."""
        self._launch()
        return operation(*about, **options)

    # -------------------------------------------------------------------------------------------- order of launches

    @contextmanager
    def in_chunks(self) -> Iterator[None]:
        """While entered, operations may wait; all of them are launched at its end."""
        self._waits = True
        try:
            yield
            self._launch()
            for call in [*self._later, *self._last]:
                call()
        finally:
            self._waits, self._work = False, RowWork((0, 0))
            self._later.clear()
            self._last.clear()

    def _launch(self) -> None:
        """Launch the operations on rows that wait."""
        work, self._work = self._work, RowWork((0, 0))
        work.launch()

    def _launch_later(self, all_of_them: bool = False) -> None:
        """Launch an operation that may run at any time, while rows are on their way; or all of them."""
        while self._later:
            self._later.pop(0)()
            if not all_of_them:
                break

    def _continues(self, x: Any) -> bool:
        """Return whether X is the result of operations on rows that wait."""
        return x is not None and x is self._work.out

    def _add(self, call: Call, bounds: Sequence[int], out: Any, *reads: Any) -> None:
        """Launch an operation on rows, or let it wait, after those whose result it reads.

        `bounds` are those of its chunks, unless it reads such a result.
        """
        if not any(map(self._continues, reads)):
            self._launch()
            self._work = RowWork(bounds)
        self._work.add(call, out)
        if not (self._waits and self._pushes):
            self._launch()

    def matmul(self, x: DeviceArray, w: DeviceArray, graphs: Any = None) -> DeviceArray:
        """As of `local`."""
        (N, F), P = x.shape, w.shape[1]
        y = self._device.empty((N, P))

        def call(first: int, stop: int) -> None:
            sizes = stop - first, F, P
            self._local.multiply(rows_of(y, first, stop), rows_of(x, first, stop), w, sizes, (P, F, P))

        self._add(call, row_bounds(N), y, x)
        return y

    def matmul_dx(self, dy: DeviceArray, w: DeviceArray, graphs: Any = None, kept: Kept | None = None) -> DeviceArray:
        """As of `local`."""
        (F, P), N = w.shape, dy.shape[0]
        dx = self._device.empty((N, F))

        def call(first: int, stop: int) -> None:
            sizes, into = (stop - first, F, P), rows_of(dx, first, stop)
            self._local.multiply_dgrad(into, rows_of(dy, first, stop), w, sizes, (F, P, P), kept, first * F)

        self._add(call, row_bounds(N), dx, dy)
        return dx

    def matmul_backward(
        self,
        dy: DeviceArray,
        x: DeviceArray,
        w: DeviceArray,
        need_dx: bool = True,
        out: DeviceArray | None = None,
        graphs: Any = None,
    ) -> tuple[DeviceArray | None, DeviceArray]:
        """As of `local`; the gradient by W may wait."""
        if need_dx or not self._waits:
            self._launch()
            return self._local.matmul_backward(dy, x, w, need_dx, out, graphs)
        dw = self._local.or_empty(out, w.shape)
        self._later.append(lambda: self._local.matmul_backward(dy, x, w, False, dw, graphs))
        return None, dw

    def _relu_dropout_to_buffer(
        self, x: DeviceArray, rate: float, key: DropoutKey, matrix: PushedRows
    ) -> tuple[CompressedRows, Kept]:
        (n, width), kept = x.shape, self._local.kept_of(x, rate, key)
        matrix.landing.begin()
        found = CompressedRows(matrix.landing.rows(n, ROW_BYTES), self._device.zeros(1, np.int32), (n, width))

        def call(first: int, stop: int) -> None:
            of_rows = partial(rows_of, first=first, stop=stop)
            scale = matrix.column_scale and of_rows(matrix.column_scale)
            place = key._replace(first=key.first + first * width)
            into = found._replace(rows=of_rows(found.rows), shape=(stop - first, width))
            bits = kept._replace(bits=bits_of(kept, width, first, stop))
            compress_relu_dropout(self._device, of_rows(x), bits, scale, rate, place, into=into)

        self._add(call, row_bounds(n), found, x)
        return found, kept

    def _relu_dropout_of_rows(
        self, x: DeviceArray, rate: float, key: DropoutKey, out: DeviceArray | None
    ) -> tuple[DeviceArray, Kept]:
        n, width = x.shape
        if width % PHILOX_ELEMENTS or key.first % PHILOX_ELEMENTS:  # rows share random bits
            self._launch()
            return self._local.relu_dropout(x, rate, key, out)
        y, kept = self._local.or_empty(out, x.shape), self._local.kept_of(x, rate, key)

        def call(first: int, stop: int) -> None:
            of_rows, place = partial(rows_of, first=first, stop=stop), key._replace(first=key.first + first * width)
            self._local.relu_dropout_of(of_rows(y), bits_of(kept, width, first, stop), of_rows(x), rate, place)

        self._add(call, row_bounds(n), y, x)
        return y, kept

    def relu_dropout_backward(self, dy: DeviceArray, kept: Kept, out: DeviceArray | None = None) -> DeviceArray:
        """As of `local`."""
        n, width = dy.shape
        if width % PHILOX_ELEMENTS or kept.first:  # rows share bytes of bits
            self._launch()
            return self._local.relu_dropout_backward(dy, kept, out)
        dx = self._local.or_empty(out, dy.shape)

        def call(first: int, stop: int) -> None:
            bits = kept._replace(bits=bits_of(kept, width, first, stop))
            self._local.relu_dropout_backward(rows_of(dy, first, stop), bits, rows_of(dx, first, stop))

        self._add(call, row_bounds(n), dx, dy)
        return dx

    # -------------------------------------------------------------------------------------------- pushed rows

    def _multiply_pushed(self, shape: tuple[int, int], h: Any, matrix: PushedRows, zeros: float) -> DeviceArray:
        """Push rows of the dense operand, and launch the product of those that all ranks have pushed; return it.

        The last operation waits if it may, so that its rows can leave in chunks.
        """
        self._pushes = True
        if is_packed(h, matrix, zeros):
            return self._multiply_compressed(shape, h, matrix)
        out, work = self._device.empty(shape), self._work_before(h, (0, len(h)))
        for group in slices_of(h.shape[1]):
            self._launch()  # the group before: a push of this one says that its buffer has been read
            matrix.landing.begin()
            self._multiply_dense(out, h, matrix, group, work)
            work = RowWork((0, len(h)))
        return out

    def _work_before(self, h: Any, bounds: Sequence[int]) -> RowWork:
        """Return the operations that wait and compute H, or none, in chunks of these bounds."""
        if self._continues(h):
            work, self._work = self._work, RowWork((0, 0))
            return work
        self._launch()
        return RowWork(bounds)

    def _multiply_compressed(self, shape: tuple[int, int], h: Any, matrix: PushedRows) -> DeviceArray:
        landing, route, device = matrix.landing, matrix.route, self._device
        (n, width), is_ready = h.shape, isinstance(h, CompressedRows)
        work = self._work_before(h, (0, n) if is_ready else row_bounds(n))
        own = h if is_ready else self._compress_to_buffer(h, matrix, work)
        numbers: list[int] = []
        beside = bool(self._later)

        def push(first: int, stop: int, is_last: bool) -> None:
            numbers.append(landing.push(route, (first, stop), is_last, beside or not is_last))

        work.launch(push)
        whole = own._replace(rows=landing.rows(n + route.n_halo, ROW_BYTES))
        self._launch_later(all_of_them=not landing.alternates)
        landing.wait(numbers[-1])
        landing.end()
        out = device.empty(shape)  # not before the operations that ran meanwhile have given their memory back

        def product(chunk: int) -> None:
            about, large = _product_of(out, whole.rows, matrix, chunk, (0, width), width, 0), matrix.chunks[chunk].large
            assert large is not None, "rows are compressed for its product"
            spmm_large.multiply_compressed(device, about, whole, large)

        self._add_product(product, out, matrix, is_last=True)
        return out

    def _compress_to_buffer(self, h: DeviceArray, matrix: PushedRows, work: RowWork) -> CompressedRows:
        """Add to `work` that the rows of H are compressed; return them."""
        (n, width), device = h.shape, self._device
        matrix.landing.begin()
        found = CompressedRows(matrix.landing.rows(n, ROW_BYTES), device.zeros(1, np.int32), (n, width))

        def call(first: int, stop: int) -> None:
            scale = matrix.column_scale and rows_of(matrix.column_scale, first, stop)
            into = found._replace(rows=rows_of(found.rows, first, stop), shape=(stop - first, width))
            compress(device, rows_of(h, first, stop), scale, (stop - first, width), into=into)

        work.add(call, found)
        return found

    def _multiply_dense(
        self, out: DeviceArray, h: DeviceArray, matrix: PushedRows, group: tuple[int, int], work: RowWork
    ) -> None:
        """Multiply with columns `group` = (first, stop) of H, at most `MOST_COLUMNS`."""
        landing, route, device, (begin, stop) = matrix.landing, matrix.route, self._device, group
        stride = 8 * ceil_div(stop - begin, 8)
        parts = [(first, min(first + PUSHED_COLUMNS, stop)) for first in range(begin, stop, PUSHED_COLUMNS)]
        numbers: list[int] = []

        beside = bool(self._later)

        def push(columns: tuple[int, int], first: int, stop: int, is_last: bool, beside: bool = beside) -> None:
            about = h, matrix.column_scale, columns, stride, columns[0] - begin
            numbers.append(landing.push_dense(route, (first, stop), is_last, beside or not is_last, *about))

        work.launch(partial(push, parts[0]))
        before = len(numbers)
        for columns in parts[1:]:
            push(columns, 0, len(h), True, beside=True)
        numbers = numbers[before - 1 :]
        dense = landing.rows(route.n_own + route.n_halo, 4 * stride).astype_view(np.float32)
        self._launch_later()
        for columns, number in zip(parts, numbers, strict=True):
            self._launch()  # the product of the columns before
            landing.wait(number)
            if columns == parts[-1]:
                landing.end()

            def product(chunk: int, columns: tuple[int, int] = columns) -> None:
                about = _product_of(out, dense, matrix, chunk, columns, stride, columns[0] - begin)
                large = matrix.chunks[chunk].large
                if large is None:
                    ROW_SPLIT.graph(device, about)
                else:
                    spmm_large.multiply(device, about, large)

            self._add_product(product, out, matrix, is_last=columns == parts[-1])

    def _add_product(self, product: Callable[[int], None], out: DeviceArray, matrix: PushedRows, is_last: bool) -> None:
        """Launch the product of each chunk of a matrix, or let it wait.

        If the receive buffer is the only one, the last product that reads it does not wait: no rank pushes before.
        """
        launched = iter(range(len(matrix.chunks)))

        def call(first: int, stop: int) -> None:
            chunk = next(launched, None)  # one chunk may have all rows
            if chunk is not None:
                product(chunk)

        self._add(call, product_bounds(len(out)), out)
        if is_last and not matrix.landing.alternates:
            self._launch()
            matrix.landing.release()


def is_packed(h: Any, split: MatrixPieces | PushedRows, zeros: float) -> bool:
    """Return whether ranks exchange rows of a dense operand without their zeros: where the product reads them so."""
    if isinstance(h, CompressedRows):
        return True
    return (
        split.large is not None and h.shape[1] <= MOST_COLUMNS and is_compressed(h.shape[1], zeros, split.large.scales)
    )


def bits_of(kept: Kept, width: int, first: int, stop: int) -> DeviceArray:
    """Return the bits of rows first … stop - 1, whose `width` is a multiple of 8."""
    of_row = width // PHILOX_ELEMENTS
    return kept.bits.view(first * of_row, (stop - first) * of_row)


def _product_of(
    out: DeviceArray,
    dense: DeviceArray,
    matrix: PushedRows,
    chunk: int,
    columns: tuple[int, int],
    stride: int,
    place: int,
) -> SpmmOperands:
    """Return the product of a chunk of rows; columns `columns` of the operand lie at `place` of rows of `stride`."""
    (first, stop), held = columns, matrix.chunks[chunk]
    about = {"out_first": first, "dense_first": place, "out_stride": out.shape[1], "dense_stride": stride}
    counts = {"n_entries": matrix.entries[chunk], "n_rows": held.indptr.shape[0] - 1, "width": stop - first}
    return SpmmOperands(out, dense, held, **about, first_row=0, first_entry=0, **counts, accumulate=0)
