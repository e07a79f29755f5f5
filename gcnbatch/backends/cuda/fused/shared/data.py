"""The fused backend's data set on the device: U of the first layer, computed once, and plans of epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan, plan_epoch, plan_epochs
from gcnbatch.backends.cuda.fused.shared import geometry
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.data.batches import BatchSource, PreparedRows, PreparedSet
from gcnbatch.data.distinct import RepeatedRows

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

ROWS_AT_ONCE = 256  # a capacity is a multiple of it, so most epochs can use the workspace of the epoch before
NODES_AT_ONCE = 1 << 13  # nodes of a chunk of `propagated`: its arrays stay in the host's caches


class Capacity(NamedTuple):
    """The maximum numbers of graphs, rows and edges in a batch; t_edges are those of the transposed adjacency."""

    graphs: int
    rows: int
    edges: int
    t_edges: int

    def holds(self, needed: Capacity) -> bool:
        """Return whether every number is at least that of `needed`."""
        return all(have >= want for have, want in zip(self, needed, strict=True))


def rows_of_features(prepared: PreparedSet) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
    """Return rows of features, and the row of each node; None: each node has its own."""
    x = prepared.x
    return (x.values, x.numbers) if isinstance(x, RepeatedRows) else (x, None)


def used_columns(prepared: PreparedSet, node_ptr: Int64) -> NDArray[np.intp]:
    """Return, in order, the columns of U = [A_1 X | … | A_C X | row sums] that an entry may make other than 0.

    Row sums always belong to them. Of bond channels and one-hot features, most combinations never occur in a set.
    """
    rows, channels = prepared.forward, prepared.channels
    node, channel = np.divmod(rows.indices, channels)
    row = node + np.repeat(node_ptr[:-1], np.diff(rows.entry_ptr))
    x, numbers = rows_of_features(prepared)
    if numbers is not None:
        row = numbers[row]
    used = np.ones(channels * (x.shape[1] + 1), bool)
    for c in range(channels):
        has_entry = np.zeros(len(x), bool)
        has_entry[row[channel == c]] = True
        used[c * x.shape[1] : (c + 1) * x.shape[1]] = x[has_entry].any(axis=0)
    return np.flatnonzero(used)


def rows_by_channel(rows: PreparedRows, channels: int) -> sp.csr_array:
    """Return the adjacency with a row i C + c for each node and channel, each in the order of its entries.

    >>> one = PreparedRows(sp.csr_array([[0, 1, 2, 3], [4, 0, 0, 0]]), np.array([0, 2]), 1, 2)
    >>> rows_by_channel(one, 2).toarray()
    array([[0, 2],
           [1, 3],
           [4, 0],
           [0, 0]])
    """
    nodes = len(rows.row_length)
    node, channel = np.divmod(rows.indices, channels)
    row = np.repeat(np.arange(0, nodes * channels, channels, dtype=np.int32), rows.row_length) + channel
    return sp.coo_array((rows.data, (row, node)), shape=(nodes * channels, int(node.max(initial=0)) + 1)).tocsr()


def propagated(prepared: PreparedSet, node_ptr: Int64, k: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (first node, U) for chunks of the set: U = [A_1 X | … | A_C X | row sums | 0], float32 (nodes, k).

    The first layer multiplies U by its weights. U depends on no parameter.
    """
    rows, x, channels = prepared.forward, prepared.stored_x, prepared.channels
    n_in = x.shape[1]
    bounds = np.searchsorted(node_ptr, np.arange(0, node_ptr[-1], NODES_AT_ONCE), side="left")
    for start, stop in zip(bounds, [*bounds[1:], len(node_ptr) - 1], strict=True):
        first, last = int(node_ptr[start]), int(node_ptr[stop])
        entries = slice(int(rows.entry_ptr[start]), int(rows.entry_ptr[stop]))
        shift = np.repeat(node_ptr[start:stop] - first, np.diff(rows.entry_ptr[start : stop + 1]))
        node, channel = np.divmod(rows.indices[entries], channels)
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.row_length[first:last], dtype=np.int64)])
        part = np.zeros((last - first, k), np.float32)
        features: Any = x[first:last].astype(np.float32)
        for c in range(channels):
            values = np.where(channel == c, rows.data[entries], np.float32(0))
            matrix = sp.csr_array((values, node + shift, indptr), shape=(last - first, last - first))
            part[:, c * n_in : (c + 1) * n_in] = matrix @ features
            part[:, channels * n_in + c] = matrix @ np.ones(last - first)
        yield first, part


class Features(Protocol):
    """Device arrays of a data set that only one form reads."""

    def put(self, first: int, part: NDArray[np.float32]) -> None:
        """Upload U of the nodes from `first` on."""


class SetForm(Protocol):
    """The part of a form (`shared.form.Form`) that a data set uses."""

    @property
    def name(self) -> str:
        """Its name."""

    def columns(self, n_in: int, channels: int) -> int:
        """Return the columns of U."""

    def drops_columns(self, k: int) -> bool:
        """Whether it reads U of k columns without those that are 0 in the whole set."""

    @property
    def rounds_to_tf32(self) -> bool:
        """Whether it reads U rounded to TF32."""

    def features(self, device: Device, prepared: PreparedSet, node_ptr: Int64) -> Features | None:
        """Return device arrays that only this form reads, or None."""


class FusedSet:
    """A data set in device memory.

    Parameters
    ----------
    device : Device
    source : BatchSource
        A graph-level set in memory with dense features.
    form : SetForm
        The last of the forms that train on the set: it determines the layout and rounding of U.

    Attributes
    ----------
    graph_features : DeviceArray, (G, D), or None
        Features of whole graphs as stored, for a model that joins them to the readout.
    k, first_sum : int
        Columns of U as it is stored, and the first of the C row sums among them.
    columns : DeviceArray, int32 (k,)
        The column of U = [A_1 X | … | A_C X | row sums] that each of these is; C F + C: none, it is 0.
    places : DeviceArray, int32 (C F + C,), or None
        Where each column of U is stored; -1: nowhere, it is 0 in all rows. None: all are stored, in order.
    """

    def __init__(
        self,
        device: Device,
        source: BatchSource,
        form: SetForm,
    ) -> None:
        prepared = source.prepared
        assert prepared is not None
        self._device, self._prepared, self._node_ptr = device, prepared, source.node_ptr
        self._features: dict[str, Features] = {}
        self.channels, self.symmetric = prepared.channels, prepared.symmetric
        self._choose_columns(form, source.header.n_features)
        ptrs = {
            "nodes": source.node_ptr,
            "edges": prepared.forward.entry_ptr,
            "t_edges": prepared.transpose.entry_ptr,
        }
        own = {name: ptr for name, ptr in ptrs.items() if name != "t_edges" or not self.symmetric}
        self.sizes = {name: np.diff(ptr, append=ptr[-1]) for name, ptr in own.items()}
        sizes = (np.sort(np.diff(ptr))[::-1] for ptr in ptrs.values())
        # by number of graphs
        self._largest = [np.concatenate([np.zeros(1, np.int64), np.cumsum(size)]) for size in sizes]
        self.node_ptr = device.upload(source.node_ptr.astype(np.int32))
        starts = np.stack([source.node_ptr, prepared.forward.entry_ptr], axis=1)
        self.starts = device.upload(starts.astype(np.int32))  # each graph's first node, and first entry
        joined = prepared.joined_features
        self.graph_features = None if joined is None else device.upload(joined.dense())
        self.rows = _upload_rows(device, prepared.forward)
        self.x = self._propagated(form.rounds_to_tf32)
        self.t_rows = (None, None, None) if prepared.symmetric else _upload_rows(device, prepared.transpose)

    def _choose_columns(self, form: SetForm, n_in: int) -> None:
        """Set the columns of U that are stored: all, or without those that are 0 in all rows."""
        of_u = self.channels * (n_in + 1)
        self.k, used, self.places = form.columns(n_in, self.channels), np.arange(of_u), None
        if form.drops_columns(self.k):
            used = used_columns(self._prepared, self._node_ptr)
            self.k = geometry.columns_of_u(len(used) - 1, 1)
            places = np.full(of_u, -1, np.int32)
            places[used] = np.arange(len(used))
            self.places = self._device.upload(places)
        self.first_sum = len(used) - self.channels
        columns = np.full(self.k, of_u, np.int32)
        columns[: len(used)] = used
        self.columns = self._device.upload(columns)

    def _propagated(self, is_tf32: bool) -> DeviceArray:
        """Return U, computed on the device from the stored features."""
        device, (indptr, indices, values) = self._device, self.rows
        stored, numbers = rows_of_features(self._prepared)
        x, graphs = device.upload(stored), len(self._node_ptr) - 1
        row_of = None if numbers is None else device.upload(numbers)
        u = device.empty((int(self._node_ptr[-1]), self.k))
        sizes = {"G": graphs, "F": x.shape[1], "C": self.channels, "K": self.k, "is_tf32": int(is_tf32)}
        adjacency = {"node_ptr": self.node_ptr, "indptr": indptr, "indices": indices, "values": values}
        features = {"x": x, "row_of": row_of, "columns": self.columns}
        launch = geometry.propagate(graphs, device.multiprocessors)
        device.launch(f"fused_propagate_{x.dtype.name}", launch, u=u, **features, **adjacency, **sizes)
        return u

    @cached_property
    def channel_rows(self) -> tuple[DeviceArray | None, ...]:
        """The adjacency in CSR with a row i C + c for each node and channel; `t_rows` if all channels are symmetric."""
        rows, channels, transpose = self._prepared.forward, self.channels, self._prepared.transpose
        matrix = rows_by_channel(rows, channels)
        length = np.diff(matrix.indptr)
        same = ((length, transpose.row_length), (matrix.indices, transpose.indices), (matrix.data, transpose.data))
        if not self.symmetric and all(np.array_equal(own, other) for own, other in same):
            return self.t_rows
        indptr, indices = (array.astype(np.int32, copy=False) for array in (matrix.indptr, matrix.indices))
        return self._device.upload(indptr), self._device.upload(indices), self._device.upload(matrix.data)

    def features(self, form: SetForm) -> Features | None:
        """Return the arrays that only this form reads, uploaded at the first call."""
        if form.name not in self._features:
            made = form.features(self._device, self._prepared, self._node_ptr)
            if made is None:
                return None
            for first, part in propagated(self._prepared, self._node_ptr, self.k):
                made.put(first, part)
            self._features[form.name] = made
        return self._features[form.name]

    def capacity(self, graphs: int) -> Capacity:
        """Return the capacity that holds any batch of `graphs` graphs: the sums over the largest ones."""
        return Capacity(graphs, *(int(sums[min(graphs, len(sums) - 1)]) for sums in self._largest))

    def capacity_of(self, plan: EpochPlan, graphs: int) -> Capacity:
        """Return the capacity for an epoch whose batches have at most `graphs` graphs; rows fit its largest batch."""
        most = self.capacity(graphs)
        totals = plan.pointers["nodes"][plan.batch_ptr[1:] + np.arange(len(plan.batch_ptr) - 1)]
        rows = ROWS_AT_ONCE * ceil_div(int(totals.max(initial=1)), ROWS_AT_ONCE)
        return most._replace(rows=min(rows, most.rows))

    def plan(self, batches: Sequence[Int64]) -> EpochPlan:
        """Return the offsets of every batch and graph: "nodes", "edges" and, unless A is symmetric, "t_edges"."""
        return plan_epoch(batches, self.sizes)

    def plans(self, of_members: Sequence[Sequence[Int64]]) -> list[EpochPlan]:
        """Return the plan of each member's batches."""
        return plan_epochs(of_members, self.sizes)


def _upload_rows(device: Device, rows: PreparedRows) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.row_length, dtype=np.int64)])
    return device.upload(indptr.astype(np.int32)), device.upload(rows.indices), device.upload(rows.data)
