"""Values of an HDF5 file, read without libhdf5: chunks by their address, unpacked here with exact sizes.

libhdf5 trusts the size of an unpacked chunk: it reads past the end of a short one. Here each chunk must have its
checksum and unpack to exactly its size, so a damaged chunk is an error and never other memory. `gcnbatch.data.audit`
says where the chunks are.

Training draws graphs in random order, so each batch needs a few rows of many chunks. To unpack whole chunks for them
takes about ten times as long as to read the rows. So a chunk that is unpacked for the second time goes to a file
without a name, and from then on its rows are read from there alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import tempfile
import threading
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from operator import add
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import fileio
from gcnbatch.errors import InputError, MachineError
from gcnbatch.machine import blame
from gcnbatch.text import counted

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3  # HDF5's numbers of the filters
CHECKSUM_BYTES = 4
COPY_HINT = "Copy or convert the data again."
_NEVER, _ONCE = -2, -1  # a chunk that was never unpacked in part, or once


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors about a damaged file into an InputError, and lack of memory into a MachineError."""
    try:
        yield
    except MemoryError as error:
        raise MachineError(str(path), "not enough memory to read it", hint="Lower data.memory_mb.") from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, IndexError) as error:
        blame(error)
        text = str(error.args[-1] if error.args else "").strip() or type(error).__name__
        raise InputError(str(path), f"damaged file ({text.splitlines()[0]})", hint=COPY_HINT) from error


class ChunkCache:
    """The unpacked chunks that were used last, of one file or of several. Threads may share it.

    Parameters
    ----------
    limit : int
        Limit on their bytes.

    Attributes
    ----------
    on_disk : UnpackedFile
        Chunks that were unpacked twice.
    """

    def __init__(self, limit: int) -> None:
        self.on_disk = UnpackedFile()
        self._kept: OrderedDict[tuple[ChunkFile, str, int], NDArray[Any]] = OrderedDict()
        self._kept_bytes, self._limit, self._closed = 0, limit, False
        self._lock = threading.Lock()

    def close(self) -> None:
        """Drop all chunks, and keep none from now on."""
        with self._lock:
            self._closed = True
            self._kept.clear()
            self._kept_bytes = 0
        self.on_disk.close()

    def kept(self, key: tuple[ChunkFile, str, int]) -> NDArray[Any] | None:
        """Return the unpacked chunk of a file, an array and a number, if it is kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: tuple[ChunkFile, str, int], values: NDArray[Any]) -> None:
        """Keep an unpacked chunk; drop the ones that were not used for longest."""
        with self._lock:
            if key in self._kept or self._closed:
                return
            self._kept[key] = values
            self._kept_bytes += values.nbytes
            while self._kept_bytes > self._limit:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes


class ChunkFile:
    """A file that chunks are read from. Threads may share it.

    Parameters
    ----------
    path : path
        A regular file.
    cache : ChunkCache
        Takes the unpacked chunks that are used in part; closed with the file.
    follow : bool
        Follow a symbolic link at the end of the path.
    """

    def __init__(self, path: Path, cache: ChunkCache, follow: bool = True) -> None:
        self.path, self.cache = path, cache
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        self._lock = threading.Lock()

    def close(self, with_cache: bool = True) -> None:
        """Close the file and, with it, its cache; repeated calls do nothing."""
        if with_cache:
            self.cache.close()
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1

    def is_replaced(self) -> bool:
        """Return whether another file has its name now, or none."""
        return not fileio.is_at(self.path, self._descriptor)

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the file; fewer at its end."""
        return os.pread(self._descriptor, size, address)


class RowsOnDisk(ABC):
    """Rows that are read where they are used: ``array[start:stop]``. A subclass has `dtype` and `shape`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the values in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self))
        values = np.empty((max(stop - start, 0), *self.shape[1:]), self.dtype)
        self.read_into(values, start)
        return values

    @abstractmethod
    def read_into(self, values: NDArray[Any], start: int) -> None:
        """Read as many rows as `values` (C-contiguous) has, from row `start` on."""


@dataclass(frozen=True, eq=False)
class StoredArray(RowsOnDisk):
    """An array in the file: ``array[start:stop]`` reads its rows.

    Parameters
    ----------
    file : ChunkFile
    name : str
        Path of the array in the file.
    dtype : np.dtype
    shape, chunk : tuple of int
        Lengths of the array and of a chunk, which may be longer.
    filters : tuple of int
        Filters in the order in which the writer applied them, each at most once.
    addresses, sizes : int64, (n_chunks,)
        Place of each chunk in the file, in row-major order of the chunks.
    """

    file: ChunkFile
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    filters: tuple[int, ...]
    addresses: NDArray[np.int64]
    sizes: NDArray[np.int64]
    _places: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Where each chunk lies in `cache.on_disk`, or how often it was unpacked in part.
        object.__setattr__(self, "_places", np.full(len(self.addresses), _NEVER))

    def read_into(self, values: NDArray[Any], start: int) -> None:
        """Read rows as `RowsOnDisk` says, chunk by chunk."""
        position, stop = start, start + len(values)
        while position < stop:
            row, within = divmod(position, self.chunk[0])
            end = min(position - within + self.chunk[0], stop)
            part = values[position - start : end - start]
            if not self._is_narrow:
                self._read_across(part, row, within)
            elif not self._read_unpacked(part, row, within):
                part[...] = self._unpacked(row, len(part))[within : within + len(part)]
            position = end

    @cached_property
    def _is_narrow(self) -> bool:
        """Whether a chunk is as wide as the array."""
        return self.chunk[1:] == self.shape[1:]

    @cached_property
    def _row_bytes(self) -> int:
        return math.prod(self.chunk[1:]) * self.dtype.itemsize

    def _read_unpacked(self, values: NDArray[Any], number: int, within: int) -> bool:
        """Read rows of a chunk from its row `within` on, if it lies unpacked on disk."""
        place = self._places.item(number)
        if place < 0 or values.dtype != self.dtype:
            return False
        return self.file.cache.on_disk.read_into(values, place + within * self._row_bytes)

    def _read_across(self, values: NDArray[Any], row: int, within: int) -> None:
        """Read rows of all chunks side by side in this row of chunks, from the chunks' row `within` on."""
        corners = [range(0, length, step) for length, step in zip(self.shape[1:], self.chunk[1:], strict=True)]
        across = math.prod(map(len, corners))
        for column, corner in enumerate(itertools.product(*corners)):
            part = values[(slice(None), *map(slice, corner, map(add, corner, self.chunk[1:])))]
            inside = (slice(within, within + len(part)), *map(slice, part.shape[1:]))
            part[...] = self._unpacked(row * across + column, len(part))[inside]

    def _unpacked(self, number: int, rows: int) -> NDArray[Any]:
        """Return an unpacked chunk of which `rows` rows are wanted; keep it if these are not all."""
        key = (self.file, self.name, number)
        if (kept := self.file.cache.kept(key)) is not None:
            return kept
        raw = self.file.read(int(self.addresses[number]), int(self.sizes[number]))
        try:
            values = unpack(raw, self.filters, self.dtype.itemsize, math.prod(self.chunk) * self.dtype.itemsize)
        except (ValueError, zlib.error) as error:
            raise InputError(f"{self.file.path}:/{self.name}", f"chunk {number}: {error}", hint=COPY_HINT) from error
        unpacked = values.view(self.dtype).reshape(self.chunk)
        if rows < self.chunk[0]:
            if self._places[number] == _NEVER:
                self._places[number] = _ONCE
            elif self._places[number] == _ONCE and (place := self.file.cache.on_disk.add(values)) is not None:
                self._places[number] = place
            self.file.cache.keep(key, unpacked)
        return unpacked


def unpack(raw: bytes, filters: tuple[int, ...], itemsize: int, size: int) -> NDArray[np.uint8]:
    """Return the `size` bytes of a chunk; undo the writer's filters from last to first.

    Raises
    ------
    ValueError, zlib.error
        When the checksum is wrong or the length is not `size`.
    """
    data: Any = raw
    for code in reversed(filters):
        if code == FLETCHER32:
            data = _checked(data)
        elif code == DEFLATE:
            data = _inflated(data, size + CHECKSUM_BYTES)
        else:
            data = _unshuffled(data, itemsize)
    if len(data) != size:
        raise ValueError(f"{counted(len(data), 'byte')} unpacked instead of {size}")
    return np.frombuffer(data, np.uint8)


def _inflated(data: Any, most: int) -> bytes:
    """Return what zlib's data unpack to; stop at `most` bytes, as a few bytes can unpack to a gigabyte."""
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, most + 1)
    if len(unpacked) > most:
        raise ValueError(f"more than {most} bytes unpacked")
    if not stream.eof:
        raise ValueError("compressed data that end too early")
    return unpacked


def _checked(data: Any) -> Any:
    """Return the data before their checksum.

    Raises
    ------
    ValueError
    """
    if len(data) < CHECKSUM_BYTES or data[-CHECKSUM_BYTES:] != fletcher32(data[:-CHECKSUM_BYTES]):
        raise ValueError("wrong checksum")
    return data[:-CHECKSUM_BYTES]


def fletcher32(data: Any) -> bytes:
    """Return HDF5's Fletcher checksum: sums modulo 65535 of big-endian 16-bit words, and of those sums."""
    words = np.zeros(-(-len(data) // 2), np.uint64)
    words[: len(data) // 2] = np.frombuffer(data, ">u2", len(data) // 2)
    if len(data) % 2:
        words[-1] = data[-1] << 8
    weights = np.arange(len(words), 0, -1, dtype=np.uint64)  # a word is in the sums of itself and all words after it
    low, high = _folded(int(words.sum())), _folded(int(words @ weights))
    return (high << 16 | low).to_bytes(CHECKSUM_BYTES, "little")


def _folded(total: int) -> int:
    """Return `total` modulo 65535; HDF5's way of folding leaves 65535 for multiples other than 0."""
    return (total - 1) % 65535 + 1 if total else 0


def _unshuffled(data: Any, itemsize: int) -> Any:
    """Return items whose bytes were stored by position: all first bytes, all second bytes, …; then what is left."""
    if itemsize == 1:
        return data
    items, left = divmod(len(data), itemsize)
    shuffled = np.frombuffer(data, np.uint8, items * itemsize).reshape(itemsize, items)
    values = shuffled.T.tobytes()
    return values + bytes(data[-left:]) if left else values


class UnpackedFile:
    """A file without a name in the folder of temporary files: it vanishes with the process. Threads may share it."""

    def __init__(self) -> None:
        self._stream: IO[bytes] | None = None
        self._bytes, self._process, self._stopped = 0, os.getpid(), False
        self._lock = threading.Lock()

    def add(self, values: NDArray[Any]) -> int | None:
        """Write C-contiguous values and return their place; None if there is no room, or in a forked process."""
        if self._stopped or os.getpid() != self._process:
            return None
        with self._lock:
            try:
                if self._stream is None:
                    self._stream = tempfile.TemporaryFile(dir=folder(), buffering=0)  # noqa: SIM115 - close() does
                place = self._bytes
                self._bytes += values.nbytes
                rest = values.data.cast("B")
                while rest:
                    rest = rest[os.pwrite(self._stream.fileno(), rest, self._bytes - len(rest)) :]
            except OSError:  # no room: chunks are unpacked again, as before
                self._stopped = True
                return None
        return place

    def read_into(self, values: NDArray[Any], place: int) -> bool:
        """Read C-contiguous values from their place; False when that failed."""
        rest = values.data.cast("B")
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed by another thread
            return os.preadv(self._stream.fileno(), [rest], place) == len(rest)  # type: ignore[union-attr]
        return False

    def close(self) -> None:
        """Delete the file, and write none from now on."""
        with self._lock:
            self._stopped = True
            if self._stream is not None:
                self._stream.close()


def folder() -> str | None:
    """Return the folder of the file: TMPDIR, else /var/tmp, which is on a disk where /tmp is often in memory."""
    on_disk = "/var/tmp"  # noqa: S108 - the file has no name there
    return None if "TMPDIR" in os.environ or not os.access(on_disk, os.W_OK) else on_disk
