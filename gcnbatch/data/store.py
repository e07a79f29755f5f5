"""Reading data sets: HDF5 files in the format of ``datasets/FORMAT.md``.

A file is not trusted. `gcnbatch.data.audit` checks its structure before any value is read, `gcnbatch.data.checks` its
values before the program uses them. `gcnbatch.data.writer` writes files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data import audit, checks, schema
from gcnbatch.data.chunks import StoredArray, reading
from gcnbatch.data.graphs import GraphSet, Int64, Split, bounded_ranges, concatenate, graph_numbers, ragged_rows
from gcnbatch.data.sparse import is_sparse
from gcnbatch.data.writer import DatasetWriter, write_graphset
from gcnbatch.errors import InputError, MachineError
from gcnbatch.fileio import StrPath

if TYPE_CHECKING:
    import scipy.sparse as sp

BLOCK_BYTES = 128 << 20  # a set larger than memory is checked in blocks of whole graphs, of about this size
_SLICED = (
    "nodes/x",
    "nodes/x_csr/",
    "edges/",
    schema.GRAPH_FEATURES,
)  # arrays that are read in slices when the set does not fit in memory


class Dataset:
    """An open, audited and checked data set file.

    A set of at most `memory_mb` is read into memory when it is checked or loaded. Of a larger set, only pointers, ids,
    targets, groups and splits are in memory; all other arrays are read in slices. Several threads may read.

    Parameters
    ----------
    path : path
        An HDF5 file of format version 1.
    memory_mb : int
        Limit in MiB on the arrays in memory or, if they do not fit, on the unpacked chunks that are kept.
    check : bool
        Check every rule of the format (default). False skips the checks of edges, features and targets, for callers
        that have checked the same file before.

    Attributes
    ----------
    header : Header
    node_ptr, edge_ptr : int64, (G+1,)
    ids : str, (R,)
    y : (R, K)
    groups : int32, (G,) or None
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
        self._file, stored = audit.open_file(self.path, memory_mb << 20)
        try:
            self.header = audit.read_header(stored.pop("header", None), self.path)
            checks.check_layout(self.path, self.header, stored)
            self._smiles = tuple(stored.pop(name) for name in schema.SMILES if name in stored)
            self.nbytes = sum(map(_bytes_in_memory, stored.values()))
            self._arrays: dict[str, StoredArray | NDArray[Any]] = {
                name: stored.pop(name) for name in list(stored) if name.startswith(_SLICED)
            }
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
        """Close the file."""
        self._file.close()

    @property
    def replaced(self) -> bool:
        """Whether another file has been written in the place of the open one."""
        return self._file.is_replaced()

    @property
    def n_graphs(self) -> int:
        """G, the number of graphs."""
        return len(self.node_ptr) - 1

    @property
    def sparse_features(self) -> bool:
        """Whether node features are stored as a sparse matrix."""
        return "nodes/x" not in self._arrays

    @property
    def fits_in_memory(self) -> bool:
        """Whether the whole set fits in `memory_mb`."""
        return self.nbytes <= self.memory_mb << 20

    def load(self) -> GraphSet:
        """Read the whole set into memory.

        Raises
        ------
        MachineError
            When the arrays take more than `memory_mb`.
        """
        self._check_fits(self.nbytes)
        for name in self._arrays:
            self._arrays[name] = self._rows(name, 0, None)
        return replace(self._slice(0, self.n_graphs), splits=self.splits)

    def read(self, graphs: NDArray[np.integer[Any]] | Sequence[int]) -> GraphSet:
        """Read the graphs with these numbers, in this order (repeats allowed); consecutive ones take one read."""
        picked = graph_numbers(graphs, self.n_graphs)
        if len(picked) == 0:
            return self._slice(0, 0)
        unique, place = np.unique(picked, return_inverse=True)
        runs = np.split(unique, np.flatnonzero(np.diff(unique) != 1) + 1)
        whole = concatenate([self._slice(int(run[0]), int(run[-1]) + 1) for run in runs])
        return whole if np.array_equal(unique, picked) else whole.take(place)

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, GraphSet]]:
        """Yield the set as ``(first graph, part)``, in parts of whole graphs of about `max_bytes` each."""
        for start, stop in self.block_ranges(max_bytes):
            yield start, self._slice(start, stop)

    def block_ranges(self, max_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, int]]:
        """Yield the ranges of graphs of `blocks`."""
        cost = self.node_ptr * self._row_bytes("nodes/") + self.edge_ptr * self._row_bytes("edges/")
        cost = cost + np.arange(len(cost)) * self._row_bytes("graphs/")
        yield from bounded_ranges(cost, min(max_bytes, (self.memory_mb << 20) // 2))

    def smiles(self) -> list[str] | None:
        """Read and check the SMILES of every graph (G); None if the set has none.

        Raises
        ------
        InputError
            When they are not texts of one line.
        MachineError
            When they take more than `memory_mb`.
        """
        if not self._smiles:
            return None
        self._check_fits(sum(map(_bytes_in_memory, self._smiles)))
        with reading(self.path):
            ptr, raw = (array[:] for array in self._smiles)
        checks.check_pointers(self.path, schema.SMILES[0], ptr, len(raw))
        whole, bounds = raw.tobytes(), ptr.tolist()
        texts = []
        for graph, (start, stop) in enumerate(pairwise(bounds)):
            texts.append(whole[start:stop].decode("utf-8", "replace"))
            if not texts[-1].isprintable() or "\ufffd" in texts[-1]:
                place = f"{self.path}:/{schema.SMILES[1]} of graph {graph}"
                raise InputError(place, ascii(texts[-1]), "printable UTF-8")
        return texts

    def check(self, load: bool = True) -> None:
        """Check every value against the rules of the format; raise InputError for the first violation.

        With `load`, a set that fits in memory is kept there.
        """
        checks.check_targets(self.path, self.header, self.y)
        if load and self.fits_in_memory:
            self.load()
        entries = 0
        for start, part in self.blocks():
            checks.check_part(self.path, part, int(self.node_ptr[start]), int(self.edge_ptr[start]), start, entries)
            entries += part.x.nnz if is_sparse(part.x) else 0

    # -------------------------------------------------------------------------------------------- internals

    def _read_rows(self, stored: dict[str, StoredArray]) -> None:
        """Read and check the arrays that stay in memory: pointers, ids, targets, groups, splits."""
        held = sum(map(_bytes_in_memory, stored.values()))
        self._check_fits(held)
        with reading(self.path):
            rows = {name: array[:] for name, array in stored.items()}
        self.node_ptr: Int64 = rows["graphs/node_ptr"]
        self.edge_ptr: Int64 = rows["graphs/edge_ptr"]
        sparse = "nodes/x_csr/indptr" in self._arrays
        nodes = len(self._arrays["nodes/x_csr/indptr"]) - 1 if sparse else len(self._arrays["nodes/x"])
        checks.check_pointers(self.path, "graphs/node_ptr", self.node_ptr, nodes)
        checks.check_pointers(self.path, "graphs/edge_ptr", self.edge_ptr, len(self._arrays["edges/src"]))
        checks.check_graph_sizes(self.path, self.node_ptr)
        if sparse:
            ends = np.concatenate(
                [self._rows("nodes/x_csr/indptr", 0, 1), self._rows("nodes/x_csr/indptr", nodes, None)]
            )
            checks.check_pointers(self.path, "nodes/x_csr/indptr", ends, len(self._arrays["nodes/x_csr/data"]))
        folder = schema.row_folder(self.header.level)
        self.y: NDArray[Any] = rows[f"{folder}/y"]
        self.ids = _decode(rows[f"{folder}/id"], f"{self.path}:/{folder}/id")
        self.groups: NDArray[np.int32] | None = rows.get("graphs/group")
        checks.check_groups(self.path, self.groups)
        names = sorted({name.split("/")[1] for name in rows if name.startswith("splits/")})
        self.splits = {
            name: Split(**{part: rows[f"splits/{name}/{part}"] for part in schema.SPLIT_PARTS}) for name in names
        }
        checks.check_splits(self.path, self.splits, len(self.ids))

    def _rows(self, name: str, start: int, stop: int | None) -> NDArray[Any]:
        array = self._arrays[name]
        if isinstance(array, np.ndarray):
            return array[start:stop]
        with reading(self.path):
            rows: NDArray[Any] = array[start:stop]
            return rows

    def _row_bytes(self, folder: str) -> int:
        """Return the bytes of one graph, node or edge; the mean for sparse features."""
        arrays = [array for name, array in self._arrays.items() if name.startswith(folder)]
        rows = {"graphs/": self.n_graphs, "nodes/": int(self.node_ptr[-1]), "edges/": int(self.edge_ptr[-1])}[folder]
        return sum(array.nbytes for array in arrays) // max(rows, 1)

    def _slice(self, first: int, stop: int) -> GraphSet:
        """Return the graphs first … stop-1 as one part."""
        node0, node1 = int(self.node_ptr[first]), int(self.node_ptr[stop])
        edge0, edge1 = int(self.edge_ptr[first]), int(self.edge_ptr[stop])
        counts = {"graphs/": stop - first, "nodes/": node1 - node0, "edges/": edge1 - edge0}
        self._check_fits(sum(count * self._row_bytes(folder) for folder, count in counts.items()))
        rows = slice(node0, node1) if self.header.level == "node" else slice(first, stop)
        return GraphSet(
            header=self.header,
            node_ptr=self.node_ptr[first : stop + 1] - node0,
            edge_ptr=self.edge_ptr[first : stop + 1] - edge0,
            src=self._rows("edges/src", edge0, edge1),
            dst=self._rows("edges/dst", edge0, edge1),
            channel=self._rows("edges/channel", edge0, edge1),
            weight=self._rows("edges/weight", edge0, edge1) if "edges/weight" in self._arrays else None,
            x=self._features(node0, node1),
            y=self.y[rows],
            ids=self.ids[rows],
            groups=None if self.groups is None else self.groups[first:stop],
            graph_features=self.graph_features(first, stop),
        )

    def graph_features(self, first: int, stop: int) -> NDArray[np.float32] | None:
        """Return the features (stop - first, D) of these graphs; None if the set has none."""
        return self._rows(schema.GRAPH_FEATURES, first, stop) if schema.GRAPH_FEATURES in self._arrays else None

    def _features(self, node0: int, node1: int) -> NDArray[Any] | sp.csr_array:
        if "nodes/x" in self._arrays:
            return self._rows("nodes/x", node0, node1)
        name, total = "nodes/x_csr/indptr", len(self._arrays["nodes/x_csr/data"])
        indptr = self._rows(name, node0, node1 + 1)
        checks.check_pointers(self.path, name, indptr, total, piece_at=node0)
        start, stop = int(indptr[0]), int(indptr[-1])
        self._check_fits((stop - start) * 8)
        indices, data = (self._rows(f"nodes/x_csr/{part}", start, stop) for part in ("indices", "data"))
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


def _bytes_in_memory(array: StoredArray) -> int:
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


__all__ = ["BLOCK_BYTES", "Dataset", "DatasetWriter", "ragged_rows", "write_graphset"]
