"""Values of an HDF5 file, read without libhdf5: chunks by their address, unpacked here with exact sizes.

libhdf5 trusts the size of an unpacked chunk: it reads past the end of a short one. Here each chunk must have its
checksum and unpack to exactly its size, so a damaged chunk is an error and never other memory. `gcnbatch.data.audit`
says where the chunks are.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import locks
from gcnbatch.errors import InputError, MachineError

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3  # HDF5's numbers of the filters
CHECKSUM_BYTES = 4
COPY_HINT = "Copy or convert the data again."


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors about a damaged file into an InputError, and lack of memory into a MachineError."""
    try:
        yield
    except MemoryError as error:
        raise MachineError(str(path), "not enough memory to read it", hint="Lower data.memory_mb.") from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, IndexError) as error:
        text = str(error.args[-1] if error.args else "").strip() or type(error).__name__
        raise InputError(str(path), f"damaged file ({text.splitlines()[0]})", hint=COPY_HINT) from error


class ChunkFile:
    """A file that chunks are read from, and the last unpacked chunks that were used in part. Threads may share it.

    Parameters
    ----------
    path : path
        A regular file.
    cache_bytes : int
        Limit on the unpacked chunks that are kept.
    """

    def __init__(self, path: Path, cache_bytes: int) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._kept: OrderedDict[tuple[str, int], NDArray[Any]] = OrderedDict()
        self._kept_bytes, self._limit = 0, cache_bytes
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the file; repeated calls do nothing."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1
            self._kept.clear()
            self._kept_bytes = 0

    def is_replaced(self) -> bool:
        """Return whether another file has its name now, or none."""
        return not locks.is_at(self.path, self._descriptor)

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the file; fewer at its end."""
        return os.pread(self._descriptor, size, address)

    def kept(self, key: tuple[str, int]) -> NDArray[Any] | None:
        """Return an unpacked chunk that is kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: tuple[str, int], values: NDArray[Any]) -> None:
        """Keep an unpacked chunk; drop the ones that were not used for longest."""
        with self._lock:
            if key in self._kept or self._descriptor < 0:
                return
            self._kept[key] = values
            self._kept_bytes += values.nbytes
            while self._kept_bytes > self._limit:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes


@dataclass(frozen=True, eq=False)
class StoredArray:
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

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the values in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for number, corner in self._chunks_of(start, stop):
            first, last = max(corner[0], start), min(corner[0] + self.chunk[0], stop)
            rest = tuple(slice(at, at + step) for at, step in zip(corner[1:], self.chunk[1:], strict=True))
            inside = tuple(
                slice(0, min(step, length - at))
                for at, step, length in zip(corner[1:], self.chunk[1:], self.shape[1:], strict=True)
            )
            whole = start <= corner[0] and corner[0] + self.chunk[0] <= stop
            unpacked = self._unpacked(number, keep=not whole)
            values[(slice(first - start, last - start), *rest)] = unpacked[
                (slice(first - corner[0], last - corner[0]), *inside)
            ]
        return values

    def _chunks_of(self, start: int, stop: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield number and first position of the chunks that hold the rows start … stop-1."""
        grid = [-(-length // step) for length, step in zip(self.shape, self.chunk, strict=True)]
        across = math.prod(grid[1:])
        for row in range(start // self.chunk[0], -(-stop // self.chunk[0]) if stop > start else 0):
            for column, at in enumerate(itertools.product(*map(range, grid[1:]))):
                corner = tuple(i * step for i, step in zip((row, *at), self.chunk, strict=True))
                yield row * across + column, corner

    def _unpacked(self, number: int, keep: bool) -> NDArray[Any]:
        key = (self.name, number)
        if (kept := self.file.kept(key)) is not None:
            return kept
        raw = self.file.read(int(self.addresses[number]), int(self.sizes[number]))
        try:
            values = unpack(raw, self.filters, self.dtype.itemsize, math.prod(self.chunk) * self.dtype.itemsize)
        except (ValueError, zlib.error) as error:
            raise InputError(f"{self.file.path}:/{self.name}", f"chunk {number}: {error}", hint=COPY_HINT) from error
        unpacked = values.view(self.dtype).reshape(self.chunk)
        if keep:
            self.file.keep(key, unpacked)
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
        raise ValueError(f"{len(data)} bytes unpacked instead of {size}")
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
