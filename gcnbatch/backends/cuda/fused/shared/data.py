"""The fused backend's data set on the device: what the first layer multiplies, computed once, and plans of epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.batches.epoch_plan import EpochPlan, plan_epoch
from gcnbatch.backends.cuda.fused.fp16 import geometry as half
from gcnbatch.backends.cuda.fused.fp16.tiles import TiledPlan, plan_tiles
from gcnbatch.backends.cuda.fused.shared import geometry
from gcnbatch.backends.cuda.fused.wide import geometry as wide
from gcnbatch.backends.cuda.runtime.launch import ceil_div
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.data.batches import BatchSource, PreparedRows, PreparedSet
from gcnbatch.data.sparse import MAX_ENTRIES

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.fused.shared.stack import Stack
    from gcnbatch.backends.cuda.runtime.device import Device
    from gcnbatch.config_sections import CudaConfig, TrainConfig

ROWS_AT_ONCE = 256  # that a capacity grows by: few epochs need another one than the epoch before
NODES_AT_ONCE = 1 << 13  # of the set, whose propagated features the host holds at a time: they stay in its caches


class Capacity(NamedTuple):
    """The most that a batch of some number of graphs can have."""

    graphs: int
    rows: int
    edges: int
    t_edges: int

    def holds(self, needed: Capacity) -> bool:
        """Return whether there is room for what is needed."""
        return all(have >= want for have, want in zip(self, needed, strict=True))


def propagated(prepared: PreparedSet, node_ptr: Int64, k: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (first node, U) for parts of the set: U = [A_1 X | … | A_C X | row sums | 0], float32 (nodes, k).

    What the first layer multiplies with its weights; it depends on no parameter.
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


def columns_of_set(n_in: int, channels: int, products: str) -> int:
    """Return the columns of U as the set keeps them for products of this kind."""
    columns = geometry.columns_of_u(n_in, channels)
    return wide.PANEL * ceil_div(columns, wide.PANEL) if products else columns


def to_tf32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the nearest numbers of 11 bits, of two the even one; NaN and infinities pass.

    >>> to_tf32(np.array([1 + 2**-11, 1 + 3 * 2**-11, np.inf], np.float32)) - 1
    array([0.        , 0.00195312,        inf], dtype=float32)
    """
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


class HalfSet:
    """What of a data set of one channel a step in halves reads, on the device, beside what all wide steps read.

    Attributes
    ----------
    columns : int
        K.
    u : DeviceArray of halves, (nodes, K)
        A X, times `scale`, when `put` has brought all of it; so for `row_sums`.
    scale : float
    inner_scale : float
        Of U behind the first layer.
    row_sums : DeviceArray, (nodes,)
        Of the adjacency.
    reach : float
        At least 1, and the largest sum of |Aᵀ| over a row.
    """

    def __init__(self, device: Device, source: BatchSource) -> None:
        prepared = source.prepared
        assert prepared is not None
        assert prepared.channels == 1
        x: Any = prepared.stored_x
        n_nodes = int(source.node_ptr[-1])
        self._device, self._n_in, self.columns = device, x.shape[1], half.columns_of_u(x.shape[1])
        forward = largest_row(prepared.forward)
        self.scale = half.scale_of(max(float(x.max(initial=0)), -float(x.min(initial=0))) * forward)
        self.inner_scale = half.inner_scale(forward)
        self.reach = max(largest_row(prepared.transpose), 1.0)
        self.u, self.row_sums = device.empty((n_nodes, self.columns), np.uint16), device.empty(n_nodes)

    def put(self, first: int, part: NDArray[np.float32]) -> None:
        """Upload what `propagated` found of the nodes from `first` on."""
        halves = np.zeros((len(part), self.columns), np.float16)
        with np.errstate(over="ignore"):  # beside infinities
            halves[:, : self._n_in] = part[:, : self._n_in] * np.float32(self.scale)
        self._device.upload(halves.view(np.uint16), self.u.view(first * self.columns, halves.shape))
        self._device.upload(np.ascontiguousarray(part[:, self._n_in]), self.row_sums.view(first, len(part)))


def largest_row(rows: PreparedRows) -> float:
    """Return the largest sum of absolute values over a row."""
    ends = np.concatenate([np.zeros(1), np.cumsum(np.abs(rows.data), dtype=np.float64)])
    sums = np.diff(ends[np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.row_length, dtype=np.int64)])])
    return float(sums.max(initial=0))


class FusedSet:
    """A data set in device memory.

    Parameters
    ----------
    device : Device
    source : BatchSource
        Of a graph-level set in memory with dense features.
    targets : (G, T)
        float32 or int32.
    label_weights : float64, (G,)
        What each graph adds to the weight of its batch's labels.
    products : {"", "tf32", "3xtf32"}
        Of wide layers, for which U has whole panels of columns, rounded for TF32; empty: for narrow ones.
    in_halves : bool
        Whether there are to be `halves`, the set as steps in halves read it; else they are None.
    """

    def __init__(
        self,
        device: Device,
        source: BatchSource,
        targets: NDArray[Any],
        label_weights: NDArray[np.float64],
        products: str = "",
        in_halves: bool = False,
    ) -> None:
        prepared = source.prepared
        assert prepared is not None
        self.channels, self.symmetric = prepared.channels, prepared.symmetric
        self.k = columns_of_set(source.header.n_features, prepared.channels, products)
        self._ptrs = {
            "nodes": source.node_ptr,
            "edges": prepared.forward.entry_ptr,
            "t_edges": prepared.transpose.entry_ptr,
        }
        self._label_weights = label_weights
        self._own_ptrs = {name: ptr for name, ptr in self._ptrs.items() if name != "t_edges" or not self.symmetric}
        self._sizes = {name: np.diff(ptr, append=ptr[-1]) for name, ptr in self._own_ptrs.items()}
        sizes = (np.sort(np.diff(ptr))[::-1] for ptr in self._ptrs.values())
        self._largest = [np.concatenate([np.zeros(1, np.int64), np.cumsum(size)]) for size in sizes]  # by graphs
        self.node_ptr = device.upload(source.node_ptr.astype(np.int32))
        self.targets = device.upload(targets)
        self.x = device.empty((int(source.node_ptr[-1]), self.k))
        self.halves = HalfSet(device, source) if in_halves else None
        for first, part in propagated(prepared, source.node_ptr, self.k):
            if self.halves:
                self.halves.put(first, part)
            rounded = to_tf32(part) if products == "tf32" else part
            device.upload(rounded, self.x.view(first * self.k, part.shape))
        self.rows = _upload_rows(device, prepared.forward)
        self.t_rows = (None, None, None) if prepared.symmetric else _upload_rows(device, prepared.transpose)

    def capacity(self, graphs: int) -> Capacity:
        """Return what the largest `graphs` graphs have together."""
        return Capacity(graphs, *(int(sums[min(graphs, len(sums) - 1)]) for sums in self._largest))

    def capacity_of(self, plan: EpochPlan, graphs: int) -> Capacity:
        """Return what the batches of an epoch need, none of more than `graphs` graphs; rows are rounded up."""
        most = self.capacity(graphs)
        totals = plan.pointers["nodes"][plan.batch_ptr[1:] + np.arange(len(plan.batch_ptr) - 1)]
        rows = ROWS_AT_ONCE * ceil_div(int(totals.max(initial=1)), ROWS_AT_ONCE)
        return most._replace(rows=min(rows, most.rows))

    def plan(self, batches: Sequence[Int64]) -> EpochPlan:
        """Return where everything of every batch begins; pointers are "nodes", "edges" and, if need be, "t_edges"."""
        return plan_epoch(batches, self._own_ptrs)

    def plan_tiles(self, batches: Sequence[Int64], tiles: int) -> TiledPlan | None:
        """Return the same for batches in tiles, or nothing if one does not fit."""
        return plan_tiles(batches, self._sizes, tiles)

    def weights(self, batches: Sequence[Int64]) -> NDArray[np.float32]:
        """Return the weight of each batch's labels."""
        sizes = [len(graphs) for graphs in batches]
        starts = np.cumsum([0, *sizes[:-1]])
        return np.add.reduceat(self._label_weights[np.concatenate(batches)], starts).astype(np.float32)


def trains_in_halves(stack: Stack, products: str, source: BatchSource) -> bool:
    """Return whether a model is trained in halves on a set (`Stack.trains_in_halves`)."""
    assert source.prepared is not None
    largest = int(np.diff(source.node_ptr).max(initial=0))
    return stack.trains_in_halves(products, source.prepared.channels, largest)


def refusal(
    source: BatchSource,
    targets: NDArray[Any],
    stack: Stack,
    train: TrainConfig,
    budget: int,
    capability: tuple[int, int],
    options: CudaConfig,
) -> str:
    """Return what of a set, a model and options the fused kernels cannot take, or nothing.

    Parameters
    ----------
    train : TrainConfig
        Of which the sizes of batches matter.
    budget : int
        Bytes of device memory that the set may take.
    capability : (major, minor)
        Compute capability of the device.
    """
    if options.spmm != "auto" or options.resident == "off":
        return "another cuda.spmm or cuda.resident than auto and auto or on"
    products = stack.products(capability, options.precision)
    if options.precision == "tf32" and not products:
        where = f"layers of {wide.WIDE_ENOUGH:,} weights and more on compute capability 9.0"
        return f"cuda.precision tf32 but for {where} (--set cuda.precision=fp32 for it)"
    needed, limit = stack.shared_bytes(bool(products)), geometry.shared_limit(capability)
    if needed > limit:
        return f"layers that need {needed // 1024} of {limit // 1024} KiB of shared memory"
    prepared = source.prepared
    assert prepared is not None
    nodes, k = int(source.node_ptr[-1]), columns_of_set(source.header.n_features, prepared.channels, products)
    parts = [prepared.forward, *([] if prepared.symmetric else [prepared.transpose])]
    rows = sum(8 * len(part.indices) + 4 * len(part.row_length) for part in parts)
    size = 4 * k * nodes + targets.nbytes + rows
    if trains_in_halves(stack, products, source):
        size += (2 * half.columns_of_u(source.header.n_features) + 4) * nodes
    if size > budget:
        return f"a data set of {size / 2**20:,.0f} MiB where {budget / 2**20:,.0f} MiB may be taken"
    if max(nodes * prepared.channels, len(prepared.forward.indices)) > MAX_ENTRIES:
        return "more nodes or edges than 32-bit indices reach"
    largest_first, most = np.sort(np.diff(source.node_ptr))[::-1], most_nodes(stack)
    for key in ("batch_size", "eval_batch_size"):
        graphs = getattr(train, key)
        needed = int(largest_first[:graphs].sum())
        if needed > most:
            return f"train.{key} {graphs:,}, up to {needed:,} nodes, but at most {most:,} with these layers"
    return ""


def most_nodes(stack: Stack) -> int:
    """Return the most nodes that a batch may have: 32-bit indices reach them, and a grid has their tiles."""
    return min(MAX_ENTRIES // stack.widest, wide.MOST_ROWS)


def _upload_rows(device: Device, rows: PreparedRows) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.row_length, dtype=np.int64)])
    return device.upload(indptr.astype(np.int32)), device.upload(rows.indices), device.upload(rows.data)
