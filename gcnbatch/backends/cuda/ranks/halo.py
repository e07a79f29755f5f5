"""A rank's part of one large graph on its device: its rows of the adjacency, and whose rows a product needs besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.batches.batch import DeviceAdjacency, DeviceBatch, DeviceCsr, GraphLayout
from gcnbatch.backends.cuda.ranks.landing import Landing, Route, open_landing, route_of
from gcnbatch.backends.cuda.ranks.pipeline import product_bounds
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.cuda.spmm.kernels import Blocks, spmm_kernel
from gcnbatch.backends.cuda.spmm.large import NARROWEST_SLICE, ROW_BYTES, mark
from gcnbatch.backends.cuda.spmm.pieces import LARGE_ENTRIES, Large, Pieces, Scales, cut_rows, is_large, piece_of
from gcnbatch.data.graph_part import GraphPart, Halo, HaloAdjacency
from gcnbatch.data.sparse import Csr
from gcnbatch.ranks.communicator import Communicator

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

SECTOR: int = declared("spmm/compressed.cuh").constant("SECTOR")
# Nodes of a rank, on average, from which on ranks push rows; fewer have many entries each to hide an exchange behind.
PUSHED_NODES = 1 << 17
MEAN_ROW = 16  # entries of a row, on average, from which on products run beside exchanges
SPLIT_ROW = 64  # entries from which on a row is long
SPLIT_SHARE = 0.25  # of all entries that long rows have, at least
DENSE_SHARE = 0.2  # of a GPU's memory that dense rows may take, which are exchanged at once


@dataclass(frozen=True)
class Exchanged:
    """The rows that a rank sends before a product, and receives.

    Parameters
    ----------
    rows : int32, (n_sent,)
        Own nodes whose values other ranks need, rank by rank.
    sent, received : sequence of int
        By rank, the number of rows sent there and received from there; 0 for this rank itself.
    firsts : int32, (ranks + 1,)
        Where the rows for each rank begin, and their number.
    """

    rows: DeviceArray
    sent: Sequence[int]
    received: Sequence[int]
    firsts: DeviceArray

    @property
    def n_received(self) -> int:
        """Rows received from all ranks: the nodes of the halo."""
        return sum(self.received)

    def sent_parts(self, packed: DeviceArray) -> list[DeviceArray]:
        """Return the rows of `packed` (n_sent, P) by rank."""
        starts, width = np.cumsum([0, *self.sent[:-1]]).tolist(), packed.shape[1]
        return [packed.view(start * width, (count, width)) for start, count in zip(starts, self.sent, strict=True)]


@dataclass(frozen=True)
class MatrixPieces:
    """Rows of a matrix, in pieces. The products of the first two matrices are added; the third has the other rows.

    Rows of the dense operand are scaled before the product.

    Parameters
    ----------
    own : DeviceCsr
        Long rows, columns of own nodes.
    halo : DeviceCsr
        The same rows, columns of the halo.
    rest : DeviceCsr or None
        The other rows, columns of own nodes and halo.
    column_scale : float32, (n,), or None
        Of own nodes.
    places : int32, (n + m,)
        Those of own nodes in `gcnbatch.backends.cuda.spmm.large.CompressedRows`; an exchange sets those of the halo.
    columns_at_once : int
        Of dense rows that are exchanged at once.
    """

    own: DeviceCsr
    halo: DeviceCsr
    rest: DeviceCsr | None
    column_scale: DeviceArray | None
    places: DeviceArray
    columns_at_once: int

    @property
    def large(self) -> Large:
        """The pieces of `own`, and its scales, as the others have."""
        assert self.own.large is not None, "in pieces"
        return self.own.large


@dataclass(frozen=True)
class PushedRows:
    """Rows of a matrix in chunks, which are multiplied one by one; the dense operand lies in a buffer of `landing`.

    Parameters
    ----------
    chunks : sequence of DeviceCsr
        One, or as many as `product_bounds` has, in pieces; columns of own nodes and halo.
    column_scale : float32, (n,), or None
        Of own nodes: rows of the dense operand are scaled before they are pushed.
    entries : sequence of int
        Of each chunk.
    route : Route
    landing : Landing
    """

    chunks: Sequence[DeviceCsr]
    entries: Sequence[int]
    column_scale: DeviceArray | None
    route: Route
    landing: Landing

    @property
    def large(self) -> Large | None:
        """The pieces of the first chunk, and its scales, as the others have."""
        return self.chunks[0].large


@dataclass(frozen=True)
class HaloRows:
    """The rows of a matrix that a rank holds, as `gcnbatch.data.graph_part.Halo`.

    Parameters
    ----------
    matrix : DeviceCsr, MatrixPieces or PushedRows
    exchanged : Exchanged
    blocks : Blocks
        Of the rows.
    columns_per_node : int
    """

    matrix: DeviceCsr | MatrixPieces | PushedRows
    exchanged: Exchanged
    blocks: Blocks
    columns_per_node: int

    @property
    def first(self) -> DeviceCsr:
        """The matrix, or the first of them."""
        if isinstance(self.matrix, PushedRows):
            return self.matrix.chunks[0]
        return self.matrix.own if isinstance(self.matrix, MatrixPieces) else self.matrix


@dataclass(slots=True, eq=False)
class DeviceHalo(DeviceAdjacency):
    """The rows of an adjacency and of its transpose that a rank holds; `forward` and `transpose` are their `first`."""

    of_forward: HaloRows
    of_transpose: HaloRows


class _Count(NamedTuple):
    """Number of rows: this rank's, and those of all ranks."""

    own: int
    of_all: int


class GraphPartBatch:
    """`gcnbatch.backends.base.Feed` of this rank's part of a set of one graph: the same batch at each step.

    Parameters
    ----------
    device : Device
    part : GraphPart
    targets : (N, K)
        Of the whole graph.
    ranks : Communicator
        Of host arrays; all ranks create their parts together.
    kernel : str
        As in `gcnbatch.backends.cuda.spmm.ops.SparseOps`.
    open_buffers : callable
        As `open_landing`.
    """

    def __init__(
        self,
        device: Device,
        part: GraphPart,
        targets: NDArray[Any],
        ranks: Communicator,
        kernel: str,
        open_buffers: Callable[..., Landing | None] = open_landing,
    ) -> None:
        self._device, self._form, self._ranks = device, spmm_kernel(kernel), ranks
        first, stop = (int(bound) for bound in part.bounds[ranks.rank : ranks.rank + 2])
        upload, nodes = device.upload, _Count(stop - first, int(part.bounds[-1]))
        self.landing = self._open(part, nodes.own, open_buffers)
        adjacency, own = self._upload(part.adjacency, nodes, nodes), targets[first:stop]
        layout = adjacency.layout
        dense = isinstance(part.x, np.ndarray)
        x = upload(np.ascontiguousarray(part.x)) if dense else batch.features(part.x, layout).map(upload)
        self._batch = DeviceBatch(adjacency.node_ptr, x, adjacency, upload(own), layout)
        if part.labelled is not None:
            rows = _Count(len(part.labelled.rows), part.labelled.total)
            few = self._upload(part.labelled.adjacency, rows, nodes)
            labels = upload(own[part.labelled.rows])
            self._batch = replace(self._batch, labelled=replace(self._batch, adjacency=few, targets=labels))

    def _open(self, part: GraphPart, n: int, open_buffers: Callable[..., Landing | None]) -> Landing | None:
        """Return the receive buffers into which ranks push rows, where they do."""
        found = part.adjacency
        halos = [(n, found.of_forward), (n, found.of_transpose)]
        if part.labelled is not None:
            few = part.labelled.adjacency
            halos += [(n, few.of_forward), (len(part.labelled.rows), few.of_transpose)]
        is_small = int(part.bounds[-1]) < PUSHED_NODES * self._ranks.size
        if is_small or not self._form.pieces or found.n_channels > 1:
            return None
        return open_buffers(self._device, self._ranks, halos)

    def _upload(self, found: HaloAdjacency, rows: _Count, nodes: _Count) -> DeviceHalo:
        """Return an adjacency of so many rows on the device; its transpose has the nodes' rows."""
        forward = found.forward, found.of_forward, rows, nodes.own * found.n_channels
        transpose = found.transpose, found.of_transpose, nodes, rows.own
        of_forward = of_transpose = self._upload_rows(*forward, 1, found.n_channels)
        if found.transpose is not found.forward:
            of_transpose = self._upload_rows(*transpose, found.n_channels, 1)
        _, layout, _ = of_transpose.blocks
        about = of_forward.first, of_transpose.first, found.n_channels, of_transpose.blocks.node_ptr, layout
        return DeviceHalo(*about, of_forward, of_transpose)

    def _upload_rows(
        self, matrix: Csr, halo: Halo, rows: _Count, n_own: int, per_node: int, columns_per_node: int
    ) -> HaloRows:
        """Upload a matrix whose first `n_own` columns are those of this rank; it has `rows` times `per_node` rows."""
        device, form, upload = self._device, self._form, self._device.upload
        asked = upload(np.concatenate([*halo.sent, np.zeros(0)]).astype(np.int32))
        sent = [len(some) for some in halo.sent]
        exchanged = Exchanged(asked, sent, list(halo.received), upload(np.cumsum([0, *sent]).astype(np.int32)))
        layout = GraphLayout(np.array([0, rows.own]), per_node * columns_per_node)  # one of them is 1
        blocks = Blocks(upload(layout.node_ptr.astype(np.int32)), layout, per_node)
        held: DeviceCsr | MatrixPieces | PushedRows
        if self.landing is not None:
            route = route_of(device, self._ranks, n_own, halo)
            held = pushed_rows(device, matrix, halo.scales, route, self.landing)
        elif form.pieces and is_split(halo.entries, rows.of_all):
            held = matrix_pieces(device, matrix, n_own, halo.scales, self._columns_at_once(matrix.n_cols + sum(sent)))
        else:
            held = batch.csr(matrix, form.coo, form.pieces, alone=True, scales=halo.scales).map(upload)
        return HaloRows(held, exchanged, blocks, columns_per_node)

    def _columns_at_once(self, rows: int) -> int:
        """Return the columns of dense rows that ranks exchange at once; all ranks call, and get the same.

        The order of sums depends on it, so it must not depend on the memory that is free now. `rows` are those that
        this rank sends, and those of the operand.
        """
        bytes_of_rows = int(DENSE_SHARE * self._device.memory().total)
        fitting = int(self._ranks.all_gather(np.array([bytes_of_rows // (4 * max(rows, 1))])).min())
        return max(fitting // NARROWEST_SLICE, 1) * NARROWEST_SLICE

    def begin_epoch(self, batches: Sequence[NDArray[np.int64]]) -> None:
        """Do nothing: every step has the same batch."""

    def batch(self, index: int) -> DeviceBatch:
        """Return the batch."""
        return self._batch

    def gather(self, graphs: NDArray[np.int64]) -> DeviceBatch:
        """Return the batch."""
        return self._batch

    def close(self) -> None:
        """Free the receive buffers; all ranks call. Other memory is freed with its last reference."""
        if self.landing is not None:
            self.landing.close()
            self.landing = None


def is_split(entries: Sequence[int], rows: int) -> bool:
    """Return whether ranks multiply columns of their own nodes while they exchange rows.

    `entries` are those of each rank's rows, `rows` the number of all.

    >>> is_split([60_000_000, 50_000_000], 2_400_000), is_split([60_000_000, 1_000], 2_400_000)
    (True, False)
    >>> is_split([836_000_000] * 4, 111_000_000), is_split([6_000_000] * 2, 1_000_000)
    (True, False)
    """
    return min(entries) >= LARGE_ENTRIES and sum(entries) >= MEAN_ROW * rows


def long_rows(lengths: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows are multiplied in two parts, so that there is work while the halo is on its way.

    A row in two parts is read and written twice. Few long rows have many of the entries; if they have not, all rows are
    split.

    >>> long_rows(np.array([10, 64, 3, 100])), long_rows(np.array([33, 34]))
    (array([False,  True, False,  True]), array([ True,  True]))
    """
    found = lengths >= SPLIT_ROW
    return found if lengths[found].sum() >= SPLIT_SHARE * lengths.sum() else np.ones_like(found)


def pushed_rows(
    device: Device, matrix: Csr, scales: tuple[Any, Any] | None, route: Route, landing: Landing
) -> PushedRows:
    """Return a matrix whose first `route.n_own` columns are those of own nodes as `PushedRows` on the device."""
    indptr, lengths = matrix.indptr.astype(np.int32), np.diff(matrix.indptr)
    if not len(lengths) or not is_large(int(indptr[-1]), lengths):
        only = batch.csr(matrix, coo=False, pieces=False).map(device.upload)
        return PushedRows([only], [int(indptr[-1])], None, route, landing)
    piece = piece_of(int(indptr[-1]), len(lengths), int(lengths.max()))
    of_rows = None if scales is None else Scales(device.upload(scales[0]), None)
    upload, data = device.upload, matrix.data[:0] if scales else matrix.data
    no_pieces = cut_rows(np.zeros(1, np.int32)).map(upload)
    whole = DeviceCsr(
        upload(indptr), upload(matrix.indices), upload(data), matrix.n_cols, None, Large(no_pieces, of_rows)
    )
    if scales is not None:
        whole = mark(device, whole, np.bincount(matrix.indices, minlength=matrix.n_cols))
    assert whole.large is not None
    chunks = []
    for first, stop in pairwise(product_bounds(len(lengths))):
        cut = _from_row(cut_rows(indptr[first : stop + 1], piece), first)
        held = replace(whole, indptr=whole.indptr.view(first, stop + 1 - first))
        chunks.append(replace(held, large=whole.large._replace(pieces=cut.map(upload))))
    own_scale = None if scales is None else upload(scales[1][: route.n_own])
    return PushedRows(chunks, np.diff(indptr[list(product_bounds(len(lengths)))]).tolist(), own_scale, route, landing)


def _from_row(cut: Pieces, first: int) -> Pieces:
    """Return the pieces of the rows of a matrix from row `first` on."""
    target = np.where(cut.target >= 0, cut.target + np.int32(first), cut.target)
    return cut._replace(target=target, split_row=cut.split_row + np.int32(first))


def matrix_pieces(
    device: Device, matrix: Csr, n_own: int, scales: tuple[Any, Any] | None, columns_at_once: int
) -> MatrixPieces:
    """Return a matrix whose first `n_own` columns are those of own nodes as `MatrixPieces` on the device."""
    lengths = np.diff(matrix.indptr)
    is_long = long_rows(lengths)
    of_long, is_own = np.repeat(is_long, lengths), matrix.indices < n_own
    in_rows, n_cols = Scales(scales[0], None) if scales else None, matrix.n_cols
    row_scale = None if in_rows is None else in_rows.map(device.upload)
    own, halo, rest = (
        _part(device, matrix, np.flatnonzero(rows), entries, columns, row_scale)
        for rows, entries, columns in (
            (is_long, of_long & is_own, (0, n_own)),
            (is_long, of_long & ~is_own, (n_own, n_cols)),
            (~is_long, ~of_long, (0, n_cols)),
        )
    )
    own_scale = device.upload(scales[1][:n_own]) if scales else None
    places = device.upload(np.arange(n_cols, dtype=np.int32) * (ROW_BYTES // SECTOR))
    return MatrixPieces(own, halo, None if is_long.all() else rest, own_scale, places, columns_at_once)


def _part(
    device: Device,
    matrix: Csr,
    rows: NDArray[np.int64],
    entries: NDArray[np.bool_],
    columns: tuple[int, int],
    scales: Scales | None,
) -> DeviceCsr:
    """Return these entries, all of these rows and columns, as a matrix in pieces on the device, whatever its size."""
    before = np.concatenate([[0], np.cumsum(entries, dtype=np.int32)])[matrix.indptr]
    indptr = np.concatenate([[0], np.cumsum(np.diff(before)[rows])]).astype(np.int32)
    indices, n_cols = matrix.indices[entries] - np.int32(columns[0]), columns[1] - columns[0]
    data = matrix.data[:0] if scales else matrix.data[entries]
    cut = cut_rows(indptr)
    number = rows.astype(np.int32)
    target = np.where(cut.target >= 0, number[np.maximum(cut.target, 0)], cut.target) if len(rows) else cut.target
    cut = cut._replace(target=target, split_row=number[cut.split_row]).map(device.upload)
    upload = device.upload
    held = DeviceCsr(upload(indptr), upload(indices), upload(data), n_cols, None, Large(cut, scales))
    return held if scales is None else mark(device, held, np.bincount(indices, minlength=n_cols))
