"""Sparse times sparse on the device: the launches of ``cuda_src/spgemm`` in order, and their arrays.

A product takes four launches (bounds, sums, pointers, compaction) and reads back twice: the sizes of the work and of
the result. Further launches are:

- two, and one more read-back, to group and sample the rows, if many products are in rows of more than 256;
- one per further group of rows;
- one for rows that may overflow their table;
- four for long rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import declared
from gcnbatch.backends.cuda.spgemm import geometry
from gcnbatch.backends.cuda.spgemm.control import Control
from gcnbatch.data.sparse import MAX_ENTRIES, Csr
from gcnbatch.errors import InputError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

SINGLE, COUNT, FILL = declared("spgemm/row.cuh").enum("Mode").values()
_SMALL_SCRATCH = 1 << 30  # bytes that are allocated without asking how many are free
_SCRATCH_SHARE = 0.5  # of the free memory; a product that needs more takes two passes

Pair = tuple[DeviceArray, DeviceArray]


class SpGemm:
    """Multiplies sparse matrices on a device.

    Parameters
    ----------
    device : Device
    ratio : float or None
        Expected products per distinct column, at least 1: it sizes the tables of rows of more than 256 products. Rows
        with a lower ratio overflow and are computed twice. The paper uses pi; None measures it on a sample of rows.
    two_passes : bool or None
        Compute sizes in a first pass, instead of moving the results once their sizes are known. None: if the products
        need more than 1 GiB and more than half of the free memory.

    Notes
    -----
    Results repeat to the bit. Each sum is taken in the order of A's entries, and products are rounded before they are
    added. So the bits are SciPy's, except in rows of more than 4,096 products (2,048 on compute capability 7.5), which
    are summed in parts. Entries whose sum is 0 stay; SciPy drops them.
    """

    def __init__(self, device: Device, ratio: float | None = None, two_passes: bool | None = None) -> None:
        self.device, self.ratio, self.two_passes = device, ratio, two_passes
        self.overflow_bits = geometry.overflow_table_bits(device.compute_capability)
        self.long_limit = geometry.long_limit(self.overflow_bits)
        self._pinned = device.pinned(32, np.uint64)
        self._control: Control | None = None

    def __call__(self, a: Csr, b: Csr) -> Csr:
        """Return A B.

        Parameters
        ----------
        a, b : Csr
            Device arrays, indptr int32. Columns in each row of `b` are distinct and sorted; those of `a` need not be.

        Returns
        -------
        Csr
            With sorted columns. 0 rows or columns are allowed.

        Raises
        ------
        InputError
            When the entries of the result, or the products of one row, exceed 32-bit indices.
        MachineError
            When the device runs out of memory.
        """
        return _Product(self, a, b).run()

    def upload(self, matrix: Any) -> Csr:
        """Copy a SciPy matrix to the device, with duplicate entries summed and columns sorted."""
        host = sp.csr_array(matrix, dtype=np.float32)
        if not host.has_canonical_format:
            host = host.copy()
            host.sum_duplicates()
        _check(host.nnz, "entries of a sparse matrix")
        up = self.device.upload
        return Csr(
            up(host.indptr.astype(np.int32, copy=False)),
            up(host.indices.astype(np.int32, copy=False)),
            up(host.data),
            host.shape[1],
        )

    def download(self, matrix: Csr) -> sp.csr_array:
        """Copy a matrix of this class to the host as a SciPy matrix."""
        indptr, indices, data = map(self.device.download, (matrix.indptr, matrix.indices, matrix.data))
        found = sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, matrix.n_cols))
        found.has_canonical_format = True
        return found

    def read(self, words: DeviceArray) -> list[int]:
        """Return up to 32 64-bit words from the device; wait for it."""
        found: list[int] = self.device.download(words, self._pinned[: words.size]).tolist()
        return found

    def control(self, tiles: tuple[int, int]) -> Control:
        """Return the counters of the kernels, all 0. They serve one product at a time."""
        whole = self.device.workspace("spgemm", Control.bytes_of(tiles))
        self.device.clear(whole)
        if self._control is None or (self._control.whole.ptr, self._control.tiles) != (whole.ptr, tiles):
            self._control = Control.of(whole, tiles)
        return self._control


@dataclass
class _LongRows:
    """The long rows, their parts, and the sums of the parts."""

    rows: DeviceArray
    of_row: DeviceArray
    first: DeviceArray
    end: DeviceArray
    start: DeviceArray
    count: DeviceArray
    indices: DeviceArray
    data: DeviceArray
    tile_counts: DeviceArray


class _Product:
    """One product: its operands, sizes and scratch arrays."""

    def __init__(self, owner: SpGemm, a: Csr, b: Csr) -> None:
        self.owner, self.device, self.a, self.b = owner, owner.device, a, b
        self.n_rows = a.indptr.size - 1
        self.order: DeviceArray | None = None

    def run(self) -> Csr:
        _check(self.n_rows, "rows of a sparse product")
        if not (self.n_rows and self.a.indices.size and self.b.indices.size):
            return self._empty()
        self._bounds()
        stats = self.stats
        if not stats.products:
            return self._empty()
        _check(stats.largest, "products in one row of a sparse product")
        self.runs = self._plan()
        long = self._split() if stats.long_rows else None
        two_passes = self._two_passes()
        scratch = self._pair(0 if two_passes else stats.short_products)
        self.overflow = self.device.empty(sum(run.n_rows for run in self.runs if run.guessed), np.int32)
        self._sum_rows(scratch, COUNT if two_passes else SINGLE)
        if long:
            self._merge(long, None, COUNT, None)
        indptr, nnz = self._indptr(self.starts if two_passes else None)
        result = self._pair(nnz)
        if two_passes:
            self._sum_rows(result, FILL)
        else:
            launch, lane_bits = geometry.compact(self.n_rows, nnz)
            self.device.launch(
                "spgemm_compact",
                launch,
                indptr=indptr,
                bounds=self.bounds,
                starts=self.starts,
                indices=scratch[0],
                data=scratch[1],
                n_rows=self.n_rows,
                lane_bits=lane_bits,
                long_limit=self.owner.long_limit,
                **_out(result),
            )
        if long:
            self._merge(long, indptr, FILL, result)
        return Csr(indptr, *result, self.b.n_cols)

    def _empty(self) -> Csr:
        return Csr(self.device.zeros(self.n_rows + 1, np.int32), *self._pair(0), self.b.n_cols)

    def _pair(self, count: int) -> Pair:
        return self.device.empty(count, np.int32), self.device.empty(count)

    def _bounds(self) -> None:
        device, n = self.device, self.n_rows
        launch, lane_bits = geometry.bound(n, self.a.indices.size)
        self.control = control = self.owner.control((launch.blocks, geometry.indptr(n).blocks))
        self.bounds, self.counts = device.empty(n, np.int32), device.empty(n, np.int32)
        self.starts = device.empty(n, np.int64)
        device.launch(
            "spgemm_bound",
            launch,
            bounds=self.bounds,
            counts=self.counts,
            starts=self.starts,
            stats=control.stats,
            states=control.states[0],
            ticket=control.tickets[0],
            a_indptr=self.a.indptr,
            a_indices=self.a.indices,
            b_indptr=self.b.indptr,
            n_rows=n,
            lane_bits=lane_bits,
            long_limit=self.owner.long_limit,
        )
        self.stats = geometry.read_stats(self.owner.read(control.stats))

    def _plan(self) -> tuple[geometry.Run, ...]:
        """Choose the methods; list the rows by group unless one launch takes all rows in their own order."""
        stats, ratio = self.stats, self.owner.ratio
        size = (self.n_rows, self.b.n_cols, self.device.multiprocessors)
        if ratio is None:
            first, n, bits = stats.sampled
            if n << geometry.SHORT >= geometry.WORTH_SAMPLING:
                self.order = self._group()
                ratio = self._sample(self.order.view(first, n), n, min(bits + 1, self.owner.overflow_bits))
        runs = geometry.plan(stats, *size, max(ratio or 1.0, 1.0))
        if len(runs) == 1 and runs[0].n_rows == self.n_rows:
            self.order = None
        elif self.order is None:
            self.order = self._group()
        return runs

    def _group(self) -> DeviceArray:
        """Return the rows that have products, ordered by group."""
        order = self.device.empty(sum(self.stats.rows_of_group), np.int32)
        self.device.launch(
            "spgemm_group",
            geometry.rows_of_scan(self.n_rows),
            order=order,
            filled=self.control.filled,
            stats=self.control.stats,
            bounds=self.bounds,
            n_rows=self.n_rows,
            long_limit=self.owner.long_limit,
        )
        return order

    def _sample(self, order: DeviceArray, n: int, bits: int) -> float:
        """Return the products per distinct column in a sample of rows."""
        sampled = self.control.sampled
        self.device.launch(
            "spgemm_sample",
            geometry.sample(n, bits),
            sampled=sampled,
            order=order,
            bounds=self.bounds,
            a_indptr=self.a.indptr,
            n_rows=n,
            table_bits=bits,
            **self._matrices(),
        )
        products, columns = self.owner.read(sampled)
        return products / max(columns, 1)

    def _matrices(self) -> dict[str, DeviceArray]:
        """Return the arguments of A and B that all multiplying kernels share."""
        a, b = self.a, self.b
        return {
            "a_indices": a.indices,
            "a_data": a.data,
            "b_indptr": b.indptr,
            "b_indices": b.indices,
            "b_data": b.data,
        }

    def _two_passes(self) -> bool:
        if self.owner.two_passes is not None:
            return self.owner.two_passes
        scratch = 8 * self.stats.short_products
        return scratch > _SMALL_SCRATCH and scratch > _SCRATCH_SHARE * self.device.memory().free

    def _sum_rows(self, target: Pair, mode: int) -> None:
        """Sum the rows of every group, then those that overflowed their tables."""
        rows = {"first": self.a.indptr, "end": self.a.indptr.view(1, self.n_rows), "starts": self.starts}
        for run in self.runs:
            name, bits = run.method
            order = self.order.view(run.first, run.n_rows) if self.order is not None else None
            if name == "hash":
                self._hash(target, rows | {"order": order}, None, run.n_rows, bits, mode)
            elif name == "expand":
                self._expand(target, self.counts, rows | {"order": order}, run.n_rows, bits, mode)
            else:
                self.device.launch(
                    "spgemm_sort",
                    geometry.sort_rows(run.n_rows, bits),
                    counts=self.counts,
                    a_indptr=self.a.indptr,
                    starts=self.starts,
                    order=order,
                    n_tasks=run.n_rows,
                    lane_bits=bits,
                    mode=mode,
                    **_out(target),
                    **self._matrices(),
                )
        if self.overflow.size:
            tasks, bits = rows | {"order": self.overflow}, self.owner.overflow_bits
            self._hash(target, tasks, self.control.n_overflow, self.overflow.size, bits, mode)

    def _expand(
        self, target: Pair, counts: DeviceArray, tasks: dict[str, Any], n_tasks: int, bits: int, mode: int
    ) -> None:
        launch = geometry.expand_rows(n_tasks, bits)
        how = {"capacity": 1 << bits, "mode": mode}
        self.device.launch("spgemm_expand", launch, counts=counts, **_out(target), **tasks, **self._matrices(), **how)

    def _hash(
        self,
        target: Pair,
        tasks: dict[str, Any],
        listed: DeviceArray | None,
        n_tasks: int,
        table_bits: int,
        mode: int,
    ) -> None:
        self.device.launch(
            "spgemm_hash",
            geometry.hash_rows(n_tasks, table_bits, 4 * self.device.multiprocessors if listed is not None else 0),
            counts=self.counts,
            overflow=self.overflow,
            n_overflow=self.control.n_overflow,
            listed=listed,
            n_tasks=n_tasks,
            table_bits=table_bits,
            mode=mode,
            **_out(target),
            **tasks,
            **self._matrices(),
        )

    def _split(self) -> _LongRows:
        """Split the long rows and sum their parts."""
        device, stats = self.device, self.stats
        n, first = stats.long_rows, sum(stats.rows_of_group[: geometry.LONG])
        _check(stats.parts, "parts of long rows in a sparse product")
        tiles = geometry.merge_tiles(self.b.n_cols)
        _check(n * tiles, "blocks of columns of long rows in a sparse product")
        indices, data = self._pair(stats.long_products)
        assert self.order is not None, "long rows are a group"
        long = _LongRows(
            rows=self.order.view(first, n),
            of_row=device.empty((n, 2), np.int32),
            first=device.empty(stats.parts, np.int32),
            end=device.empty(stats.parts, np.int32),
            start=device.empty(stats.parts, np.int64),
            count=device.empty(stats.parts, np.int32),
            indices=indices,
            data=data,
            tile_counts=device.empty((n, tiles), np.int32),
        )
        device.launch(
            "spgemm_split",
            geometry.blocks(n),
            part_first=long.first,
            part_end=long.end,
            part_start=long.start,
            part_count=long.count,
            of_row=long.of_row,
            cursors=self.control.cursors,
            rows=long.rows,
            bounds=self.bounds,
            a_indptr=self.a.indptr,
            a_indices=self.a.indices,
            b_indptr=self.b.indptr,
        )
        tasks = {"first": long.first, "end": long.end, "starts": long.start, "order": None}
        self._expand((long.indices, long.data), long.count, tasks, stats.parts, geometry.PART_BITS, SINGLE)
        return long

    def _merge(self, long: _LongRows, indptr: DeviceArray | None, mode: int, target: Pair | None) -> None:
        self.device.launch(
            "spgemm_merge",
            geometry.blocks(long.tile_counts.size),
            counts=self.counts,
            tile_counts=long.tile_counts,
            indptr=indptr,
            rows=long.rows,
            of_row=long.of_row,
            part_start=long.start,
            part_count=long.count,
            part_indices=long.indices,
            part_data=long.data,
            n_tiles=long.tile_counts.shape[1],
            mode=mode,
            **_out(target or (None, None)),
        )

    def _indptr(self, starts: DeviceArray | None) -> tuple[DeviceArray, int]:
        """Return the result's row pointers and its number of entries."""
        control, indptr = self.control, self.device.empty(self.n_rows + 1, np.int32)
        self.device.launch(
            "spgemm_indptr",
            geometry.indptr(self.n_rows),
            indptr=indptr,
            starts=starts,
            nnz=control.nnz,
            states=control.states[1],
            ticket=control.tickets[1],
            counts=self.counts,
            n_rows=self.n_rows,
        )
        (nnz,) = self.owner.read(control.nnz)
        _check(nnz, "entries of a sparse product")
        return indptr, nnz


def _out(target: Pair | tuple[None, None]) -> dict[str, DeviceArray | None]:
    """Return the arguments of a kernel for the columns and values of the result."""
    return {"out_indices": target[0], "out_data": target[1]}


def _check(count: int, what: str) -> None:
    if count > MAX_ENTRIES:
        raise InputError(what, f"{count:,}", f"at most {MAX_ENTRIES:,}", "Multiply fewer rows at once.")
