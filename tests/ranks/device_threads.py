"""Ranks that are threads of this process and share one GPU: distributed training on a device without NCCL.

One thread runs at a time, so they can share the device's stream and workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.ranks.halo import GraphPartBatch
from gcnbatch.backends.cuda.ranks.landing import Landing, nbytes_of
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from tests.ranks.threads import Result, ThreadCommunicator, on_ranks


class DeviceThreads:
    """The methods of `gcnbatch.backends.cuda.runtime.nccl.NcclCommunicator`, through host memory."""

    def __init__(self, backend: CudaBackend, ranks: Any) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._device, self._ranks = backend.device, ranks

    def all_reduce(self, array: DeviceArray, out: DeviceArray | None = None) -> None:
        host = self._device.download(array)
        self._ranks.all_reduce(host)
        self._device.upload(host, array if out is None else out)

    def all_gather(self, array: DeviceArray) -> DeviceArray:
        return self._device.upload(self._ranks.all_gather(self._device.download(array)))

    def exchange(
        self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray | None = None
    ) -> list[DeviceArray]:
        found = self._ranks.exchange([self._device.download(part) for part in parts], rows)
        others = [part for rank, part in enumerate(found) if rank != self.rank]
        if out is not None and out.size:
            self._device.upload(np.concatenate(others), out)
        return [self._device.upload(part) for part in found]

    def exchange_beside(
        self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray, follows: bool = True
    ) -> Ended:
        self.exchange(parts, rows, out)
        return Ended()

    def gather_beside(self, array: DeviceArray) -> Ended:
        return Ended(self._ranks.all_gather(self._device.download(array)))


class Ended:
    """An exchange that has ended before it returns."""

    def __init__(self, found: Any = None) -> None:
        self._found = found

    def arrive(self) -> None:
        pass

    def read(self) -> Any:
        return self._found


class OneAtATime:
    """`ThreadCommunicator` that lets another rank run while this one waits."""

    def __init__(self, ranks: ThreadCommunicator, turn: Lock) -> None:
        self._ranks, self._turn = ranks, turn
        self.rank, self.size = ranks.rank, ranks.size

    def __getattr__(self, name: str) -> Callable[..., Any]:
        exchange = getattr(self._ranks, name)

        def waiting(*about: Any) -> Any:
            self._turn.release()
            try:
                return exchange(*about)
            finally:
                self._turn.acquire()

        return waiting


class Boxes:
    """`gcnbatch.backends.cuda.ranks.mailboxes.Mailboxes` of ranks that see each other's memory."""

    def __init__(self, device: Any, ranks: Any, nbytes: int) -> None:
        self.nbytes, self._own = nbytes, device.zeros(nbytes, np.uint8)
        addresses = ranks.all_gather(np.array(self._own.ptr)).tolist()
        self.of = tuple(DeviceArray(address, (nbytes,), self._own.dtype) for address in addresses)

    def close(self) -> None:
        pass


class OneStream:
    """`gcnbatch.backends.cuda.ranks.landing.Side` on the device's stream."""

    def __init__(self, device: Any) -> None:
        self.launch = device.launch

    def follow(self) -> None:
        pass

    def precede(self) -> None:
        pass

    def close(self) -> None:
        pass


class LandingOfThreads(Landing):
    """Receive buffers of ranks that share a stream: all of them have queued their pushes when one goes on."""

    def __init__(self, device: Any, ranks: Any, rows: int, buffers: int) -> None:
        boxes: Any = Boxes(device, ranks, nbytes_of(rows, buffers))
        super().__init__(device, ranks, boxes, OneStream(device), buffers)
        self._ranks = ranks

    def wait(self, number: int) -> None:
        assert set(self._ranks.all_gather(np.array(number)).tolist()) == {number}

    def wait_for_release(self) -> None:
        self.wait(self._released)


def open_buffers(device: Any, ranks: Any, halos: Any, buffers: int = 2) -> Landing:
    """Return receive buffers, as `gcnbatch.backends.cuda.ranks.landing.open_landing`."""
    rows = max(n_own + sum(halo.received) for n_own, halo in halos)
    return LandingOfThreads(device, ranks, int(ranks.all_gather(np.array(rows)).max()), buffers)


class BackendOfThreads:
    """A backend of one GPU, `DeviceThreads` in place of NCCL, and so many receive buffers; ranks may push no rows."""

    def __init__(self, backend: CudaBackend, buffers: int) -> None:
        self._backend, self._buffers = backend, buffers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def communicator(self, ranks: Any) -> DeviceThreads:
        return DeviceThreads(self._backend, ranks)

    def part_feed(self, part: Any, targets: Any, ranks: Any) -> GraphPartBatch:
        landing = partial(open_buffers, buffers=self._buffers) if self._buffers else lambda *about: None
        return GraphPartBatch(self._backend.device, part, targets, ranks, self._backend._kernel, landing)


def on_device_ranks(
    backend: CudaBackend, size: int, run: Callable[[Any, Any], Result], buffers: int = 2
) -> list[Result]:
    """Call `run` with a backend and a communicator of host arrays on so many ranks; return what each returns."""
    turn, context = Lock(), backend.device._context

    def guarded(ranks: ThreadCommunicator) -> Result:
        with turn:
            context.push()
            try:
                return run(BackendOfThreads(backend, buffers), OneAtATime(ranks, turn))
            finally:
                context.pop()

    return on_ranks(size, guarded)
