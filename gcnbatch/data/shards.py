"""A data set in a folder of shards: HDF5 files of consecutive graphs, and an index that says which.

Each shard is a data set of its own. `open_set` opens a file or such a folder and returns its arrays by path; those of a
folder are joined, so that the reader sees one set, with the rows in the order of the index. `gcnbatch.data.sharding`
writes such folders.

The folder is not trusted: the index is read as strictly as the header of a file, and names files of this folder only;
each shard is audited like any file, and must have the digest, the header and the numbers of rows that the index says.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from gcnbatch import fileio
from gcnbatch.data import audit, checks, schema
from gcnbatch.data.chunks import ChunkCache, ChunkFile, RowsOnDisk, StoredArray
from gcnbatch.data.graphs import Int64
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath

INDEX = "shards.json"
MAX_SHARDS = 256  # each keeps a file open
_INDEX_BYTES = 4 << 20
_SHARD_NAME, _SPLITS_NAME = r"shard-[0-9]{5}\.h5", r"splits-[0-9a-f]{16}\.h5"
WRITTEN = re.compile(f"{_SHARD_NAME}|{_SPLITS_NAME}")  # files beside the index
_HINT = "Copy the folder again, or write it anew with 'gcnbatch data shard'."

Count = Annotated[int, Field(ge=0, le=2**62)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StoredFile(_Record):
    """A file of the folder: its name, SHA-256 and size."""

    file: Annotated[str, Field(pattern=f"^(?:{_SHARD_NAME}|{_SPLITS_NAME})$")]
    sha256: Digest
    bytes: Count


class Shard(StoredFile):
    """A shard with its numbers of graphs, nodes and edges."""

    file: Annotated[str, Field(pattern=f"^{_SHARD_NAME}$")]
    graphs: Count
    nodes: Count
    edges: Count


class Index(_Record):
    """Contents of the index. The rows of the set are those of the shards in this order; `splits` holds its splits."""

    format: Literal["gcnbatch shards"] = "gcnbatch shards"
    version: Literal[1] = 1
    header: schema.Header
    shards: Annotated[tuple[Shard, ...], Field(strict=False, min_length=1, max_length=MAX_SHARDS)]
    splits: StoredFile | None = None


class OpenSet(NamedTuple):
    """Open files of a data set, its header and its other arrays by path."""

    files: tuple[ChunkFile, ...]
    header: schema.Header
    arrays: dict[str, Stored]


def fingerprint(path: StrPath) -> str:
    """Return the SHA-256 of a data set: of its file, or of the index of its shards, which holds their digests."""
    return fileio.sha256(Path(path) / INDEX if Path(path).is_dir() else path)


def is_sharded(path: Path) -> bool:
    """Return whether the path is a folder with an index of shards."""
    return path.is_dir() and (path / INDEX).exists()


def open_set(path: Path, cache_bytes: int, verify: bool) -> OpenSet:
    """Open a data set: a file, or a folder of shards.

    Parameters
    ----------
    path : Path
    cache_bytes : int
        Limit on the unpacked chunks that are kept, of all files together.
    verify : bool
        Compare the digests of shards with the index, which reads them once.

    Raises
    ------
    InputError
        Names the shard that is missing, damaged, not a regular file, or another one than the index says.
    """
    cache = ChunkCache(cache_bytes)
    if path.is_dir():
        return _open_folder(path, cache, verify)
    file, stored = audit.open_file(path, cache)
    try:
        return OpenSet((file,), audit.read_header(stored.pop("header", None), path), dict(stored))
    except BaseException:
        file.close()
        raise


def read_index(folder: Path) -> Index:
    """Read and check the index of a folder.

    Raises
    ------
    InputError
    """
    path, expected = folder / INDEX, "an index of shards"
    if not path.exists():
        hint = "'gcnbatch data shard' writes the index last: run it again if it was stopped."
        raise InputError(str(folder), f"a folder without {INDEX}", "an HDF5 file or a folder of shards", hint)
    with fileio.open_regular(path, expected, follow=False) as stream:
        raw = stream.read(_INDEX_BYTES + 1)
    if len(raw) > _INDEX_BYTES:
        raise InputError(str(path), f"more than {_INDEX_BYTES} bytes", expected)
    index = audit.from_json(raw, str(path), Index, expected)
    checks.check_header(path, index.header)
    names = [shard.file for shard in index.shards]
    for name in names:
        if names.count(name) > 1:
            raise InputError(str(path), f"{name} stands there twice", "each shard once", _HINT)
    for place in sorted(folder.iterdir()):
        if re.fullmatch(_SHARD_NAME, place.name) and place.name not in names:
            raise InputError(str(place), f"not in {INDEX}", "the shards of the index", _HINT)
    return index


def _open_folder(folder: Path, cache: ChunkCache, verify: bool) -> OpenSet:
    index = read_index(folder)
    files: list[ChunkFile] = []
    parts: list[dict[str, StoredArray]] = []
    arrays: dict[str, Stored] = {}
    try:
        for shard in index.shards:
            found = _open_file(folder, shard, cache, verify, files)
            _check_shard(folder / shard.file, index, shard, found, parts[0] if parts else found)
            parts.append(found)
        if index.splits is not None:
            found = _open_file(folder, index.splits, cache, verify, files)
            if wrong := [name for name in found if not name.startswith("splits/")]:
                raise InputError(f"{folder / index.splits.file}:/{wrong[0]}", "not a split", "arrays of splits", _HINT)
            arrays.update(found)
        for name in parts[0]:
            arrays[name] = _joined(name, parts, index.shards)
    except BaseException:
        for file in files:
            file.close()
        raise
    return OpenSet(tuple(files), index.header, arrays)


def _open_file(
    folder: Path, stored: StoredFile, cache: ChunkCache, verify: bool, files: list[ChunkFile]
) -> dict[str, StoredArray]:
    """Open a file of the index and return its arrays; it is added to `files`."""
    path = folder / stored.file
    with fileio.open_regular(path, f"a file of {folder / INDEX}", follow=False) as stream:
        size = stream.seek(0, 2)
    if size != stored.bytes:
        raise InputError(str(path), f"{size} bytes", f"{stored.bytes}, as in {INDEX}", _HINT)
    if verify and fileio.sha256(path) != stored.sha256:
        raise InputError(str(path), "another SHA-256", f"that of {INDEX}", _HINT)
    file, arrays = audit.open_file(path, cache, follow=False)
    files.append(file)
    return arrays


def _check_shard(
    path: Path, index: Index, shard: Shard, arrays: dict[str, StoredArray], first: Mapping[str, StoredArray]
) -> None:
    """Check that a shard has the header and the rows of the index, and the layout of the first shard."""
    if audit.read_header(arrays.pop("header", None), path) != index.header:
        raise InputError(f"{path}:/header", "another header", f"that of {INDEX}", _HINT)
    checks.check_layout(path, index.header, arrays)
    counts = {
        "graphs": len(arrays["graphs/node_ptr"]) - 1,
        "nodes": len(arrays["nodes/x"]) if "nodes/x" in arrays else len(arrays["nodes/x_csr/indptr"]) - 1,
        "edges": len(arrays["edges/src"]),
    }
    for what, count in counts.items():
        if count != getattr(shard, what):
            raise InputError(str(path), f"{count} {what}", f"{getattr(shard, what)}, as in {INDEX}", _HINT)
    for name in sorted(arrays.keys() ^ first.keys()):
        there = "present" if name in arrays else "missing"
        raise InputError(f"{path}:/{name}", there, "the arrays of the first shard, and no splits", _HINT)
    for name, array in arrays.items():
        if name.startswith("splits/"):
            raise InputError(f"{path}:/{name}", "present", "splits in a file of their own", _HINT)
        if array.dtype != first[name].dtype and array.dtype.kind != "S":
            raise InputError(
                f"{path}:/{name}", f"type {array.dtype}", f"{first[name].dtype}, as in the first shard", _HINT
            )


def _joined(name: str, parts: Sequence[dict[str, StoredArray]], shards: Sequence[Shard]) -> Stored:
    arrays = [part[name] for part in parts]
    match name:
        case "graphs/node_ptr":
            return JoinedPointer(arrays, [shard.nodes for shard in shards])
        case "graphs/edge_ptr":
            return JoinedPointer(arrays, [shard.edges for shard in shards])
        case "nodes/x_csr/indptr":
            return JoinedPointer(arrays, [len(part["nodes/x_csr/data"]) for part in parts])
        case "graphs/counts/indptr":
            return JoinedPointer(arrays, [len(part["graphs/counts/data"]) for part in parts])
        case "graphs/smiles_ptr":
            return JoinedPointer(arrays, [len(part["graphs/smiles"]) for part in parts])
    return JoinedArray(arrays)


class JoinedArray(RowsOnDisk):
    """The rows of several arrays, one after the other: ``array[start:stop]`` reads rows. Texts get one width.

    Parameters
    ----------
    parts : sequence of StoredArray
        At least one; of the same type (but for the width of texts) and number of columns.
    """

    def __init__(self, parts: Sequence[StoredArray]) -> None:
        self._parts = parts
        self._start = [0, *accumulate(map(len, parts))]
        self.dtype = max((part.dtype for part in parts), key=lambda dtype: dtype.itemsize)
        self.shape = (self._start[-1], *parts[0].shape[1:])

    def read_into(self, values: NDArray[Any], start: int) -> None:
        """Read rows as `RowsOnDisk` says, from one part after the other."""
        position, stop = start, start + len(values)
        while position < stop:
            part = bisect_right(self._start, position) - 1
            end = min(stop, self._start[part + 1])
            self._parts[part].read_into(values[position - start : end - start], position - self._start[part])
            position = end


class JoinedPointer:
    """Pointers of several files as one: that of each file goes on where the one before ends.

    ``[0, 3, 4]`` and ``[0, 2]`` become ``[0, 3, 4, 6]``.

    Parameters
    ----------
    parts : sequence of StoredArray
        int64, each with at least one entry.
    totals : sequence of int
        The number of rows that each pointer covers.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, parts: Sequence[StoredArray], totals: Sequence[int]) -> None:
        self._parts, self._totals = parts, totals
        self._start = [0, *accumulate(len(part) - 1 for part in parts)]  # segments before each part
        self._base = [0, *accumulate(totals)]
        self.shape = (self._start[-1] + 1,)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the values in memory."""
        return 8 * len(self)

    def __getitem__(self, rows: slice) -> Int64:
        """Return entries of the joined pointer.

        Raises
        ------
        InputError
            When a part that is read does not begin at 0, end at its total, or stay between.
        """
        start, stop, _ = rows.indices(len(self))
        values = np.empty(max(stop - start, 0), np.int64)
        position = start
        while position < stop:
            # Entry 0 of a later part repeats the last one of the part before.
            part = bisect_right(self._start, max(position - 1, 0), hi=len(self._parts)) - 1
            first = self._start[part]
            end = min(stop, first + len(self._parts[part]))
            values[position - start : end - start] = self._read(part, position - first, end - first) + self._base[part]
            position = end
        return values

    def _read(self, number: int, start: int, stop: int) -> Int64:
        """Return entries of one part; entry 0 is checked with entry 1."""
        part, total = self._parts[number], self._totals[number]
        begin = 0 if start == 1 else start
        found: Int64 = part[begin:stop]
        if begin == 0 and found[0] != 0:
            raise InputError(f"{part.file.path}:/{part.name}[0]", str(found[0]), "0")
        if stop == len(part) and found[-1] != total:
            expected = f"{total}, the number of rows that it covers"
            raise InputError(f"{part.file.path}:/{part.name}[{stop - 1}]", str(found[-1]), expected)
        wrong = (found < 0) | (found > total)
        if wrong.any():
            index = int(np.argmax(wrong))
            raise InputError(f"{part.file.path}:/{part.name}[{begin + index}]", str(found[index]), f"0 to {total}")
        return found[start - begin :]


Stored: TypeAlias = StoredArray | JoinedArray | JoinedPointer
