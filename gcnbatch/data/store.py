"""Reading and writing data sets: HDF5 files in the format of ``datasets/FORMAT.md``.

Reading trusts nothing. The file's object tree is audited before any object is opened (hard links only, known names, plain
contiguous or chunked storage), declared sizes are held against the bytes that are stored, and every value is checked before
the rest of the program sees it. Writing appends parts to a temporary file that is renamed when it is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import ValidationError

from gcnbatch import fileio
from gcnbatch.data import schema
from gcnbatch.data.checks import check_part, check_pointers, check_splits
from gcnbatch.data.graphs import GraphSet, Int64, Split, ragged_rows
from gcnbatch.errors import InputError, MachineError

CHECK_BLOCK_NODES = 2_000_000  # a file is checked in blocks of whole graphs of about this many nodes
_CHUNK_BYTES = 1 << 18
_MAX_INFLATION = 1100  # deflate reaches at most about 1,032 : 1; a larger claim is not backed by stored bytes
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_CONVERT_HINT = "Make one with 'gcnbatch data import' or 'gcnbatch data synth'."


# ------------------------------------------------------------------------------------------------ writing


class DatasetWriter:
    """Write a data set part by part; `finish` makes it appear at its path, leaving the block without it removes it.

    Examples
    --------
    >>> with DatasetWriter("molecules.h5") as writer:
    ...     for part in parts:          # GraphSet pieces of the same layout
    ...         writer.append(part)
    ...     writer.finish(header, splits={})
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stack = ExitStack()
        self._ids: list[NDArray[np.str_]] = []
        self._rows = {"node": 0, "edge": 0, "nnz": 0}

    def __enter__(self) -> DatasetWriter:
        if self.path.is_dir():
            raise InputError(str(self.path), "is a folder", "a file name such as molecules.h5")
        temporary = self._stack.enter_context(fileio.atomic_path(self.path))
        self._file = self._stack.enter_context(h5py.File(temporary, "w", libver=("v110", "v110")))
        self._extend("graphs/node_ptr", np.zeros(1, np.int64))
        self._extend("graphs/edge_ptr", np.zeros(1, np.int64))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and "header" not in self._file:
            kind, error = RuntimeError, RuntimeError("DatasetWriter was left without finish()")
            self._stack.__exit__(kind, error, None)
            raise error
        self._stack.__exit__(kind, error, trace)

    def append(self, part: GraphSet) -> None:
        """Add the graphs of `part` after those already written. Its header and splits are not read, only its arrays."""
        self._extend("graphs/node_ptr", part.node_ptr[1:] + self._rows["node"])
        self._extend("graphs/edge_ptr", part.edge_ptr[1:] + self._rows["edge"])
        for name in ("src", "dst", "channel", "weight"):
            value = getattr(part, name)
            if value is not None:
                self._extend(f"edges/{name}", value)
        if sp.issparse(part.x):
            if "nodes/x_csr/indptr" not in self._file:
                self._extend("nodes/x_csr/indptr", np.zeros(1, np.int64))
            self._extend("nodes/x_csr/indptr", part.x.indptr[1:].astype(np.int64) + self._rows["nnz"])
            self._extend("nodes/x_csr/indices", part.x.indices.astype(np.int32))
            self._extend("nodes/x_csr/data", part.x.data.astype(np.float32))
            self._rows["nnz"] += part.x.nnz
        else:
            self._extend("nodes/x", part.x)
        self._extend("nodes/y" if part.header.level == "node" else "graphs/y", part.y)
        if part.groups is not None:
            self._extend("graphs/group", part.groups)
        self._ids.append(part.ids)
        self._rows["node"] += part.n_nodes
        self._rows["edge"] += part.n_edges

    def finish(self, header: schema.Header, splits: dict[str, Split] | None = None) -> None:
        """Write header, ids and splits, and check the file as a reader would. The rename happens on leaving the block."""
        ids = np.concatenate(self._ids) if self._ids else np.zeros(0, dtype="U1")
        encoded = np.char.encode(ids, "utf-8") if len(ids) else np.zeros(0, dtype="S1")
        self._extend("nodes/id" if header.level == "node" else "graphs/id", encoded)
        for name, split in (splits or {}).items():
            for part, rows in split.parts().items():
                self._extend(f"splits/{name}/{part}", np.asarray(rows, dtype=np.int64))
        text = header.model_dump_json(exclude_defaults=False).encode("utf-8")
        self._extend("header", np.array([text], dtype=f"S{len(text)}"))
        self._file.attrs["format"] = np.bytes_(schema.FORMAT_NAME)
        self._file.attrs["version"] = np.int64(schema.FORMAT_VERSION)
        self._file.flush()

    def _extend(self, name: str, rows: NDArray[Any]) -> None:
        if name not in self._file:
            width = max(1, rows.dtype.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64)))
            self._file.create_dataset(
                name,
                shape=(0, *rows.shape[1:]),
                maxshape=(None, *rows.shape[1:]),
                dtype=rows.dtype,
                chunks=(max(1, min(_CHUNK_BYTES // width, max(len(rows), 1))), *rows.shape[1:]),
                compression="gzip",
                compression_opts=1,
                shuffle=True,
                fletcher32=True,
            )
        dataset = self._file[name]
        old = dataset.shape[0]
        dataset.resize(old + len(rows), axis=0)
        dataset[old:] = rows


def write_graphset(path: str | os.PathLike[str], graphs: GraphSet) -> None:
    """Write a whole set in memory, with its splits, to `path`."""
    with DatasetWriter(path) as writer:
        writer.append(graphs)
        writer.finish(graphs.header, graphs.splits)


# ------------------------------------------------------------------------------------------------ reading


class Dataset:
    """An open, audited and checked data set file.

    What is in memory: the pointers, ids, targets, groups and splits of every graph. Node and edge arrays are read when
    asked for: all at once by `load`, or any graphs by `read`, whose HDF5 chunk cache is bounded by `memory_mb`.

    Parameters
    ----------
    path : path
        An HDF5 file of format version 1.
    memory_mb : int
        Bound in MiB on the decompressed chunks that HDF5 keeps for slice reads, and on what `load` may read.
    check : bool
        Check every rule of the format (default). False checks only structure, pointers and splits, not each edge and
        feature: for callers that have checked the same file before.

    Raises
    ------
    InputError
        Naming the path inside the file and the first offending position.
    """

    def __init__(self, path: str | os.PathLike[str], memory_mb: int = 4096, check: bool = True) -> None:
        self.path = Path(path)
        self.memory_mb = memory_mb
        self._file = _open(self.path, memory_mb)
        try:
            self._objects = _audit(self._file, self.path)
            self._read_metadata()
            if check:
                self.check()
        except (OSError, RuntimeError) as error:  # HDF5's own words for damaged chunks and metadata
            self.close()
            raise InputError(
                str(self.path), f"damaged file ({_first_line(error)})", hint="Copy or convert the data again."
            ) from error
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
    def n_graphs(self) -> int:
        """G, the number of graphs."""
        return len(self.node_ptr) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays when read into memory."""
        return sum(dataset.nbytes for dataset in self._objects.values())

    @property
    def fits_in_memory(self) -> bool:
        """Whether `load` stays within `memory_mb`."""
        return self.nbytes <= self.memory_mb << 20

    def load(self) -> GraphSet:
        """Read the whole set into memory.

        Raises
        ------
        MachineError
            When the arrays take more than `memory_mb`.
        """
        if not self.fits_in_memory:
            raise MachineError(
                str(self.path),
                f"{self.nbytes >> 20} MiB in memory",
                f"at most {self.memory_mb} MiB",
                "Raise data.memory_mb, or let training read it by slices.",
            )
        graphs = self._slice(0, self.n_graphs)
        return _with_splits(graphs, self.splits)

    def read(self, graphs: NDArray[np.integer[Any]]) -> GraphSet:
        """Read the graphs with these numbers, in this order, by slices; runs of neighbours cost one read."""
        picked = np.asarray(graphs, dtype=np.int64)
        if len(picked) == 0:
            return self._slice(0, 0)
        unique, place = np.unique(picked, return_inverse=True)
        breaks = np.flatnonzero(np.diff(unique) != 1) + 1
        runs = np.split(unique, breaks)
        from gcnbatch.data.graphs import concatenate

        whole = concatenate([self._slice(int(run[0]), int(run[-1]) + 1) for run in runs])
        return whole if np.array_equal(unique, picked) else whole.take(place)

    def blocks(self, nodes: int = CHECK_BLOCK_NODES) -> Iterator[tuple[int, GraphSet]]:
        """Yield ``(first graph, part)`` over the whole set in parts of whole graphs of about `nodes` nodes and edges."""
        weight = np.maximum(self.node_ptr, self.edge_ptr // 4)
        start = 0
        while start < self.n_graphs:
            stop = int(np.searchsorted(weight, weight[start] + nodes, side="right")) - 1
            stop = min(max(stop, start + 1), self.n_graphs)
            yield start, self._slice(start, stop)
            start = stop

    def check(self) -> None:
        """Check every rule of the format; the first offence is raised as InputError."""
        for start, part in self.blocks():
            check_part(self.path, part, self.node_ptr[start], self.edge_ptr[start], start)
        self._check_csr_pointer()

    # -------------------------------------------------------------------------------------------- internals

    def _read_metadata(self) -> None:
        self.header = _read_header(self._objects, self.path)
        self._check_presence()
        self._check_shapes()
        self.node_ptr: Int64 = self._objects["graphs/node_ptr"][:]
        self.edge_ptr: Int64 = self._objects["graphs/edge_ptr"][:]
        row = "nodes" if self.header.level == "node" else "graphs"
        check_pointers(self.path, "graphs/node_ptr", self.node_ptr, self._length("nodes"))
        check_pointers(self.path, "graphs/edge_ptr", self.edge_ptr, self._length("edges"))
        self.y: NDArray[Any] = self._objects[f"{row}/y"][:]
        self.ids = _decode(self._objects[f"{row}/id"][:], self.path, f"{row}/id")
        self.groups: NDArray[np.int32] | None = (
            self._objects["graphs/group"][:] if "graphs/group" in self._objects else None
        )
        names = sorted({name.split("/")[1] for name in self._objects if name.startswith("splits/")})
        self.splits = {
            name: Split(**{part: self._objects[f"splits/{name}/{part}"][:] for part in schema.SPLIT_PARTS})
            for name in names
        }
        check_splits(self.path, self.splits, len(self.ids))

    def _length(self, what: str) -> int:
        if what == "edges":
            return int(self._objects["edges/src"].shape[0])
        if "nodes/x" in self._objects:
            return int(self._objects["nodes/x"].shape[0])
        return int(self._objects["nodes/x_csr/indptr"].shape[0]) - 1

    def _check_presence(self) -> None:
        row = "nodes" if self.header.level == "node" else "graphs"
        needed = ["graphs/node_ptr", "graphs/edge_ptr", "edges/src", "edges/dst", "edges/channel", f"{row}/y", f"{row}/id"]
        sparse = any(name.startswith("nodes/x_csr/") for name in self._objects)
        if sparse and "nodes/x" in self._objects:
            raise self._bad("nodes", "both x and x_csr are present", "one of them")
        needed += [f"nodes/x_csr/{part}" for part in ("indptr", "indices", "data")] if sparse else ["nodes/x"]
        for name in list(self._objects):
            if name.startswith("splits/"):
                folder = name.rsplit("/", 1)[0]
                needed += [f"{folder}/{part}" for part in schema.SPLIT_PARTS]
        for name in needed:
            if name not in self._objects:
                raise self._bad(name, "missing", "an array of this name", _CONVERT_HINT)
        other = "graphs" if row == "nodes" else "nodes"
        for name in (f"{other}/y", f"{other}/id"):
            if name in self._objects:
                raise self._bad(name, f"present in a {self.header.level}-level set", f"only /{row}/y and /{row}/id")

    def _check_shapes(self) -> None:
        shape = {name: dataset.shape for name, dataset in self._objects.items()}
        nodes, edges = self._length("nodes"), self._length("edges")
        if shape["graphs/node_ptr"][0] < 1:
            raise self._bad("graphs/node_ptr", "no entry", "graphs + 1 entries")
        graphs = shape["graphs/node_ptr"][0] - 1
        rows = nodes if self.header.level == "node" else graphs
        outputs = 1 if self.header.target == "multiclass" else len(self.header.task_names)
        row = "nodes" if self.header.level == "node" else "graphs"
        wanted: dict[str, tuple[int, ...]] = {
            "graphs/edge_ptr": (graphs + 1,),
            "graphs/group": (graphs,),
            "edges/dst": (edges,),
            "edges/channel": (edges,),
            "edges/weight": (edges,),
            "nodes/x": (nodes, self.header.n_features),
            f"{row}/y": (rows, outputs),
            f"{row}/id": (rows,),
        }
        if "nodes/x_csr/data" in shape:
            wanted["nodes/x_csr/indices"] = shape["nodes/x_csr/data"]
        for name, expected in wanted.items():
            if name in shape and shape[name] != expected:
                raise self._bad(name, f"shape {shape[name]}", f"shape {expected}")
        kind = "i4" if self.header.target == "multiclass" else "f4"
        y = self._objects[f"{row}/y"].dtype
        if y != np.dtype(kind):
            raise self._bad(f"{row}/y", f"dtype {y}", f"{np.dtype(kind)} for {self.header.target} targets")

    def _check_csr_pointer(self) -> None:
        if "nodes/x_csr/indptr" in self._objects:
            pointer = self._objects["nodes/x_csr/indptr"][:]
            check_pointers(self.path, "nodes/x_csr/indptr", pointer, self._objects["nodes/x_csr/data"].shape[0])

    def _slice(self, first: int, stop: int) -> GraphSet:
        """Read graphs first … stop-1 as one contiguous part."""
        node0, node1 = int(self.node_ptr[first]), int(self.node_ptr[stop])
        edge0, edge1 = int(self.edge_ptr[first]), int(self.edge_ptr[stop])
        rows = slice(node0, node1) if self.header.level == "node" else slice(first, stop)
        edge = {
            name: self._objects[f"edges/{name}"][edge0:edge1] if f"edges/{name}" in self._objects else None
            for name in ("src", "dst", "channel", "weight")
        }
        return GraphSet(
            header=self.header,
            node_ptr=self.node_ptr[first : stop + 1] - node0,
            edge_ptr=self.edge_ptr[first : stop + 1] - edge0,
            x=self._features(node0, node1),
            y=self.y[rows],
            ids=self.ids[rows],
            groups=None if self.groups is None else self.groups[first:stop],
            **edge,  # type: ignore[arg-type]
        )

    def _features(self, node0: int, node1: int) -> Any:
        if "nodes/x" in self._objects:
            return self._objects["nodes/x"][node0:node1]
        indptr = self._objects["nodes/x_csr/indptr"][node0 : node1 + 1]
        total = self._objects["nodes/x_csr/data"].shape[0]
        check_pointers(self.path, "nodes/x_csr/indptr", indptr, total, whole=False, offset=node0)
        start, stop = int(indptr[0]), int(indptr[-1])
        matrix = sp.csr_array((node1 - node0, self.header.n_features), dtype=np.float32)
        matrix.data = self._objects["nodes/x_csr/data"][start:stop]
        matrix.indices = self._objects["nodes/x_csr/indices"][start:stop]
        matrix.indptr = (indptr - start).astype(np.int32 if stop - start < 2**31 else np.int64)
        return matrix

    def _bad(self, name: str, got: str, expected: str, hint: str = "") -> InputError:
        return InputError(f"{self.path}:/{name}", got, expected, hint)


def _with_splits(graphs: GraphSet, splits: dict[str, Split]) -> GraphSet:
    from dataclasses import replace

    return replace(graphs, splits=splits)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _open(path: Path, memory_mb: int) -> h5py.File:
    if not path.exists():
        raise InputError(str(path), "no such file", "an HDF5 data set", _CONVERT_HINT)
    if path.is_dir():
        raise InputError(str(path), "is a folder", "an HDF5 data set", _CONVERT_HINT)
    if not os.access(path, os.R_OK):
        raise InputError(str(path), "not readable", hint="Change its permissions.")
    os.environ.pop("HDF5_PLUGIN_PATH", None)
    cache = max(memory_mb << 20, 1 << 20) // len(schema.ARRAYS)
    try:
        return h5py.File(path, "r", rdcc_nbytes=cache, rdcc_nslots=10_007, locking=False)
    except (OSError, RuntimeError) as error:
        reason = "truncated or damaged HDF5 file" if h5py.is_hdf5(path) else "not an HDF5 file"
        raise InputError(str(path), f"{reason} ({_first_line(error)})", "an HDF5 data set", _CONVERT_HINT) from error


def _audit(file: h5py.File, path: Path) -> dict[str, h5py.Dataset]:
    """Walk the file name by name and return its arrays by path; nothing but plain, known arrays passes."""
    found: dict[str, h5py.Dataset] = {}
    _check_format(file, path)

    def visit(group: h5py.Group, prefix: str) -> None:
        for name in group:
            where = f"{prefix}{name}"
            place = f"{path}:/{where}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise InputError(place, "a soft or external link", "arrays stored in the file itself")
            item = group[name]
            if isinstance(item, h5py.Group):
                if where not in schema.GROUPS and not (prefix == "splits/"):
                    raise InputError(place, "unknown group", f"only {', '.join(schema.GROUPS)}")
                visit(item, f"{where}/")
            elif isinstance(item, h5py.Dataset):
                _audit_array(item, where, place)
                found[where] = item
            else:
                raise InputError(place, "neither group nor array", "plain arrays")

    visit(file, "")
    return found


def _check_format(file: h5py.File, path: Path) -> None:
    attributes = file.attrs
    name = attributes["format"] if "format" in attributes else None
    if not isinstance(name, bytes) or name.decode("ascii", "replace") != schema.FORMAT_NAME:
        raise InputError(str(path), "an HDF5 file of another program", "attribute format = gcnbatch", _CONVERT_HINT)
    version = attributes["version"] if "version" in attributes else None
    if not isinstance(version, np.integer) or int(version) != schema.FORMAT_VERSION:
        raise InputError(
            str(path), f"format version {version}", f"version {schema.FORMAT_VERSION}", "Use a matching gcnbatch."
        )


def _audit_array(item: h5py.Dataset, where: str, place: str) -> None:
    split = where.startswith("splits/") and where.count("/") == 2 and where.rsplit("/", 1)[1] in schema.SPLIT_PARTS
    if where not in schema.ARRAYS and not split:
        raise InputError(place, "unknown array", "only the arrays of format version 1", "See datasets/FORMAT.md.")
    kinds, rank = (("i8",), 1) if split else schema.ARRAYS[where]
    if item.is_virtual or item.external:
        raise InputError(place, "virtual or external storage", "arrays stored in the file itself")
    # The type is read through the low level first: NumPy would import Python objects for a variable-length one.
    if item.id.get_type().get_class() not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.STRING):
        raise InputError(place, f"type {item.dtype}", f"{' or '.join(kinds)}")
    code = item.dtype.kind if item.dtype.kind == "S" else f"{item.dtype.kind}{item.dtype.itemsize}"
    if code not in kinds or not item.dtype.isnative:
        raise InputError(place, f"type {item.dtype}", f"{' or '.join(kinds)} (little-endian)")
    if item.shape is None or len(item.shape) != rank:
        raise InputError(place, f"shape {item.shape}", f"{rank} dimension{'s' if rank > 1 else ''}")
    pipeline = item.id.get_create_plist()
    for index in range(pipeline.get_nfilters()):
        if pipeline.get_filter(index)[0] not in _FILTERS:
            raise InputError(place, "an unknown compression filter", "gzip, shuffle and fletcher32 only")
    if item.nbytes > _MAX_INFLATION * item.id.get_storage_size() + 65_536:
        raise InputError(
            place,
            f"{item.nbytes} bytes declared but {item.id.get_storage_size()} stored",
            "a size that the stored bytes can hold",
        )


def _read_header(objects: dict[str, h5py.Dataset], path: Path) -> schema.Header:
    place = f"{path}:/header"
    if "header" not in objects or objects["header"].shape != (1,):
        raise InputError(place, "missing", "one JSON text", _CONVERT_HINT)
    try:
        values = json.loads(objects["header"][0].decode("utf-8"))
        header = schema.Header.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(place, f"{key}: {first['msg']}", "the header of format version 1") from error
    except (ValueError, RecursionError) as error:
        raise InputError(place, "not a JSON text", "the header of format version 1") from error
    for name, length in (("feature_names", header.n_features),):
        given = len(getattr(header, name))
        if given not in (0, length):
            raise InputError(place, f"{given} {name}", f"none or {length}")
    if header.target == "multiclass" and (len(header.class_names) < 2 or len(header.task_names) != 1):
        raise InputError(place, f"{len(header.class_names)} class names", "one task and at least 2 class names")
    return header


def _decode(raw: NDArray[np.bytes_], path: Path, name: str) -> NDArray[np.str_]:
    try:
        return np.char.decode(raw, "utf-8") if len(raw) else np.zeros(0, dtype="U1")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:/{name}", "ids that are not UTF-8", "UTF-8 text") from error


__all__ = ["Dataset", "DatasetWriter", "ragged_rows", "write_graphset"]
