"""Arguments of many calls that are sent once to each process of a pool: `Shared`, its memory and its pickles."""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import threading
from collections.abc import Container, Sequence
from contextlib import suppress
from itertools import count
from typing import IO, Any, NamedTuple
from weakref import WeakValueDictionary

from gcnbatch.machine import free_bytes

_LARGE, _ALIGNED = 1 << 16, 64  # bytes of an array that processes share, and of a cache line


class Shared:
    """An argument of many calls, which is sent once to each process.

    A process keeps it to its end. Its large arrays lie in the pool's memory and are read-only in a process. The value's
    attributes that are in the result of a call come back as what they are here, not as copies.

    Parameters
    ----------
    value : object
    """

    def __init__(self, value: Any) -> None:
        self._value, self.key = value, next(_keys)
        _shared[self.key] = self

    def load(self) -> Any:
        """Return the value; callers must not change it."""
        return self._value


_keys = count()
_shared: WeakValueDictionary[int, Shared] = WeakValueDictionary()  # here, those made here; in a worker, all received
_received: dict[int, tuple[Shared, str]] = {}  # attributes of values, by their addresses, with their names; in a worker


class Pickled(NamedTuple):
    """A shared value for a process that has not received it.

    Parameters
    ----------
    value : bytes
        Without its large arrays.
    first, size : int
        Where these lie in the pool's memory, in bytes.
    places : list of (int, int)
        Where each begins and ends, counted from `first`.
    """

    value: bytes
    first: int = 0
    size: int = 0
    places: Sequence[tuple[int, int]] = ()

    def load(self, memory: int) -> Any:
        """Return the value, its large arrays read-only."""
        buffers: list[memoryview] = []
        if self.size:
            _allow(self.size)
            whole = memoryview(mmap.mmap(memory, self.size, access=mmap.ACCESS_READ, offset=self.first))
            buffers = [whole[start:end] for start, end in self.places]
        return pickle.loads(self.value, buffers=buffers)


def _allow(size: int) -> None:
    """Raise the limit on the address space of this process, so that memory of the pool does not count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        more = soft + size
        resource.setrlimit(resource.RLIMIT_AS, (more if hard == resource.RLIM_INFINITY else min(more, hard), hard))


class Memory:
    """A file in memory that all processes of a pool can map. Where there are none, values are sent to each process.

    Attributes
    ----------
    number : int
        File descriptor, or -1.
    """

    def __init__(self) -> None:
        self.number, self._end, self._lock = -1, 0, threading.Lock()
        self._known: dict[int, Pickled] = {}
        with suppress(AttributeError, OSError):  # Linux has such files, but a sandbox may refuse them
            self.number = os.memfd_create("gcnbatch")

    def pickled(self, shared: Shared) -> Pickled:
        """Return the value; its large arrays are written at the first call."""
        with self._lock:
            if shared.key not in self._known:
                self._known[shared.key] = self._written(shared.load())
            return self._known[shared.key]

    def _written(self, value: Any) -> Pickled:
        large: list[memoryview] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            if (raw := buffer.raw()).nbytes >= _LARGE:
                large.append(raw)
                return False
            return True

        if self.number >= 0:
            pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=is_small)
            with suppress(OSError):
                if sum(array.nbytes for array in large) < free_bytes():
                    return Pickled(pickled, *self._append(large))
        return Pickled(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def _append(self, arrays: Sequence[memoryview]) -> tuple[int, int, list[tuple[int, int]]]:
        """Write arrays; return where they lie, as `Pickled` says."""
        first, places = self._end, []
        with open(self.number, "wb", closefd=False) as file:
            file.seek(first)
            for array in arrays:
                start = file.tell() - first
                places.append((start, start + array.nbytes))
                file.write(array)
                file.write(bytes(-array.nbytes % _ALIGNED))
            size = file.tell() - first
            file.write(bytes(-size % mmap.ALLOCATIONGRANULARITY))
            self._end = file.tell()
        return first, size, places

    def close(self) -> None:
        """Free what no process maps; it may be called again."""
        if self.number >= 0:
            os.close(self.number)
        self.number = -1


_memory = -1  # in a worker, that of its pool


def attach(memory: int) -> None:
    """Take note of the pool's memory, a file descriptor or -1; a worker calls."""
    global _memory  # noqa: PLW0603 -- as global as the process
    _memory = memory


def _receive(key: int, pickled: Pickled) -> Shared:
    """Keep a value that arrives in a worker."""
    value = pickled.load(_memory)
    shared = _shared[key] = Shared.__new__(Shared)
    shared._value, shared.key = value, key
    _received.update({id(part): (shared, name) for name, part in {"": value, **getattr(value, "__dict__", {})}.items()})
    return shared


def _known(key: int) -> Shared:
    return _shared[key]


def _part(key: int, name: str) -> Any:
    value = _shared[key].load()
    return getattr(value, name) if name else value


class CallPickler(pickle.Pickler):
    """Pickler of a call to a process that has received some values already."""

    def __init__(self, file: IO[bytes], received: Container[int], memory: Memory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._received, self._memory = received, memory
        self.sent: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        """Reduce a shared value to its number, at the first time with what it is."""
        if not isinstance(value, Shared):
            return NotImplemented
        if value.key in self._received:
            return _known, (value.key,)
        self.sent.add(value.key)
        return _receive, (value.key, self._memory.pickled(value))


class AnswerPickler(pickle.Pickler):
    """Pickler of an answer."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce a part of a shared value to its name."""
        if (found := _received.get(id(value))) is None:
            return NotImplemented
        shared, name = found
        return _part, (shared.key, name)
