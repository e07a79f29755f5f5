"""The plan of an epoch: offsets of every graph in its batch, computed on the host for all batches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.batches.batch import Int32, Int64, transposed
from gcnbatch.data.sparse import Csr, check_reach, ragged_rows


@dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch, concatenated.

    Worked example, batches [[2, 0], [1]] of graphs with 3, 1 and 4 nodes::

        graphs   = [2, 0, 1]      batch_ptr = [0, 2, 3]
        pointers["nodes"] = [0, 4, 7, 0, 1]        batch i owns  batch_ptr[i] + i … batch_ptr[i+1] + i

    Parameters
    ----------
    graphs : int32, (T,)
        Graph numbers of all batches.
    batch_ptr : int64, (n+1,)
    pointers : dict of int32, (T + n,)
        Per kind of item (nodes, edges, …), the first item of each graph in its batch, then the batch's number of items.
    """

    graphs: Int32
    batch_ptr: Int64
    pointers: dict[str, Int32]

    @property
    def tables(self) -> dict[str, Int32]:
        """Further tables of a subclass; none here."""
        return {}

    @property
    def capacity(self) -> int:
        """Graphs that the plan on the device can hold, equal for equal batches; more for a subclass."""
        return len(self.graphs)

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return len(self.batch_ptr) - 1

    def pointer_start(self, index: int) -> int:
        """Return the start of batch `index` in each of `pointers`."""
        return int(self.batch_ptr[index]) + index

    def n_graphs(self, index: int) -> int:
        """Return B of batch `index`."""
        return int(self.batch_ptr[index + 1] - self.batch_ptr[index])

    @cached_property
    def packed(self) -> Int32:
        """Kernel input of the gather, batch by batch: graphs, then each pointer; `places` has the positions."""
        parts = [np.zeros(0, np.int32)]
        for index in range(self.n_batches):
            parts.append(self.graphs[self.batch_ptr[index] : self.batch_ptr[index + 1]])
            parts += [self.pointer(name, index) for name in self.pointers]
        return np.concatenate(parts)

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """(start, length) of each batch in `packed`, as plain numbers."""
        sizes = np.diff(self.batch_ptr) * (1 + len(self.pointers)) + len(self.pointers)
        return list(zip((np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), strict=True))

    @cached_property
    def totals(self) -> dict[str, list[int]]:
        """Per kind of item, the number in each batch, as plain numbers."""
        ends = self.batch_ptr[1:] + np.arange(self.n_batches)
        return {name: pointer[ends].tolist() for name, pointer in self.pointers.items()}

    def pointer(self, name: str, index: int) -> Int32:
        """Return the pointer of batch `index`, (B+1,)."""
        start = self.pointer_start(index)
        return self.pointers[name][start : start + self.n_graphs(index) + 1]


def plan_epoch(batches: Sequence[Int64], sizes: Mapping[str, Int64]) -> EpochPlan:
    """Return the plan of these batches of graph numbers.

    Parameters
    ----------
    sizes : dict of int64, (G,)
        Per kind of item, the number of items of each graph in the data set.

    Raises
    ------
    InputError
        When a batch has more items of a kind than 32-bit indices can address.
    """
    batch_ptr = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    graphs = batches[0] if len(batches) == 1 else np.concatenate([np.zeros(0, np.int64), *batches])
    pointers, within = {}, places_within(batch_ptr) if len(batches) > 1 else None
    for name, of_graphs in sizes.items():
        found = batch_pointers(of_graphs.take(graphs), batch_ptr, within)
        check_reach(int(found[-1] if len(batches) == 1 else np.max(found, initial=0)), name)
        pointers[name] = found.astype(np.int32)
    return EpochPlan(graphs.astype(np.int32), batch_ptr, pointers)


def plan_epochs(of_members: Sequence[Sequence[Int64]], sizes: Mapping[str, Int64]) -> list[EpochPlan]:
    """Return `plan_epoch` of each member's batches. Those of equal sizes but for the last are planned at once.

    Parameters
    ----------
    sizes : dict of int64, (G+1,)
        As for `plan_epoch`, and 0 at the end.
    """
    size = max((len(batch) for own in of_members for batch in own), default=0)
    if not size or not all(of_members) or any(len(batch) < size for own in of_members for batch in own[:-1]):
        return [plan_epoch(own, sizes) for own in of_members]
    steps, counts = max(map(len, of_members)), [size * (len(own) - 1) + len(own[-1]) for own in of_members]
    graphs = np.full((len(of_members), steps * size), min(map(len, sizes.values())) - 1)
    for row, own, count in zip(graphs, of_members, counts, strict=True):
        np.concatenate(own, out=row[:count])
    pointers = {}
    for name, of_graphs in sizes.items():
        sums = np.zeros((len(graphs), steps, size + 1), np.int64)
        np.cumsum(of_graphs.take(graphs).reshape(len(graphs), steps, size), axis=2, out=sums[:, :, 1:])
        check_reach(int(sums[:, :, -1].max(initial=0)), name)
        pointers[name] = sums.astype(np.int32).reshape(len(graphs), -1)
    numbers, batch_ptr = graphs.astype(np.int32), size * np.arange(steps + 1)
    return [
        EpochPlan(
            numbers[k, :count],
            np.minimum(batch_ptr[: len(own) + 1], count),
            {name: of_all[k, : count + len(own)] for name, of_all in pointers.items()},
        )
        for k, (own, count) in enumerate(zip(of_members, counts, strict=True))
    ]


def places_within(batch_ptr: Int64) -> tuple[Int64, Int64]:
    """Return, for each place of `batch_pointers`, its place among all prefix sums and that of its batch's first."""
    n_batches, sizes = len(batch_ptr) - 1, np.diff(batch_ptr) + 1
    batch = np.repeat(np.arange(n_batches), sizes)
    return np.arange(len(batch)) - batch, batch_ptr[batch]


def batch_pointers(lengths: Int64, batch_ptr: Int64, within: tuple[Int64, Int64] | None = None) -> Int64:
    """Return each batch's exclusive prefix sums of `lengths`, followed by its total: n + T values for n batches.

    `within`: the result of `places_within`, if it is known.
    """
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if len(batch_ptr) == 2:
        return ends
    place, first = within or places_within(batch_ptr)
    return ends[place] - ends[first]


@dataclass(frozen=True)
class ColumnPlan:
    """The transposed structures of the sparse features of every batch (see `DeviceFeatures`).

    Parameters
    ----------
    column_ptr : int32, (n * (F+1),)
    rows, order : int32, (entries of all batches,)
    entry_start : int64, (n+1,)
        First entry of each batch in `rows` and `order`.
    """

    column_ptr: Int32
    rows: Int32
    order: Int32
    entry_start: Int64


def plan_columns(batches: Sequence[Int64], x: Csr, node_ptr: Int64) -> ColumnPlan:
    """Return the transposed structures of every batch's rows of `x` (host arrays), in linear time."""
    parts: list[tuple[NDArray[np.int32], ...]] = []
    x_indptr = np.asarray(x.indptr, dtype=np.int64)
    for graphs in batches:
        nodes, _ = ragged_rows(node_ptr, graphs)
        entries, indptr = ragged_rows(x_indptr, nodes)
        parts.append(transposed(indptr, x.indices[entries], x.n_cols))
    none = np.zeros(0, np.int32)
    column_ptr, rows, order = (np.concatenate([none, *(part[i] for part in parts)]) for i in range(3))
    entry_start = np.cumsum([0, *(len(part[1]) for part in parts)])
    return ColumnPlan(column_ptr, rows, order, entry_start)
