"""Communicators: collective operations that all ranks call in the same order.

`Communicator` is what backends and runners see. `HostCommunicator` moves host arrays with MPI. A communicator of device
arrays has the same methods.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_GATHERED_BYTES = 1 << 16  # of an array whose sum every rank computes itself
_SPINS = 2_000  # tests of a request before a rank sleeps, about 1 ms
_NAP_SECONDS = 0.0005
_HEAD_BYTES = 256


class Communicator(Protocol):
    """Collective operations on arrays of the communicator's memory.

    Every rank calls the same operations in the same order, with arrays of the same shape and type unless stated
    otherwise. Sums are added in the order of the ranks, so equal inputs on equally many ranks give equal bits.
    """

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def all_reduce(self, array: Any) -> None:
        """Replace a contiguous array by its sum over all ranks, in place."""

    def all_gather(self, array: Any) -> Any:
        """Return the arrays of all ranks: (size, …)."""

    def broadcast(self, array: Any) -> None:
        """Overwrite a contiguous array by that of rank 0, in place."""

    def exchange(self, parts: Sequence[Any], rows: Sequence[int]) -> list[Any]:
        """Send ``parts[r]`` (rows, P) to each rank r; return what each sent here, (rows[r], P), in order of the ranks.

        The parts have one type and one P. Those of this rank itself are returned, too.
        """


class CommandEndedError(Exception):
    """Rank 0 has ended the command while this rank waited for the others."""


class HostCommunicator:
    """`Communicator` of NumPy arrays, over MPI.

    MPI lets a library choose the order of an all-reduce by message size and number of ranks, so its own sums may
    differ from one library or topology to the next. Here, small arrays are gathered and added in the order of the
    ranks. Of a large one, each rank adds the parts of a share and then gathers the shares: the same sums, and each
    rank sends and receives about twice the array, however many ranks there are.

    A rank waits with non-blocking calls: MPI's blocking ones take a whole processor, and never end if a rank has.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Used by nothing else meanwhile.
    ended : callable
        Whether the command has ended.
    """

    def __init__(self, comm: Any, ended: Callable[[], bool] = lambda: False) -> None:
        self._comm, self._ended = comm, ended
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())
        self._head = np.zeros(_HEAD_BYTES, np.uint8)

    def all_reduce(self, array: NDArray[Any]) -> None:
        flat = array.reshape(-1)
        assert np.shares_memory(flat, array) or not array.size, "a contiguous array"
        if array.nbytes <= _GATHERED_BYTES:
            flat[...] = _sum(self.all_gather(flat))
            return
        share = -(-flat.size // self.size)
        sent = np.zeros((self.size, share), array.dtype)
        sent.reshape(-1)[: flat.size] = flat
        received = np.empty_like(sent)
        self._wait(self._comm.Ialltoall(sent, received))
        flat[...] = self.all_gather(_sum(received)).reshape(-1)[: flat.size]

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        own = np.ascontiguousarray(array)
        gathered = np.empty((self.size, *own.shape), own.dtype)
        self._wait(self._comm.Iallgather(own, gathered))
        return gathered

    def broadcast(self, array: NDArray[Any]) -> None:
        self._wait(self._comm.Ibcast(array))

    def exchange(self, parts: Sequence[NDArray[Any]], rows: Sequence[int]) -> list[NDArray[Any]]:
        like = parts[0]
        received = [np.empty((count, *like.shape[1:]), like.dtype) for count in rows]
        received[self.rank] = parts[self.rank]
        others = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self._comm.Irecv(received[rank], rank) for rank in others if received[rank].size]
        sent = [np.ascontiguousarray(parts[rank]) for rank in others]
        requests += [self._comm.Isend(part, rank) for rank, part in zip(others, sent, strict=True) if part.size]
        for request in requests:
            self._wait(request)
        return received

    # -------------------------------------------------------------------------------------------- calls

    def send_call(self, call: Any) -> None:
        """Send a call from rank 0 to all others, which take it with `receive_call`."""
        raw = np.frombuffer(pickle.dumps(call, pickle.HIGHEST_PROTOCOL), np.uint8)
        self._head[:8] = np.frombuffer(np.int64(raw.size).tobytes(), np.uint8)
        fits = raw.size <= _HEAD_BYTES - 8
        if fits:
            self._head[8 : 8 + raw.size] = raw
        self.broadcast(self._head)
        if not fits:
            self.broadcast(raw.copy())

    def receive_call(self) -> Any:
        """Return the next call of rank 0."""
        self.broadcast(self._head)
        size = int(self._head[:8].view(np.int64)[0])
        if size <= _HEAD_BYTES - 8:
            return pickle.loads(self._head[8 : 8 + size].tobytes())
        raw = np.empty(size, np.uint8)
        self.broadcast(raw)
        return pickle.loads(raw.tobytes())

    def _wait(self, request: Any) -> None:
        spins = 0
        while not request.Test():
            spins += 1
            if spins < _SPINS:
                os.sched_yield()
                continue
            if self._ended():
                raise CommandEndedError
            time.sleep(_NAP_SECONDS)


def _sum(arrays: NDArray[Any]) -> NDArray[Any]:
    """Return the sum over the first axis, one array after the other."""
    total: NDArray[Any] = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
