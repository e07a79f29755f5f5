"""Writing data sets, part by part, in the format of ``datasets/FORMAT.md``.

The writer checks every rule that the reader checks, so every written file can be read. The file appears at its path
when it is complete, and not at all if anything fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio, hdf5
from gcnbatch.data import checks, schema
from gcnbatch.data.graphs import GraphSet, Int64, Split, layout
from gcnbatch.data.sparse import is_sparse, row_pointer
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath

_CHUNK_BYTES = 1 << 17  # before compression: for long reads
WAITING_BYTES = 1 << 19  # of an array: a small write takes libhdf5 0.2 ms
_CACHE_BYTES = 1 << 20  # of full chunks: libhdf5's 8 MiB of each array would be compressed at the end, by one core
_WHAT = ("graphs", "nodes", "edges", "entries", "counts")
_HELD = ("y", "censored", "sample_weight", "id")
_POINTERS = {
    "graphs/node_ptr": "nodes",
    "graphs/edge_ptr": "edges",
    "nodes/x_csr/indptr": "entries",
    schema.COUNTS[0]: "counts",
}


class DatasetWriter:
    """Writes a data set part by part; the file appears after `finish`; without `finish` nothing is left.

    Ids and targets stay in memory until `finish`; of every other array, half a MiB at most waits to be written. A
    thread compresses and writes, without Python's lock, while the caller makes the next part.

    Parameters
    ----------
    path : path
        An `Output` of `gcnbatch.data.outputs`, or a file in a folder of ours.
    chunk_bytes : int
        Size of a chunk before compression. Small ones make single graphs cheap to read.

    Examples
    --------
    >>> from gcnbatch.data import synthetic
    >>> from gcnbatch.data.store import Dataset
    >>> synthetic.write("quickstart", "molecules.h5", graphs=100)
    >>> with Dataset("molecules.h5") as data, DatasetWriter("copy.h5") as writer:
    ...     for first, part in data.blocks():  # GraphSets of the same layout
    ...         writer.append(part)
    ...     writer.finish(data.header, data.splits, data.smiles())

    Raises
    ------
    InputError
        When a part breaks a rule of the format or its layout differs from the first part's.
    MachineError
        When the disk is full or the folder cannot be written. Nothing is left behind.
    """

    def __init__(self, path: StrPath, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self.path, self._target = Path(path), path
        self._chunk_bytes = chunk_bytes
        self._stack = ExitStack()
        self._held: dict[str, list[NDArray[Any]]] = {}  # ids and targets, by path
        self._stored: dict[str, h5py.Dataset] = {}
        self._waiting: dict[str, list[NDArray[Any]]] = {}  # rows to be written together, by path
        self._layout: dict[str, str] = {}
        self._rows = dict.fromkeys(_WHAT, 0)
        self._top_channel = 0
        self._finished = False
        self._written: Future[None] | None = None  # of the last write

    def __enter__(self) -> DatasetWriter:
        with ExitStack() as stack:
            self._stream, self._file = _open(self._target, stack)
            self._thread = stack.enter_context(ThreadPoolExecutor(1))  # it ends before the file is closed
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._finished:
            error = RuntimeError("DatasetWriter was left without finish()")
            self._stack.__exit__(RuntimeError, error, None)
            raise error
        self._stack.__exit__(kind, error, trace)

    def append(self, part: GraphSet) -> None:
        """Append the graphs of `part`.

        Only level, target kind and numbers of features of its header matter; its splits are ignored.
        """
        part = _canonical(part)
        self._check_same_layout(part)
        arrays, counts = _arrays(part, self.path), _counts(part)
        _check(self.path, part, arrays, counts, self._rows)
        self._store(arrays, self._rows)
        for what, count in counts.items():
            self._rows[what] += count
        self._top_channel = max(self._top_channel, int(part.channel.max(initial=0)))

    def append_blocks(
        self, graphs: GraphSet, edges: Iterable[tuple[int, GraphSet]], features: Iterable[NDArray[Any]]
    ) -> GraphSet:
        """Append graphs whose edges and dense features arrive in blocks: at most one block is in memory.

        Parameters
        ----------
        graphs : GraphSet
            The graphs without edges (`edge_ptr` is all zeros) and without rows of features.
        edges : iterable of (first graph, GraphSet)
            Consecutive graphs with their edges, without rows of features. The last graph of a block may continue in the
            next block.
        features : iterable of (n, F)
            The rows of x in order, consumed after the edges.

        Returns
        -------
        GraphSet
            `graphs` with its final `edge_ptr`.
        """
        self._check_same_layout(graphs)
        checks.check_graph_sizes(self.path, graphs.node_ptr)
        rows, before = self._rows, dict(self._rows)
        lengths = np.zeros(graphs.n_graphs, dtype=np.int64)
        for first, part in edges:
            checks.check_part(self.path, part, before["nodes"], rows["edges"], rows["graphs"] + first)
            for name in ("src", "dst", "channel", "weight"):
                if (array := getattr(part, name)) is not None:
                    self._extend(f"edges/{name}", array)
            lengths[first : first + part.n_graphs] += np.diff(part.edge_ptr)
            rows["edges"] += len(part.src)
            self._top_channel = max(self._top_channel, int(part.channel.max(initial=0)))
        no_graph = replace(graphs, node_ptr=graphs.node_ptr[:1], edge_ptr=graphs.edge_ptr[:1])
        for x in features:
            checks.check_part(self.path, replace(no_graph, x=x), rows["nodes"], before["edges"], rows["graphs"])
            self._extend("nodes/x", x)
            rows["nodes"] += len(x)
        checks.check_pointers(self.path, "graphs/node_ptr", graphs.node_ptr, rows["nodes"] - before["nodes"])
        graphs = replace(graphs, edge_ptr=row_pointer(lengths))
        self._store(_arrays(graphs, self.path), before)
        rows["graphs"] += graphs.n_graphs
        return graphs

    def finish(
        self,
        header: schema.Header,
        splits: Mapping[str, Split] | None = None,
        smiles: Sequence[str] | None = None,
    ) -> None:
        """Write ids, targets, splits, SMILES (one per graph) and the header.

        The file appears at the end of the block.
        """
        if not self._held:
            raise InputError(str(self.path), "no graphs to write", "at least one part")
        self._write_all()
        arrays = {name: np.concatenate(parts) for name, parts in self._held.items()}
        for name, split in (splits or {}).items():
            arrays |= _split_arrays(name, split)
        if smiles is not None:
            texts = [text.encode("utf-8", "backslashreplace") for text in smiles]
            arrays["graphs/smiles_ptr"] = np.cumsum([0, *map(len, texts)], dtype=np.int64)
            arrays["graphs/smiles"] = np.frombuffer(b"".join(texts), dtype=np.uint8)
        checks.check_header(self.path, header)
        older = None if header.units else {"units"}  # without it, older versions read the file
        text = header.model_dump_json(exclude=older).encode("utf-8")
        if len(text) > schema.MAX_HEADER_BYTES:
            raise InputError(
                f"{self.path}:/header", f"{len(text)} bytes", f"at most {schema.MAX_HEADER_BYTES}", "Shorten the names."
            )
        row = schema.row_folder(header.level)
        checks.check_splits(self.path, splits or {}, len(next(iter(arrays.values()))))
        checks.check_layout(self.path, header, self._stored | arrays)
        optional = (arrays.get(f"{row}/{name}") for name in ("censored", "sample_weight"))
        checks.check_targets(self.path, header, arrays[f"{row}/y"], *optional)
        if self._top_channel >= header.n_channels:
            raise InputError(f"{self.path}:/edges/channel", str(self._top_channel), f"0 to {header.n_channels - 1}")
        for name, rows in arrays.items():
            self._extend(name, rows)
        self._extend("header", np.array([text], dtype=f"S{len(text)}"))
        self._write_all()
        _mark(self._file)
        self._finished = True

    def _check_same_layout(self, part: GraphSet) -> None:
        this = layout(part)
        self._layout = self._layout or this
        for key, first in self._layout.items():
            if this[key] != first:
                raise InputError(str(self.path), f"a part with {key} {this[key]}", f"{first}, as in the first part")

    def _store(self, arrays: Mapping[str, NDArray[Any]], before: Mapping[str, int]) -> None:
        """Write the arrays of a part, or hold them until `finish`; `before` are the rows of earlier parts."""
        for name, array in arrays.items():
            if name.partition("/")[2] in _HELD:
                self._held.setdefault(name, []).append(array)
            elif name in _POINTERS:  # the first offset of a later part repeats the last one
                self._extend(name, array[name in self._stored :] + before[_POINTERS[name]])
            else:
                self._extend(name, array)

    def _extend(self, name: str, rows: NDArray[Any]) -> None:
        if name not in self._stored:
            with hdf5.late_signals():
                self._stored[name] = _create(self._file, name, rows.dtype, rows.shape[1:], self._chunk_bytes)
        waiting = self._waiting.setdefault(name, [])
        waiting.append(rows)
        if sum(some.nbytes for some in waiting) >= WAITING_BYTES:
            self._write(name)

    def _write_all(self) -> None:
        for name in list(self._waiting):
            self._write(name)
        self._wait()

    def _write(self, name: str) -> None:
        """Begin to write the rows that wait, when those before are written."""
        rows = np.concatenate(self._waiting.pop(name))
        self._wait()
        self._written = self._thread.submit(self._write_rows, self._stored[name], rows)

    def _wait(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _write_rows(self, dataset: h5py.Dataset, rows: NDArray[Any]) -> None:
        old = dataset.shape[0]
        dataset.resize(old + len(rows), axis=0)
        dataset[old:] = rows
        self._stream.check()


def write_splits(path: StrPath, splits: Mapping[str, Split]) -> None:
    """Write a file that holds splits alone, for a folder of shards."""
    with ExitStack() as stack:
        stream, file = _open(path, stack)
        for name, split in splits.items():
            for place, rows in _split_arrays(name, split).items():
                with hdf5.late_signals():
                    array = _create(file, place, rows.dtype, (), _CHUNK_BYTES)
                    array.resize(len(rows), axis=0)
                    array[:] = rows
                stream.check()
        _mark(file)


def _open(path: StrPath, stack: ExitStack) -> tuple[hdf5.HeldErrors, h5py.File]:
    """Open a new file in the block of `stack`, at whose end it appears at `path`."""
    temporary = stack.enter_context(fileio.atomic_path(path))
    file, stream = stack.enter_context(
        hdf5.open_output(temporary, path, libver=("v110", "v110"), rdcc_nbytes=_CACHE_BYTES)
    )
    return stream, file


def _mark(file: h5py.File) -> None:
    with hdf5.late_signals():
        file.attrs["format"] = np.bytes_(schema.FORMAT_NAME)
        file.attrs["version"] = np.int64(schema.FORMAT_VERSION)


def _split_arrays(name: str, split: Split) -> dict[str, Int64]:
    return {f"splits/{name}/{part}": np.asarray(rows, np.int64) for part, rows in split.parts().items()}


def _create(
    file: h5py.File, name: str, dtype: np.dtype[Any], trailing: tuple[int, ...], chunk_bytes: int
) -> h5py.Dataset:
    columns = tuple(max(1, min(width, chunk_bytes // dtype.itemsize)) for width in trailing)
    rows = max(1, chunk_bytes // (dtype.itemsize * int(np.prod(columns, dtype=np.int64))))
    return file.create_dataset(
        name,
        shape=(0, *trailing),
        maxshape=(None, *trailing),
        dtype=dtype,
        chunks=(rows, *columns),
        compression="gzip",
        compression_opts=1,
        shuffle=True,
        fletcher32=True,
    )


def check_graphset(place: str, graphs: GraphSet) -> None:
    """Check every rule of the format for a set in memory, without writing it.

    Raises
    ------
    InputError
        Names the array as ``<place>:/nodes/x`` and the first wrong position.
    """
    path, header, part = Path(place), graphs.header, _canonical(graphs)
    arrays, counts = _arrays(part, path), _counts(part)
    checks.check_header(path, header)
    _check(path, part, arrays, counts, dict.fromkeys(_WHAT, 0))
    checks.check_splits(path, graphs.splits, len(part.ids))
    y = arrays[f"{schema.row_folder(header.level)}/y"]
    checks.check_targets(path, header, y, part.censored, part.sample_weight)
    if graphs.smiles is not None and len(graphs.smiles) != graphs.n_graphs:
        raise InputError(f"{place}: smiles", f"{len(graphs.smiles)}", f"{graphs.n_graphs}, one per graph")


def _check(
    path: Path,
    part: GraphSet,
    arrays: Mapping[str, NDArray[Any]],
    counts: Mapping[str, int],
    before: Mapping[str, int],
) -> None:
    """Check the rules that do not need the final header; `before` are the rows of earlier parts."""
    for name, array in arrays.items():
        kinds, lengths = schema.ARRAYS[name]
        kind = array.dtype.kind if array.dtype.kind == "S" else f"{array.dtype.kind}{array.dtype.itemsize}"
        if kind not in kinds or array.ndim != len(lengths):
            got = f"type {kind} with {array.ndim} dimensions"
            raise InputError(f"{path}:/{name}", got, f"{' or '.join(kinds)} with {len(lengths)}")
    checks.check_layout(path, part.header, arrays)
    for name in _POINTERS.keys() & arrays.keys():
        checks.check_pointers(path, name, arrays[name], counts[_POINTERS[name]])
    checks.check_graph_sizes(path, part.node_ptr)
    checks.check_part(path, part, *(before[what] for what in ("nodes", "edges", "graphs", "entries", "counts")))
    checks.check_groups(path, part.groups)
    checks.check_times(path, part.times)


def _counts(part: GraphSet) -> dict[str, int]:
    """Return the number of rows of the part's arrays, where its pointers must end."""
    return {
        "graphs": part.n_graphs,
        "nodes": part.x.shape[0],
        "edges": len(part.src),
        "entries": part.x.nnz if is_sparse(part.x) else 0,
        "counts": 0 if part.graph_features is None else len(part.graph_features.counts.data),
    }


def _canonical(part: GraphSet) -> GraphSet:
    """Return the part with sorted columns in sparse rows and repeated entries added up."""
    if not is_sparse(part.x) or part.x.has_canonical_format:
        return part
    x = part.x.copy()
    x.sum_duplicates()
    return replace(part, x=x)


def _arrays(part: GraphSet, path: Path) -> dict[str, NDArray[Any]]:
    """Return the part's arrays under their names in the file."""
    row = schema.row_folder(part.header.level)
    arrays: dict[str, NDArray[Any] | None] = {
        "graphs/node_ptr": part.node_ptr,
        "graphs/edge_ptr": part.edge_ptr,
        "graphs/group": part.groups,
        "graphs/time": part.times,
        "edges/src": part.src,
        "edges/dst": part.dst,
        "edges/channel": part.channel,
        "edges/weight": part.weight,
        f"{row}/y": part.y if part.header.target != "regression" else part.y.astype(np.float64, copy=False),
        f"{row}/censored": part.censored,
        f"{row}/sample_weight": part.sample_weight,
        f"{row}/id": encode_ids(part.ids, f"{path}:/{row}/id"),
    }
    if part.graph_features is not None:
        measured, counts = part.graph_features.measured, part.graph_features.counts
        if measured.shape[1]:
            arrays[schema.GRAPH_FEATURES] = measured
        if counts.n_cols:
            values = counts.indptr, counts.indices, counts.data.astype(np.uint32, copy=False)
            arrays |= dict(zip(schema.COUNTS, values, strict=True))
    if is_sparse(part.x):
        arrays["nodes/x_csr/indptr"] = part.x.indptr.astype(np.int64)
        arrays["nodes/x_csr/indices"] = part.x.indices.astype(np.int32)
        arrays["nodes/x_csr/data"] = part.x.data
    else:
        arrays["nodes/x"] = part.x
    return {name: array for name, array in arrays.items() if array is not None}


def encode_ids(ids: NDArray[np.str_], place: str) -> NDArray[np.bytes_]:
    """Return ids as UTF-8 bytes of equal width, as stored in the file."""
    try:
        encoded = ids.astype("S") if len(ids) else np.zeros(0, dtype="S1")
    except UnicodeEncodeError:
        try:
            encoded = np.char.encode(ids, "utf-8")
        except UnicodeEncodeError as error:
            raise InputError(place, "an id with half a surrogate pair", "Unicode text") from error
    if encoded.dtype.itemsize > schema.MAX_ID_BYTES:
        raise InputError(place, f"an id of {encoded.dtype.itemsize} bytes", f"at most {schema.MAX_ID_BYTES}")
    checks.check_ids(place, encoded)
    return encoded


def write_graphset(path: StrPath, graphs: GraphSet) -> None:
    """Write a whole set in memory, with its splits, to `path`."""
    with DatasetWriter(path) as writer:
        writer.append(graphs)
        writer.finish(graphs.header, graphs.splits, None if graphs.smiles is None else graphs.smiles.tolist())
