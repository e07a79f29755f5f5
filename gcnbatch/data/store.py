"""Reading data sets: HDF5 files in the format of ``datasets/FORMAT.md``, and folders of shards of such a set.

A file is not trusted. `gcnbatch.data.audit` checks its structure before any value is read, `gcnbatch.data.checks` its
values before the program uses them. `gcnbatch.data.shards` joins the files of a folder. `gcnbatch.data.writer` writes
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import checks, schema, shards
from gcnbatch.data.chunks import StoredArray, reading
from gcnbatch.data.graph_features import FeatureTable
from gcnbatch.data.graphs import (
    OF_EDGES,
    OF_ROWS,
    Edges,
    GraphSet,
    Int64,
    Split,
    bounded_ranges,
    graph_numbers,
    stacked,
)
from gcnbatch.data.shards import JoinedArray, Stored
from gcnbatch.data.sparse import Csr, is_sparse, row_pointer
from gcnbatch.data.writer import DatasetWriter, write_graphset
from gcnbatch.errors import InputError, MachineError
from gcnbatch.fileio import StrPath

if TYPE_CHECKING:
    import scipy.sparse as sp

BLOCK_BYTES = 128 << 20  # a set larger than memory is checked in blocks of whole graphs, of about this size
# Arrays that are read in slices when the set does not fit in memory
_SLICED = ("nodes/x", "nodes/x_csr/", "edges/", schema.GRAPH_FEATURES, *schema.COUNTS[1:])
_TABLE = 4096  # graphs whose features are read at a time


class Dataset:
    """An open, audited and checked data set: a file, or a folder of shards.

    A set of at most `memory_mb` is read into memory when it is checked or loaded. Of a larger set, only pointers, ids,
    targets, groups and splits are in memory; all other arrays are read in slices. Several threads may read.

    Parameters
    ----------
    path : path
        An HDF5 file of format version 1, or a folder of them with an index (see `gcnbatch.data.shards`).
    memory_mb : int
        Limit in MiB on the arrays in memory or, if they do not fit, on the unpacked chunks that are kept.
    check : bool
        Check every rule of the format (default). False skips the checks of edges, features, targets and digests of
        shards, for callers that have checked the same data before.

    Attributes
    ----------
    header : Header
    node_ptr, edge_ptr : int64, (G+1,)
    ids : str, (R,)
    y : (R, K)
    censored : int8, (R, K) or None
    sample_weight : float32, (R,) or None
    groups : int32, (G,) or None
    times : float64, (G,) or None
    splits : dict of Split
    nbytes : int
        Bytes of all arrays when read into memory.

    Raises
    ------
    InputError
        Names the array's path in the file and the first wrong position.
    MachineError
        When the arrays that stay in memory, or a single graph, take more than `memory_mb`.
    """

    def __init__(self, path: StrPath, memory_mb: int = 4096, check: bool = True) -> None:
        self.path = Path(path)
        self.memory_mb = memory_mb
        self._files, self.header, stored = shards.open_set(self.path, memory_mb << 20, check)
        try:
            checks.check_layout(self.path, self.header, stored)
            self._smiles = tuple(stored.pop(name) for name in schema.SMILES if name in stored)
            self.nbytes = sum(map(_bytes_in_memory, stored.values()))
            self._arrays: dict[str, Stored | NDArray[Any]] = {
                name: stored.pop(name) for name in list(stored) if name.startswith(_SLICED)
            }
            self._count_ptr: Int64 | None = None  # first count of each graph; None while counts are dense, and without
            self._read_rows(stored)
            if check:
                self.check()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    @property
    def replaced(self) -> bool:
        """Whether another file has been written in the place of an open one."""
        return any(file.is_replaced() for file in self._files)

    @property
    def n_graphs(self) -> int:
        """G, the number of graphs."""
        return len(self.node_ptr) - 1

    @property
    def sparse_features(self) -> bool:
        """Whether node features are stored as a sparse matrix."""
        return "nodes/x" not in self._arrays

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""
        return "edges/weight" in self._arrays

    @property
    def fits_in_memory(self) -> bool:
        """Whether the whole set fits in `memory_mb`."""
        return self.nbytes <= self.memory_mb << 20

    @property
    def file_bytes(self) -> int:
        """Bytes of its files."""
        return sum(file.path.stat().st_size for file in self._files)

    def load(self) -> GraphSet:
        """Read the whole set into memory.

        Raises
        ------
        MachineError
            When the arrays take more than `memory_mb`.
        """
        self._check_fits(self.nbytes)
        if self.header.graph_feature_counts and self._count_ptr is None:  # of an older file: dense
            table = FeatureTable.joined([*self.feature_tables()])
            self._arrays |= zip(schema.COUNTS[1:], (table.counts.indices, table.counts.data), strict=True)
            self._arrays[schema.GRAPH_FEATURES], self._count_ptr = table.measured, table.counts.indptr
        for name in self._arrays:
            self._arrays[name] = self.rows(name, 0, None)
        return replace(self._slice(0, self.n_graphs), splits=self.splits)

    def read(self, graphs: NDArray[np.integer[Any]] | Sequence[int]) -> GraphSet:
        """Read the graphs with these numbers, in this order (repeats allowed); consecutive ones take one read."""
        picked = graph_numbers(graphs, self.n_graphs)
        if len(picked) == 0:
            return self._slice(0, 0)
        unique, place = np.unique(picked, return_inverse=True)
        last = np.flatnonzero(np.diff(unique) != 1)
        whole = self._select(unique[np.r_[0, last + 1]], unique[np.r_[last, -1]] + 1)
        return whole if np.array_equal(unique, picked) else whole.take(place)

    def blocks(
        self, max_bytes: int = BLOCK_BYTES, first: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, GraphSet]]:
        """Yield the graphs first … stop-1 as ``(first graph, part)``, in parts of about `max_bytes` each."""
        for start, end in self.block_ranges(max_bytes, first, stop):
            yield start, self._slice(start, end)

    def block_ranges(
        self, max_bytes: int = BLOCK_BYTES, first: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield the ranges of graphs of `blocks`."""
        cost = self.bytes_before()[first : None if stop is None else stop + 1]
        for start, end in bounded_ranges(cost, min(max_bytes, (self.memory_mb << 20) // 2)):
            yield first + start, first + end

    def bytes_before(self) -> Int64:
        """Return the bytes in memory of the graphs before each graph, and of all, (G+1,); without ids and targets."""
        cost = self.node_ptr * self._row_bytes("nodes/") + self.edge_ptr * self._row_bytes("edges/")
        return cost + np.arange(len(cost)) * self._row_bytes("graphs/")

    def smiles(self, first: int = 0, stop: int | None = None) -> list[str] | None:
        """Read and check the SMILES of the graphs first … stop-1, by default of all; None if the set has none.

        Raises
        ------
        InputError
            When they are not texts of one line.
        MachineError
            When they take more than `memory_mb`.
        """
        if not self._smiles:
            return None
        pointer, stored = self._smiles
        last = self.n_graphs if stop is None else stop
        self._check_fits(8 * (last - first + 1))
        with reading(self.path):
            ptr = pointer[first : last + 1]
        piece_at = None if (first, last) == (0, self.n_graphs) else first
        checks.check_pointers(self.path, schema.SMILES[0], ptr, len(stored), piece_at)
        self._check_fits(ptr.nbytes + int(ptr[-1] - ptr[0]))
        with reading(self.path):
            whole = stored[int(ptr[0]) : int(ptr[-1])].tobytes()
        texts = []
        for graph, (start, end) in enumerate(pairwise((ptr - ptr[0]).tolist()), first):
            texts.append(whole[start:end].decode("utf-8", "replace"))
            if not texts[-1].isprintable() or "\ufffd" in texts[-1]:
                place = f"{self.path}:/{schema.SMILES[1]} of graph {graph}"
                raise InputError(place, ascii(texts[-1]), "printable UTF-8")
        return texts

    def check(self, load: bool = True, in_pieces: bool = False) -> None:
        """Check every value against the rules of the format; raise InputError for the first violation.

        With `load`, a set that fits in memory is kept there. With `in_pieces`, the only graph of a set is read in
        pieces, so it may be larger than memory.
        """
        self.check_targets()
        if load and self.fits_in_memory:
            self.load()
        entries = 0
        whole = ((part, int(self.node_ptr[graph]), int(self.edge_ptr[graph]), graph) for graph, part in self.blocks())
        for part, node, edge, graph in self._pieces() if in_pieces else whole:
            checks.check_part(self.path, part, node, edge, graph, entries, self._counts_before(graph))
            entries += part.x.nnz if is_sparse(part.x) else 0

    def check_targets(self) -> None:
        """Check the targets as `check` does."""
        checks.check_targets(self.path, self.header, self.y, self.censored, self.sample_weight)

    def read_checked(self, first: int, stop: int) -> GraphSet:
        """Read the graphs first … stop-1 and check their values as `check` does.

        Raises
        ------
        InputError
        """
        part = self._slice(first, stop)
        node, entry = int(self.node_ptr[first]), 0
        if self.sparse_features:
            entry = int(self.rows("nodes/x_csr/indptr", node, node + 1)[0])
        counts = self._counts_before(first)
        checks.check_part(self.path, part, node, int(self.edge_ptr[first]), first, entry, counts)
        return part

    def _pieces(self, most: int = BLOCK_BYTES) -> Iterator[tuple[GraphSet, int, int, int]]:
        """Yield the only graph in pieces of some edges and some features, each with its first node, edge and graph."""
        nodes, edges = int(self.node_ptr[-1]), int(self.edge_ptr[-1])
        count = nodes * self._row_bytes("nodes/") + edges * self._row_bytes("edges/")
        count = -(-count // min(most, (self.memory_mb << 20) // 2)) or 1
        empty = self._slice(0, 0)
        for i in range(count):
            node, node_end = nodes * i // count, nodes * (i + 1) // count
            edge, edge_end = edges * i // count, edges * (i + 1) // count
            piece = replace(
                empty,
                node_ptr=self.node_ptr,
                edge_ptr=np.array([0, edge_end - edge]),
                x=self.features(node, node_end),
                graph_features=self._features_of(_Ranges([0], [1])) if i == 0 else None,
                **self._edges(_Ranges([edge], [edge_end])),
            )
            yield piece, node, edge, 0

    # -------------------------------------------------------------------------------------------- internals

    def _read_rows(self, stored: dict[str, Stored]) -> None:
        """Read and check the arrays that stay in memory: pointers, ids, targets, groups, splits."""
        held = sum(map(_bytes_in_memory, stored.values()))
        self._check_fits(held)
        with reading(self.path):
            rows: dict[str, NDArray[Any]] = {name: array[:] for name, array in stored.items()}
        self.node_ptr: Int64 = rows["graphs/node_ptr"]
        self.edge_ptr: Int64 = rows["graphs/edge_ptr"]
        sparse = "nodes/x_csr/indptr" in self._arrays
        nodes = len(self._arrays["nodes/x_csr/indptr"]) - 1 if sparse else len(self._arrays["nodes/x"])
        checks.check_pointers(self.path, "graphs/node_ptr", self.node_ptr, nodes)
        checks.check_pointers(self.path, "graphs/edge_ptr", self.edge_ptr, len(self._arrays["edges/src"]))
        checks.check_graph_sizes(self.path, self.node_ptr)
        self._count_ptr = rows.get(schema.COUNTS[0])
        if self._count_ptr is not None:
            checks.check_pointers(self.path, schema.COUNTS[0], self._count_ptr, len(self._arrays[schema.COUNTS[2]]))
        if sparse:
            ends = np.concatenate([self.rows("nodes/x_csr/indptr", 0, 1), self.rows("nodes/x_csr/indptr", nodes, None)])
            checks.check_pointers(self.path, "nodes/x_csr/indptr", ends, len(self._arrays["nodes/x_csr/data"]))
        folder = schema.row_folder(self.header.level)
        self.y: NDArray[Any] = rows[f"{folder}/y"].astype(schema.TARGET_TYPES[self.header.target][0], copy=False)
        self.censored: NDArray[np.int8] | None = rows.get(f"{folder}/censored")
        self.sample_weight: NDArray[np.float32] | None = rows.get(f"{folder}/sample_weight")
        self.ids = _decode(rows[f"{folder}/id"], f"{self.path}:/{folder}/id")
        self.groups: NDArray[np.int32] | None = rows.get("graphs/group")
        checks.check_groups(self.path, self.groups)
        self.times: NDArray[np.float64] | None = rows.get("graphs/time")
        checks.check_times(self.path, self.times)
        names = sorted({name.split("/")[1] for name in rows if name.startswith("splits/")})
        self.splits = {
            name: Split(**{part: rows[f"splits/{name}/{part}"] for part in schema.SPLIT_PARTS}) for name in names
        }
        checks.check_splits(self.path, self.splits, len(self.ids))

    @property
    def measured(self) -> NDArray[Any]:
        """The targets (R, K) that metrics count: bounds are no measured values, and missing here."""
        return self.y if self.censored is None else np.where(self.censored, np.nan, self.y)

    def rows(self, name: str, start: int, stop: int | None) -> NDArray[Any]:
        """Return rows of the array at this path, one of those that are read in slices."""
        with reading(self.path):
            return self._arrays[name][start:stop]

    def _row_bytes(self, folder: str) -> int:
        """Return the bytes of one graph, node or edge; the mean for sparse features."""
        arrays = [array for name, array in self._arrays.items() if name.startswith(folder)]
        rows = {"graphs/": self.n_graphs, "nodes/": int(self.node_ptr[-1]), "edges/": int(self.edge_ptr[-1])}[folder]
        return sum(array.nbytes for array in arrays) // max(rows, 1)

    def _slice(self, first: int, stop: int) -> GraphSet:
        """Return the graphs first … stop-1 as one part."""
        return self._select(np.array([first]), np.array([stop]))

    def _select(self, first: Int64, stop: Int64) -> GraphSet:
        """Return the graphs of all ranges first[r] … stop[r]-1, one range after the other, as one part."""
        graphs = _Ranges(first.tolist(), stop.tolist())
        nodes, edges = map(graphs.within, (self.node_ptr, self.edge_ptr))
        counts = {"graphs/": graphs.rows, "nodes/": nodes.rows, "edges/": edges.rows}
        self._check_fits(sum(count * self._row_bytes(folder) for folder, count in counts.items()))
        held = dict.fromkeys(OF_ROWS, nodes if self.header.level == "node" else graphs)
        held |= {"groups": graphs, "times": graphs}
        in_memory: dict[str, Any] = {name: getattr(self, name) for name in held}
        in_memory = {name: None if array is None else held[name].of(array) for name, array in in_memory.items()}
        return GraphSet(
            header=self.header,
            node_ptr=graphs.pointer(self.node_ptr),
            edge_ptr=graphs.pointer(self.edge_ptr),
            x=stacked([self.features(*ends) for ends in zip(*nodes, strict=True)])
            if self.sparse_features
            else self._rows_of("nodes/x", nodes),
            graph_features=self._features_of(graphs),
            **self._edges(edges),
            **in_memory,
        )

    def _edges(self, ranges: _Ranges) -> dict[str, Any]:
        return {name: self._rows_of(f"edges/{name}", ranges) for name in OF_EDGES}

    def _rows_of(self, name: str, ranges: _Ranges) -> Any:
        """Return rows of the array at this path, one of those that are read in slices; None if the set has none."""
        if name not in self._arrays:
            return None
        with reading(self.path):
            return ranges.of(self._arrays[name])

    def _features_of(self, graphs: _Ranges) -> FeatureTable | None:
        """Return the features of graphs; None if the set has none. Files before version 0.2 have dense counts."""
        n_counts, dense = self.header.graph_feature_counts, self._rows_of(schema.GRAPH_FEATURES, graphs)
        if self._count_ptr is None:
            return None if dense is None else FeatureTable.of(dense, n_counts)
        entries = graphs.within(self._count_ptr)
        self._check_fits(8 * entries.rows)
        indices, data = (self._rows_of(name, entries) for name in schema.COUNTS[1:])
        measured = np.zeros((graphs.rows, 0), np.float32) if dense is None else dense
        return FeatureTable(measured, Csr(graphs.pointer(self._count_ptr), indices, data, n_counts))

    def measured_features(self, first: int, stop: int) -> NDArray[np.float32]:
        """Return the features (stop - first, V) of these graphs that are not counts."""
        width = len(self.header.graph_feature_names) - self.header.graph_feature_counts
        return self.rows(schema.GRAPH_FEATURES, first, stop)[:, :width] if width else np.zeros((stop - first, 0), "f4")

    def graph_features(self, first: int, stop: int) -> FeatureTable:
        """Return the features of the graphs first … stop-1 of a set that has such."""
        found = self._features_of(_Ranges([first], [stop]))
        assert found is not None
        return found

    def feature_tables(self, graphs: Int64 | None = None) -> Iterator[FeatureTable]:
        """Yield the features of these graphs, which ascend, or of all, in one or more tables."""
        for first in range(0, max(self.n_graphs, 1), _TABLE):
            stop = min(first + _TABLE, self.n_graphs)
            if graphs is None:
                yield self.graph_features(first, stop)
                continue
            low, high = np.searchsorted(graphs, (first, stop))
            if low < high or (first == 0 and not len(graphs)):
                yield self.graph_features(first, stop)[graphs[low:high] - first]

    def _counts_before(self, graph: int) -> int:
        return 0 if self._count_ptr is None else int(self._count_ptr[graph])

    def edges(self, first: int, stop: int) -> Edges:
        """Read the edges first … stop-1 of the file; their nodes are counted within their graphs."""
        src, dst, channel = (self.rows(f"edges/{name}", first, stop) for name in ("src", "dst", "channel"))
        weights = self.rows("edges/weight", first, stop) if self.weighted else np.ones(stop - first)
        return Edges(src, dst, channel, weights.astype(np.float64))

    def features(self, node0: int, node1: int) -> NDArray[Any] | sp.csr_array:
        """Read the features of the nodes node0 … node1-1 of the file."""
        if "nodes/x" in self._arrays:
            return self.rows("nodes/x", node0, node1)
        name, total = "nodes/x_csr/indptr", len(self._arrays["nodes/x_csr/data"])
        indptr = self.rows(name, node0, node1 + 1)
        checks.check_pointers(self.path, name, indptr, total, piece_at=node0)
        start, stop = int(indptr[0]), int(indptr[-1])
        self._check_fits((stop - start) * 8)
        indices, data = (self.rows(f"nodes/x_csr/{part}", start, stop) for part in ("indices", "data"))
        indptr = (indptr - start).astype(np.int32 if stop - start < 2**31 else np.int64)
        import scipy.sparse as sp  # takes longer than a small dense set

        return sp.csr_array((data, indices, indptr), shape=(node1 - node0, self.header.n_features))

    def _check_fits(self, size: int) -> None:
        if size > self.memory_mb << 20:
            raise MachineError(
                str(self.path),
                f"{-(-size >> 20)} MiB to be read at once",
                f"at most {self.memory_mb} MiB",
                "Raise data.memory_mb, or read fewer graphs at once.",
            )


class _Ranges(NamedTuple):
    """Ranges of rows starts[r] … stops[r]-1, which are wanted one after the other."""

    starts: list[int]
    stops: list[int]

    @property
    def rows(self) -> int:
        return sum(self.stops) - sum(self.starts)

    def within(self, ptr: Int64) -> _Ranges:
        """Return the rows that these segments of `ptr` own."""
        return _Ranges(ptr[self.starts].tolist(), ptr[self.stops].tolist())

    def of(self, array: Stored | NDArray[Any]) -> NDArray[Any]:
        """Return these rows of an array; a view where they are one range in memory."""
        if len(self.starts) == 1:
            return array[self.starts[0] : self.stops[0]]
        values = np.empty((self.rows, *array.shape[1:]), array.dtype)
        position = 0
        for start, stop in zip(self.starts, self.stops, strict=True):
            part = values[position : position + stop - start]
            if isinstance(array, (StoredArray, JoinedArray)):
                array.read_into(part, start)
            else:
                part[...] = array[start:stop]
            position += stop - start
        return values

    def pointer(self, ptr: Int64) -> Int64:
        """Return the pointer of these segments of `ptr`, from 0 on."""
        lengths = np.concatenate([np.diff(ptr[start : stop + 1]) for start, stop in zip(*self, strict=True)])
        return row_pointer(lengths)


def _bytes_in_memory(array: Stored) -> int:
    """Return the bytes of an array in memory; text also becomes fixed-width Unicode, four bytes per stored byte."""
    return int(array.nbytes) * (5 if array.dtype.kind == "S" else 1)


def _decode(raw: NDArray[np.bytes_], place: str) -> NDArray[np.str_]:
    checks.check_ids(place, raw)
    try:
        return raw.astype(np.str_)  # ASCII, the fast way
    except UnicodeDecodeError:
        pass
    try:
        return np.char.decode(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(place, "ids that are not UTF-8", "UTF-8 text") from error


__all__ = ["BLOCK_BYTES", "Dataset", "DatasetWriter", "write_graphset"]
