"""Operations of backend ``batched`` on a rank's part of a global batch (cuda_src/ranks).

As on the host (`gcnbatch.backends.cpu.distributed`), operations within a row, a node or a graph stay local, and sums
over all rows are global. Exchanges are queued after the kernels, on the device's stream or beside it.

Ranks of one host push rows into each other's memory (`gcnbatch.backends.cuda.ranks.landing`). Others exchange them with
NCCL; of compressed rows, whose lengths it must know, the host then waits (`gcnbatch.backends.cuda.ranks.packed`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from gcnbatch.backends.cuda.batches.batch import DeviceCsr
from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ops.batch_norm import BatchNormSaved
from gcnbatch.backends.cuda.ops.common import row_tiles
from gcnbatch.backends.cuda.ops.relu_dropout import Kept
from gcnbatch.backends.cuda.ranks.halo import DeviceHalo, HaloRows, MatrixPieces, PushedRows
from gcnbatch.backends.cuda.ranks.in_chunks import OpsInChunks, is_packed
from gcnbatch.backends.cuda.ranks.landing import slices_of
from gcnbatch.backends.cuda.ranks.packed import PackedBuffers, PackedExchange, SideCommunicator
from gcnbatch.backends.cuda.ranks.pipeline import rows_of
from gcnbatch.backends.cuda.runtime.launch import Launch, ceil_div, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.large import (
    compress,
    compress_relu_dropout,
    reads_activations,
)
from gcnbatch.backends.global_losses import GlobalLosses
from gcnbatch.backends.ops import DropoutKey, Reader
from gcnbatch.ranks.communicator import Communicator

Loss = tuple[DeviceArray, DeviceArray, DeviceArray]
# The operand of own nodes, and a function that waits for the exchange and returns those of the halo and of all.
Started = tuple[Any, Callable[[], tuple[Any, Any]]]


class DeviceCommunicator(Communicator, SideCommunicator, Protocol):
    """The methods of `gcnbatch.backends.cuda.runtime.nccl.NcclCommunicator` that the operations call."""

    def all_reduce(self, array: DeviceArray, out: DeviceArray | None = None) -> None:
        """Write the sum of an array over all ranks to `out`, else in place."""

    def exchange(self, parts: Any, rows: Any, out: DeviceArray | None = None) -> list[DeviceArray]:
        """Send a part to each rank; receive those of the others in `out`, one after the other."""


class SyncedSaved(NamedTuple):
    """What a global batch norm saves: that of the local one, and the rows of all ranks, (1,)."""

    local: BatchNormSaved
    rows: DeviceArray


class DeviceDistributedOps(GlobalLosses, OpsInChunks):
    """`gcnbatch.backends.ops.Ops` on this rank's rows; all others are those of `local`.

    Parameters as `gcnbatch.backends.cpu.distributed.DistributedOps`.
    """

    def __init__(self, local: BatchedOps, ranks: DeviceCommunicator, sync_batch_norm: bool) -> None:
        super().__init__(local)
        self._ranks, self._sync = ranks, sync_batch_norm
        self._buffers = PackedBuffers(local.device)
        self._weight: tuple[DeviceArray, DeviceArray, DeviceArray] | None = None  # `_weight_of_all`

    def close(self) -> None:
        """Free the memory of packed rows."""
        self._buffers, self._weight = PackedBuffers(self._device), None

    # -------------------------------------------------------------------------------------------- one large graph

    def spmm(self, adjacency: Any, h: Any, zeros: float = 0.0) -> DeviceArray:
        """Product of this rank's rows, with its halo fetched from the other ranks."""
        if not isinstance(adjacency, DeviceHalo):
            return self._local.spmm(adjacency, h, zeros)
        rows = adjacency.of_forward
        return self._multiply((rows.blocks.layout.n_nodes, h.shape[1] // adjacency.n_channels), h, rows, zeros)

    def spmm_backward(self, adjacency: Any, dy: DeviceArray, zeros: float = 0.0) -> DeviceArray:
        """Gradient of `spmm` by this rank's rows, as `spmm` with its rows of the transpose."""
        if not isinstance(adjacency, DeviceHalo):
            return self._local.spmm_backward(adjacency, dy, zeros)
        rows = adjacency.of_transpose
        return self._multiply((rows.blocks.layout.n_nodes, adjacency.n_channels * dy.shape[1]), dy, rows, zeros)

    def relu_dropout(
        self,
        x: DeviceArray,
        rate: float,
        key: DropoutKey,
        out: DeviceArray | None = None,
        reader: Reader | None = None,
    ) -> tuple[Any, Kept]:
        """As of `local`; compressed where a product exchanges compressed rows."""
        rows = reader.adjacency.of_forward if reader and isinstance(reader.adjacency, DeviceHalo) else None
        matrix = None if rows is None else rows.matrix
        large = matrix.large if isinstance(matrix, MatrixPieces | PushedRows) else None
        if reader is None or large is None or not reads_activations(large, x.shape[1], reader.zeros, key.first):
            return self._relu_dropout_of_rows(x, rate, key, out)
        if isinstance(matrix, PushedRows):
            return self._relu_dropout_to_buffer(x, rate, key, matrix)
        assert rows is not None
        assert isinstance(matrix, MatrixPieces)
        self._launch()
        kept, into = self._local.kept_of(x, rate, key), self._buffers.own_rows(len(x), rows.exchanged)
        return compress_relu_dropout(self._device, x, kept, matrix.column_scale, rate, key, into), kept

    def _multiply(self, shape: tuple[int, int], h: Any, rows: HaloRows, zeros: float) -> DeviceArray:
        """Launch the product of a rank's rows, of this shape, and return it.

        Columns of own nodes in long rows are multiplied while the halo is on its way, then all others.
        """
        split = rows.matrix
        if isinstance(split, PushedRows):
            return self._multiply_pushed(shape, h, split, zeros)
        self._launch()
        out = self._device.empty(shape)
        if not isinstance(split, MatrixPieces):
            self._multiply_after_exchange(out, h, rows, zeros)
            return out
        if is_packed(h, split, zeros):
            self._multiply_pieces(self._start_packed(h, rows, split), out, rows, split, zeros)
            return out
        one_channel = rows.columns_per_node == rows.blocks.rows_per_node == 1
        for columns in slices_of(h.shape[1], split.columns_at_once if one_channel else h.shape[1]):
            of_out = columns if one_channel else None
            self._multiply_pieces(self._start(h, rows, split, columns), out, rows, split, zeros, of_out)
        return out

    def _multiply_pieces(
        self,
        started: Started,
        out: DeviceArray,
        rows: HaloRows,
        split: MatrixPieces,
        zeros: float,
        columns: tuple[int, int] | None = None,
    ) -> None:
        """Launch the products of those columns, or all, that are on their way."""
        own, arrive = started

        def product(dense: Any, matrix: DeviceCsr, accumulate: bool = False) -> None:
            stride = dense.shape[1] // rows.columns_per_node
            self._local.sparse_product(out, dense, matrix, rows.blocks, zeros, accumulate, stride, columns)

        product(own, split.own)
        self._launch_later()
        halo, whole = arrive()
        if rows.exchanged.n_received:
            product(halo, split.halo, accumulate=True)
        if split.rest is not None:
            product(whole, split.rest)

    def _start(self, h: DeviceArray, rows: HaloRows, split: MatrixPieces, columns: tuple[int, int]) -> Started:
        """Start the exchange of columns `columns` = (first, stop) of dense rows.

        Return the operand of own nodes, and a function that waits for the exchange and returns those of the halo and of
        all. Their rows are scaled and, in a matrix of one channel, padded as the product reads them.
        """
        n, width, device, exchanged = len(h), columns[1] - columns[0], self._device, rows.exchanged
        stride = 8 * ceil_div(width, 8) if rows.columns_per_node == 1 else width
        n_sent, n_halo = exchanged.rows.size, exchanged.n_received
        packed, whole = device.empty((n_sent, stride)), device.empty((n + n_halo, stride))
        own, halo = whole.view(0, (n, stride)), whole.view(n * stride, (n_halo, stride))
        x = h.view(columns[0], h.size - columns[0]) if columns[0] else h
        about = {"x": x, "scale": split.column_scale, "P": width, "x_stride": h.shape[1], "stride": stride}
        device.launch("halo_take", row_tiles(n_sent, width), y=packed, sent=exchanged.rows, n_sent=n_sent, **about)
        exchange = self._ranks.exchange_beside(exchanged.sent_parts(packed), exchanged.received, halo)
        device.launch("halo_take", row_tiles(n, width), y=own, sent=None, n_sent=n, **about)

        def arrive() -> tuple[DeviceArray, DeviceArray]:
            exchange.arrive()
            return halo, whole

        return own, arrive

    def _start_packed(self, h: Any, rows: HaloRows, split: MatrixPieces) -> Started:
        """As `_start`, of compressed rows."""
        if isinstance(h, DeviceArray):
            into = self._buffers.own_rows(len(h), rows.exchanged)
            h = compress(self._device, h, split.column_scale, (len(h), h.shape[1]), rows=into)
        exchange = PackedExchange(self._device, self._ranks, self._buffers, h, rows.exchanged, split.places)
        return h, exchange.arrive

    def _multiply_after_exchange(self, out: DeviceArray, h: DeviceArray, rows: HaloRows, zeros: float) -> None:
        (n, width), device, exchanged = h.shape, self._device, rows.exchanged
        both = device.empty((n + exchanged.n_received, width))
        halo = both.view(n * width, (exchanged.n_received, width))
        self._ranks.exchange(exchanged.sent_parts(self._local.take(h, exchanged.rows)), exchanged.received, halo)
        device.copy(h, both.view(0, h.shape))
        self._local.sparse_product(out, both, rows.first, rows.blocks, zeros)

    # -------------------------------------------------------------------------------------------- batch norm

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
    ) -> tuple[DeviceArray, Any]:
        """Normalise by the statistics of the global batch."""
        self._launch()
        about = (gamma, beta, running_mean, running_var, epsilon, momentum, training, relu)
        if not (training and self._sync):
            return self._local.batch_norm(x, *about)
        (N, P), device, local = x.shape, self._device, self._local
        own, statistics, rows = device.empty((3, P)), device.empty((2, P)), device.empty((1,))
        device.launch("ranks_batch_norm_begin", elementwise(P), own=own, N=N, P=P)
        local.batch_norm_statistics(x, statistics, own.view(P, (P,)), own.view(2 * P, (P,)), epsilon, 1.0)
        device.launch(
            "ranks_batch_norm_combine",
            elementwise(P),
            statistics=statistics,
            running_mean=running_mean,
            running_var=running_var,
            rows=rows,
            gathered=self._ranks.all_gather(own),
            x=x,
            epsilon=epsilon,
            momentum=momentum,
            ranks=self._ranks.size,
            N=N,
            P=P,
        )
        y = local.batch_norm_normalise(x, statistics, gamma, beta, relu)
        return y, SyncedSaved(BatchNormSaved(x, statistics, y if relu else None), rows)

    def batch_norm_backward(
        self,
        dy: DeviceArray,
        saved: Any,
        gamma: DeviceArray,
        out: tuple[DeviceArray, DeviceArray] | None = None,
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Gradients of `batch_norm`; of dgamma and dbeta, an equal share for each rank."""
        self._launch()
        if not isinstance(saved, SyncedSaved):
            return self._local.batch_norm_backward(dy, saved, gamma, out)
        (N, P), device, local = dy.shape, self._device, self._local
        dgamma, dbeta = out or (device.empty((P,)), device.empty((P,)))
        sums = device.empty((2, P))  # side by side: one exchange
        of_all = local.batch_norm_sums(dy, saved.local, (sums.view(0, (P,)), sums.view(P, (P,))))
        self._ranks.all_reduce(sums)
        shares = {"sums": sums, "dgamma": dgamma, "dbeta": dbeta, "rows": saved.rows}
        device.launch("ranks_batch_norm_share", elementwise(P), **shares, ranks=self._ranks.size, N=N, P=P)
        return local.batch_norm_dx(dy, saved.local, gamma, *of_all), dgamma, dbeta

    # -------------------------------------------------------------------------------------------- losses

    def softmax_cross_entropy(
        self, logits: DeviceArray, y: DeviceArray, class_weight: DeviceArray, totals: DeviceArray | None = None
    ) -> Loss:
        """As `sigmoid_cross_entropy`."""
        if not self._continues(logits):
            return super().softmax_cross_entropy(logits, y, class_weight, totals)
        bounds, weight = self._work.bounds, self._weight_of_all(y, class_weight)
        dlogits, total = self._device.empty(logits.shape), self._device.empty((1,))
        losses = self._device.empty((len(bounds) - 1,))

        def call(first: int, stop: int) -> None:
            of_rows = partial(rows_of, first=first, stop=stop)
            chunk = losses.view(list(bounds).index(first), 1)
            self._local.softmax_of_rows(of_rows(dlogits), chunk, of_rows(logits), of_rows(y), class_weight, weight)

        def add() -> None:
            one_thread = Launch((1, 1, 1), (1, 1, 1))
            self._device.launch("ranks_loss_of_chunks", one_thread, total=total, losses=losses, chunks=losses.size)
            self._ranks.all_reduce(total)
            if totals is not None:
                self._device.launch("ranks_add_loss", one_thread, totals=totals, total=total, weight=weight)

        self._add(call, bounds, dlogits, logits)
        self._last.append(add)
        return total, weight, dlogits

    def _weight_of_all(self, y: DeviceArray, class_weight: DeviceArray) -> DeviceArray:
        """Return the weight of all ranks' labels, (1,), without which the gradient of no row is known.

        It is kept: the labels of one large graph are the same in every step.
        """
        before = self._weight
        if before is None or before[0] is not y or before[1] is not class_weight:
            weight = self._local.softmax_weight(y, class_weight)
            self._ranks.all_reduce(weight)
            self._weight = before = y, class_weight, weight
        return before[2]

    def _of_all(self, loss: Callable[..., Loss], *about: Any, totals: DeviceArray | None) -> Loss:
        self._launch()
        total, _, dlogits = loss(*about)
        own = DeviceArray(total.ptr, (2,), total.dtype, total.owner)  # the weight follows the loss
        both = self._device.empty((2,))
        self._ranks.all_reduce(own, both)
        launch = elementwise(max(dlogits.size, 1), per_thread=4)
        arrays = {"dlogits": dlogits, "totals": totals, "own": own, "sums": both, "n": dlogits.size}
        self._device.launch("ranks_loss", launch, **arrays)
        return both.view(0, 1), both.view(1, 1), dlogits
