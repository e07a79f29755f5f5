"""A data set in device memory: uploaded once; one launch gathers a batch from a list of graph numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches import batch
from gcnbatch.backends.cuda.batches.batch import (
    ChannelAdjacency,
    DeviceAdjacency,
    DeviceBatch,
    DeviceCsr,
    DeviceFeatures,
    GraphLayout,
    Int64,
)
from gcnbatch.backends.cuda.batches.epoch_plan import ColumnPlan, EpochPlan, plan_columns, plan_epoch
from gcnbatch.backends.cuda.batches.one_graph import labelled_batch, labelled_bytes, rows_with_labels, upload_alone
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.spmm import geometry as geometry_sparse
from gcnbatch.backends.cuda.spmm import pieces as spmm_pieces
from gcnbatch.backends.cuda.spmm.kernels import SpmmKernel, spmm_kernel
from gcnbatch.backends.cuda.spmm.pieces import Large, Scales
from gcnbatch.data.batches import BatchSource, PreparedRows, PreparedSet
from gcnbatch.data.graph_features import GraphFeatures
from gcnbatch.data.sparse import MAX_ENTRIES, Csr, is_sparse

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device


def resident_bytes(prepared: PreparedSet, targets: NDArray[Any], kernel: str = "csr", per_graph: bool = False) -> int:
    """Return the bytes of device memory that `ResidentSet` takes for this set.

    That of labelled rows is a bound: the matrix may have no values.
    """
    labelled = labelled_bytes(prepared, targets, spmm_kernel(kernel), per_graph)
    return targets.nbytes + labelled + features_bytes(prepared) + adjacency_bytes(prepared, kernel, per_graph)


def features_bytes(prepared: PreparedSet) -> int:
    """Return the bytes of device memory of the features of nodes and graphs.

    A set of one graph is its only batch. Its features are float32; sparse ones also have the structure of their
    transpose.
    """
    x, joined = prepared.stored_x, prepared.joined_features
    alone = len(prepared.forward.entry_ptr) == 2
    of_graphs = 0 if joined is None else joined.dense_bytes + 4 * alone
    if is_sparse(x):
        columns = 4 * (x.shape[1] + 1) + 8 * x.nnz if alone else 0
        return int(x.data.nbytes + x.indices.nbytes + 4 * len(x.indptr) + columns + of_graphs)
    return int(4 * x.size if alone else x.nbytes) + of_graphs


def adjacency_bytes(prepared: PreparedSet, kernel: str = "csr", per_graph: bool = False) -> int:
    """Return the bytes of device memory of the adjacency, in the form that the kernel and backend need.

    An entry has a column and a value. It also has a row number if a COO kernel needs one and no gather computes it per
    batch. A single large graph also has pieces; if it has scales, it has no values.
    """
    form, alone, total = spmm_kernel(kernel), len(prepared.forward.entry_ptr) == 2, 0
    for rows, scales in _matrices(prepared):
        n_rows = len(prepared.forward.row_length) * prepared.channels if per_graph else len(rows.row_length)
        found = None if per_graph else large(rows, scales, alone, form)
        arrays = 1 + (found is None or not found.scales) + (form.coo and (alone or per_graph))
        total += 4 * arrays * len(rows.indices) + 4 * (n_rows + 1) + (found.nbytes if found else 0)
    return total


def large(rows: PreparedRows, scales: Scales | None, alone: bool, kernel: SpmmKernel) -> Large | None:
    """Return the pieces of a large matrix that is `alone` in its set, if the kernel uses pieces, else None."""
    return spmm_pieces.cut(rows.indptr, scales, alone) if alone and kernel.pieces else None


def _matrices(prepared: PreparedSet) -> list[tuple[PreparedRows, Scales | None]]:
    """Return the adjacency and, unless it is symmetric, its transpose, each with its scales."""
    scales = None if prepared.scales is None else Scales(*prepared.scales)
    forward = (prepared.forward, scales)
    return [forward] if prepared.symmetric else [forward, (prepared.transpose, scales and Scales(*scales[::-1]))]


def can_reside(
    source: BatchSource, targets: NDArray[Any], budget: int, kernel: str = "csr", per_graph: bool = False
) -> bool:
    """Return whether the set is in host memory, fits in `budget` bytes on the device, and in 32-bit indices."""
    prepared = source.prepared
    if prepared is None or resident_bytes(prepared, targets, kernel, per_graph) > budget:
        return False
    rows, entries = len(prepared.transpose.row_length), len(prepared.forward.indices)
    features = prepared.x.nnz if is_sparse(prepared.x) else 0
    return max(rows, entries, features) <= MAX_ENTRIES


@dataclass(frozen=True)
class _Uploaded:
    """A plan on the device: one array with `EpochPlan.packed` and the arrays of `columns`, which begin at `starts`."""

    plan: EpochPlan
    columns: ColumnPlan | None
    array: DeviceArray
    starts: dict[str, int]

    def view(self, name: str, offset: int, length: int) -> DeviceArray:
        return self.array.view(self.starts[name] + offset, (length,))


NO_INTEGERS, NO_FLOATS = (DeviceArray(0, (0,), np.dtype(kind)) for kind in (np.int32, np.float32))
NO_CSR = Csr(NO_INTEGERS, NO_INTEGERS, NO_FLOATS, 0)  # null pointers in a kernel


class ResidentSet:
    """A data set in device memory, in its stored types, and the gather of its batches.

    A set of one graph is its only batch and is never copied.

    Parameters
    ----------
    device : Device
    source : BatchSource
        Of a set in memory.
    targets : (R, K)
        float32 or int32, for every row of the data set.
    kernel : str
        As in `gcnbatch.backends.cuda.spmm.ops.SparseOps`; it decides whether entries have row numbers.
    per_graph : bool
        Return `ChannelAdjacency`, for the non-batched backend, instead of `DeviceAdjacency`.
    """

    def __init__(
        self, device: Device, source: BatchSource, targets: NDArray[Any], kernel: str = "csr", per_graph: bool = False
    ) -> None:
        assert source.prepared is not None
        self._device, self._prepared, self._node_ptr = device, source.prepared, source.node_ptr
        self._kernel = spmm_kernel(kernel)
        self._level, self._targets, self._host_targets = source.header.level, device.upload(targets), targets
        self._labelled = rows_with_labels(self._prepared, targets, self._kernel, per_graph)
        self._set_node_ptr = device.upload(self._node_ptr.astype(np.int32))
        self._layout = GraphLayout(self._node_ptr, self._prepared.channels)
        self._upload_features()
        joined = self._prepared.joined_features
        self._graph_features = None if joined is None else device.upload(joined.dense())
        self._channels = self._channel_matrices() if per_graph else None
        self._forward = self._transpose = NO_CSR
        if not per_graph:
            uploaded = [self._upload_rows(*matrix) for matrix in _matrices(self._prepared)]
            self._forward, self._transpose = uploaded[0], uploaded[-1]
        self._gathered = 1 if per_graph else 2 if self._prepared.symmetric else 3  # nodes, adjacency, its transpose
        self._whole = self._whole_batch() if source.n_graphs == 1 else None

    def begin_epoch(self, batches: Sequence[Int64]) -> None:
        """Plan the epoch's batches and upload the plan."""
        self._batches = batches
        self._epoch = None if self._whole is not None and all(map(_is_whole, batches)) else self._plan(batches)

    def batch(self, index: int) -> DeviceBatch:
        """Return batch `index` of the epoch: one launch, without waiting."""
        return self._batch(self._epoch, index)

    def gather(self, graphs: Int64) -> DeviceBatch:
        """Return these graphs, in this order, as one batch, outside any epoch."""
        planned = None if self._whole is not None and _is_whole(graphs) else self._plan([graphs])
        return self._batch(planned, 0)

    def close(self) -> None:
        """Do nothing: the memory is freed with its last reference. `StreamingSet` ends its thread here."""

    # ------------------------------------------------------------------------------------------------ upload

    def _upload_features(self) -> None:
        x: Any = self._prepared.stored_x
        upload = self._device.upload
        self._x: Any
        sparse: bool = sp.issparse(x)
        if sparse:
            self._x = Csr(upload(x.indptr.astype(np.int32)), upload(x.indices), upload(x.data), x.shape[1])
            self._entry_ptr = x.indptr[self._node_ptr].astype(np.int64)
        else:
            # Kernels read a set of one graph directly, without a gather that converts: float32.
            self._x = upload(np.ascontiguousarray(x, dtype=np.float32 if len(self._node_ptr) == 2 else x.dtype))

    def _upload_rows(self, rows: PreparedRows, scales: Scales | None) -> DeviceCsr:
        """Upload a matrix. That of one large graph has pieces; if it has scales, its values stay on the host."""
        found = large(rows, scales, len(self._node_ptr) == 2, self._kernel)
        data = rows.data[:0] if found and found.scales else rows.data
        n_columns = rows.stride * int(self._node_ptr[-1])
        return upload_alone(
            self._device, DeviceCsr(rows.indptr.astype(np.int32), rows.indices, data, n_columns, None, found)
        )

    def _channel_matrices(self) -> ChannelAdjacency:
        everything = np.arange(len(self._node_ptr) - 1)
        nodes = np.arange(int(self._node_ptr[-1]))
        found = self._prepared.gather(everything, nodes, self._node_ptr, nodes)
        return batch.channel_adjacency(found.adjacency, self._layout, self._kernel.coo).map(self._device.upload)

    def _whole_batch(self) -> DeviceBatch:
        x, upload = self._x, self._device.upload
        if isinstance(x, Csr):
            host: Any = self._prepared.stored_x
            column_ptr, rows, order = map(upload, batch.transposed(host.indptr, host.indices, x.n_cols))
            x = DeviceFeatures(x.indptr, x.indices, x.data, x.n_cols, column_ptr, rows, order, self._layout)
        adjacency = self._channels or self._block_diagonal(self._forward, self._transpose, self._set_node_ptr)
        joined = None
        if self._graph_features is not None:
            joined = GraphFeatures(self._graph_features, upload(np.zeros(1, np.int32)))
        whole = DeviceBatch(self._set_node_ptr, x, adjacency, self._targets, self._layout, joined)
        if self._labelled is None:
            return whole
        stored = self._prepared.forward.whole(self._layout.n_nodes * self._prepared.channels)
        about = stored, self._prepared.scales, self._labelled, self._host_targets[self._labelled]
        return replace(whole, labelled=labelled_batch(self._device, whole, *about))

    # ------------------------------------------------------------------------------------------------ gather

    @cached_property
    def _entry(self) -> str:
        return "gather_csr" if isinstance(self._x, Csr) else f"gather_{self._x.dtype.name}"

    @cached_property
    def _set(self) -> dict[str, Any]:
        """Arguments of every gather that describe the set, except the features."""
        return {
            "set_targets": self._targets.astype_view(np.int32),
            "set_forward": csr_fields(self._forward),
            "set_transpose": csr_fields(self._transpose),
            "set_node_ptr": self._set_node_ptr,
            "n_outputs": self._targets.shape[1],
            "targets_per_node": self._level == "node",
            "n_channels": self._prepared.channels,
        }

    @cached_property
    def _sizes(self) -> dict[str, Int64]:
        """Numbers of items of each graph."""
        ptrs = {"nodes": self._node_ptr, "edges": self._prepared.forward.entry_ptr}
        ptrs["transposed edges"] = self._prepared.transpose.entry_ptr
        if isinstance(self._x, Csr):
            ptrs["feature entries"] = self._entry_ptr
        return {name: np.diff(ptr) for name, ptr in ptrs.items()}

    def _plan(self, batches: Sequence[Int64]) -> _Uploaded:
        plan = plan_epoch(batches, self._sizes)
        arrays = {"plan": plan.packed}
        columns = None
        if isinstance(self._x, Csr):
            x: Any = self._prepared.stored_x
            columns = plan_columns(batches, Csr(x.indptr, x.indices, x.data, x.shape[1]), self._node_ptr)
            arrays |= {"column_ptr": columns.column_ptr, "rows": columns.rows, "order": columns.order}
        ends = np.cumsum([0, *(len(array) for array in arrays.values())]).tolist()
        starts = dict(zip(arrays, ends, strict=False))
        return _Uploaded(plan, columns, self._device.upload(np.concatenate(list(arrays.values()))), starts)

    def _batch(self, planned: _Uploaded | None, index: int) -> DeviceBatch:
        if planned is None:
            assert self._whole is not None
            return self._whole
        plan, device = planned.plan, self._device
        layout = GraphLayout(plan.pointer("nodes", index), self._prepared.channels)
        B, N, (start, size) = layout.n_graphs, plan.totals["nodes"][index], plan.places[index]
        of_batch, node_ptr = planned.array.view(start, size), planned.array.view(start + B, B + 1)
        n_outputs, per_node = self._targets.shape[1], self._level == "node"
        bits = device.empty((N if per_node else B, n_outputs), np.int32)
        forward, transpose = self._empty_adjacency(N, plan.totals["edges"][index])
        if isinstance(self._x, Csr):
            x: Any = self._empty_features(planned, index, layout)
            features: dict[str, Any] = {"x": csr_fields(x), "set_x": csr_fields(self._x)}
            elements = x.indices.size
        else:
            x = device.empty((N, self._x.shape[1]))
            features = {"x": x, "set_x": self._x, "n_features": x.shape[1]}
            elements = N * x.shape[1]
        launch = geometry_sparse.gather(B, elements, device.multiprocessors, self._gathered)
        matrices = {"forward": csr_fields(forward), "transpose": csr_fields(transpose)}
        device.launch(
            self._entry, launch, batch={"targets": bits, **matrices, "plan": of_batch, **self._set}, **features
        )
        if self._channels is None:
            adjacency: Any = self._block_diagonal(forward, transpose, node_ptr, layout)
        else:
            first, last = plan.batch_ptr[index : index + 2]
            adjacency = self._channels_of(plan.graphs[first:last].astype(np.int64), layout)
        targets = DeviceArray(bits.ptr, bits.shape, self._targets.dtype, bits.owner)
        joined = None
        if self._graph_features is not None:
            joined = GraphFeatures(self._graph_features, planned.array.view(start, B))
        return DeviceBatch(node_ptr, x, adjacency, targets, layout, joined)

    def _channels_of(self, graphs: Int64, layout: GraphLayout) -> ChannelAdjacency:
        assert self._channels is not None
        forward = self._channels.forward.take(graphs, layout.n_channels)
        if self._channels.transpose is self._channels.forward:
            return ChannelAdjacency(forward, forward, layout)
        return ChannelAdjacency(forward, self._channels.transpose.take(graphs, layout.n_channels), layout)

    def _empty_features(self, planned: _Uploaded, index: int, layout: GraphLayout) -> DeviceFeatures:
        assert planned.columns is not None
        n_features = self._x.n_cols
        start, stop = planned.columns.entry_start[index : index + 2].tolist()
        columns = planned.view("column_ptr", index * (n_features + 1), n_features + 1)
        rows, order = (planned.view(name, start, stop - start) for name in ("rows", "order"))
        empty = self._empty_csr(layout.n_nodes, stop - start, n_features)
        return DeviceFeatures(empty.indptr, empty.indices, empty.data, n_features, columns, rows, order, layout)

    def _empty_adjacency(self, n_nodes: int, n_entries: int) -> tuple[Csr, Csr]:
        if self._channels is not None:
            return NO_CSR, NO_CSR
        channels = self._prepared.channels
        forward = self._empty_csr(n_nodes, n_entries, n_nodes * channels)
        if self._prepared.symmetric:
            return forward, forward
        return forward, self._empty_csr(n_nodes * channels, n_entries, n_nodes)

    def _block_diagonal(
        self, forward: Csr, transpose: Csr, node_ptr: DeviceArray, layout: GraphLayout | None = None
    ) -> DeviceAdjacency:
        """Return the adjacency; if the kernel needs row numbers, one launch per matrix computes them."""
        layout = self._layout if layout is None else layout
        first = self._with_rows(forward)
        second = first if transpose is forward else self._with_rows(transpose)
        return DeviceAdjacency(first, second, layout.n_channels, node_ptr, layout)

    def _with_rows(self, matrix: Csr) -> DeviceCsr:
        rows = None
        if self._kernel.coo:
            n_rows = matrix.indptr.size - 1
            rows = self._device.empty(matrix.indices.shape, np.int32)
            found = {"rows": rows, "indptr": matrix.indptr, "n_rows": n_rows}
            self._device.launch("csr_entry_rows", geometry_sparse.entry_rows(n_rows), **found)
        pieces = matrix.large if isinstance(matrix, DeviceCsr) else None
        return DeviceCsr(matrix.indptr, matrix.indices, matrix.data, matrix.n_cols, rows, pieces)

    def _empty_csr(self, n_rows: int, n_entries: int, n_cols: int) -> Csr:
        """Return a matrix for a kernel to fill. Without rows, `indptr` is [0], because no kernel would write it."""
        indptr = (self._device.empty if n_rows else self._device.zeros)(n_rows + 1, np.int32)
        return Csr(indptr, self._device.empty(n_entries, np.int32), self._device.empty(n_entries), n_cols)


def _is_whole(graphs: Int64) -> bool:
    """Return whether these graphs are the whole of a set of one graph."""
    return len(graphs) == 1


def csr_fields(matrix: Csr) -> dict[str, DeviceArray]:
    """Return the fields of a matrix argument of a kernel."""
    return {"indptr": matrix.indptr, "indices": matrix.indices, "data": matrix.data}
