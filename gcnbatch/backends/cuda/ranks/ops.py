"""Operations of backend ``batched`` on a rank's part of a global batch (cuda_src/ranks).

As on the host (`gcnbatch.backends.cpu.distributed`), operations within a row, a node or a graph stay local, and sums
over all rows are global. All exchanges are queued on the device's stream: no step waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from gcnbatch.backends.cuda.operations import BatchedOps
from gcnbatch.backends.cuda.ops.batch_norm import BatchNormSaved
from gcnbatch.backends.cuda.ops.common import row_tiles
from gcnbatch.backends.cuda.ops.relu_dropout import Kept
from gcnbatch.backends.cuda.ranks.halo import DeviceHalo, HaloRows
from gcnbatch.backends.cuda.ranks.packed import Door, PackedExchange, Rooms
from gcnbatch.backends.cuda.runtime.launch import ceil_div, elementwise
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm.large import MOST_COLUMNS, CompressedRows, compress, is_compressed
from gcnbatch.backends.ops import DropoutKey, Reader
from gcnbatch.ranks.communicator import Communicator

Loss = tuple[DeviceArray, DeviceArray, DeviceArray]


class DeviceCommunicator(Communicator, Door, Protocol):
    """What the operations need of `gcnbatch.backends.cuda.runtime.nccl.NcclCommunicator`."""

    def all_reduce(self, array: DeviceArray, out: DeviceArray | None = None) -> None:
        """Write the sum of an array over all ranks to `out`, else in place."""

    def exchange(self, parts: Any, rows: Any, out: DeviceArray | None = None) -> list[DeviceArray]:
        """Send a part to each rank; receive those of the others in `out`, one after the other."""


class SyncedSaved(NamedTuple):
    """What a global batch norm saves: that of the local one, and the rows of all ranks, (1,)."""

    local: BatchNormSaved
    rows: DeviceArray


class DeviceDistributedOps:
    """`gcnbatch.backends.ops.Ops` on this rank's rows; all others are those of `local`.

    Parameters as `gcnbatch.backends.cpu.distributed.DistributedOps`.
    """

    def __init__(self, local: BatchedOps, ranks: DeviceCommunicator, sync_batch_norm: bool) -> None:
        self._local, self._ranks, self._sync, self._device = local, ranks, sync_batch_norm, local.device
        self._rooms = Rooms(local.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    # -------------------------------------------------------------------------------------------- one large graph

    def spmm(self, adjacency: Any, h: Any, zeros: float = 0.0) -> DeviceArray:
        """Product of this rank's rows, with its halo fetched from the other ranks."""
        if not isinstance(adjacency, DeviceHalo):
            return self._local.spmm(adjacency, h, zeros)
        y = self._device.empty((h.shape[0], h.shape[1] // adjacency.n_channels))
        self._multiply(y, h, adjacency.of_forward, zeros)
        return y

    def spmm_backward(self, adjacency: Any, dy: DeviceArray, zeros: float = 0.0) -> DeviceArray:
        """Gradient of `spmm` by this rank's rows, as `spmm` with its rows of the transpose."""
        if not isinstance(adjacency, DeviceHalo):
            return self._local.spmm_backward(adjacency, dy, zeros)
        dh = self._device.empty((dy.shape[0], adjacency.n_channels * dy.shape[1]))
        self._multiply(dh, dy, adjacency.of_transpose, zeros)
        return dh

    def relu_dropout(
        self,
        x: DeviceArray,
        rate: float,
        key: DropoutKey,
        out: DeviceArray | None = None,
        reader: Reader | None = None,
    ) -> tuple[Any, Kept]:
        """As of `local`; compressed where a product exchanges compressed rows."""
        graphs = None if reader is None else reader.adjacency
        is_dense = isinstance(graphs, DeviceHalo) and graphs.of_forward.halo is None
        return self._local.relu_dropout(x, rate, key, out, None if is_dense else reader)

    def _multiply(self, out: DeviceArray, h: Any, rows: HaloRows, zeros: float) -> None:
        """Launch the product of a rank's rows; columns of own nodes are multiplied while the halo is on its way."""
        if rows.halo is None:
            self._multiply_behind_exchange(out, h, rows, zeros)
            return
        large, width = rows.own.large, h.shape[1]
        is_dense = isinstance(h, DeviceArray)
        if is_dense and large and large.scales and width <= MOST_COLUMNS and is_compressed(width, zeros, large.scales):
            h = compress(self._device, h, large.scales, (len(h), width))
        start = self._start if isinstance(h, DeviceArray) else self._start_packed
        exchange = start(h, rows)
        self._local.sparse_product(out, h, rows.own, rows.blocks, zeros)
        halo = exchange()
        if rows.exchanged.n_received:
            stride = halo.shape[1] // rows.columns_per_node
            self._local.sparse_product(out, halo, rows.halo, rows.blocks, zeros, True, stride)

    def _start(self, h: DeviceArray, rows: HaloRows) -> Callable[[], DeviceArray]:
        """Start the exchange of dense rows; return a function that waits for it and returns the halo's.

        The sender scales them and, in a matrix of one channel, pads them to whole vectors, as the product reads them.
        """
        (_, width), device, exchanged, large = h.shape, self._device, rows.exchanged, rows.own.large
        stride = 4 * ceil_div(width, 4) if rows.columns_per_node == 1 else width
        packed, halo = (device.empty((n, stride)) for n in (exchanged.rows.size, exchanged.n_received))
        scale = large.scales.columns if large and large.scales else None
        about = {"sent": exchanged.rows, "n_sent": len(packed), "P": width, "stride": stride}
        device.launch("halo_take", row_tiles(len(packed), width), y=packed, x=h, scale=scale, **about)
        exchange = self._ranks.exchange_beside(exchanged.sent_parts(packed), exchanged.received, halo)

        def arrive() -> DeviceArray:
            exchange.arrive()
            return halo

        return arrive

    def _start_packed(self, h: CompressedRows, rows: HaloRows) -> Callable[[], CompressedRows]:
        """As `_start`, of compressed rows."""
        return PackedExchange(self._device, self._ranks, self._rooms, h, rows.exchanged).arrive

    def _multiply_behind_exchange(self, out: DeviceArray, h: DeviceArray, rows: HaloRows, zeros: float) -> None:
        (n, width), device, exchanged = h.shape, self._device, rows.exchanged
        both = device.empty((n + exchanged.n_received, width))
        halo = both.view(n * width, (exchanged.n_received, width))
        self._ranks.exchange(exchanged.sent_parts(self._local.take(h, exchanged.rows)), exchanged.received, halo)
        device.copy(h, both.view(0, h.shape))
        self._local.sparse_product(out, both, rows.own, rows.blocks, zeros)

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

    def sigmoid_cross_entropy(
        self, logits: DeviceArray, y: DeviceArray, pos_weight: DeviceArray, totals: DeviceArray | None = None
    ) -> Loss:
        """Sum of loss and weight of the global batch, and the gradient of their quotient by this rank's logits."""
        return self._of_all(self._local.sigmoid_cross_entropy, logits, y, pos_weight, totals=totals)

    def softmax_cross_entropy(
        self, logits: DeviceArray, y: DeviceArray, class_weight: DeviceArray, totals: DeviceArray | None = None
    ) -> Loss:
        """As `sigmoid_cross_entropy`."""
        return self._of_all(self._local.softmax_cross_entropy, logits, y, class_weight, totals=totals)

    def mean_squared_error(self, logits: DeviceArray, y: DeviceArray, totals: DeviceArray | None = None) -> Loss:
        """As `sigmoid_cross_entropy`."""
        return self._of_all(self._local.mean_squared_error, logits, y, totals=totals)

    def _of_all(self, loss: Callable[..., Loss], *about: DeviceArray, totals: DeviceArray | None) -> Loss:
        total, _, dlogits = loss(*about)
        own = DeviceArray(total.ptr, (2,), total.dtype, total.owner)  # the weight lies behind the loss
        both = self._device.empty((2,))
        self._ranks.all_reduce(own, both)
        launch = elementwise(max(dlogits.size, 1), per_thread=4)
        arrays = {"dlogits": dlogits, "totals": totals, "own": own, "sums": both, "n": dlogits.size}
        self._device.launch("ranks_loss", launch, **arrays)
        return both.view(0, 1), both.view(1, 1), dlogits
