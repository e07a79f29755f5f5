"""NCCL through nccl4py: the communicator of device arrays, on PyCUDA's context and the device's stream.

Nothing here runs before several ranks share a model on GPUs. nccl4py's plain bindings take addresses, so no array
library is needed. Calls are queued on the stream and return at once, like kernel launches. `exchange_beside` has a
stream of its own.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime.events import Observation
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.side_stream import SideStream
from gcnbatch.errors import BackendUnavailable, MachineError
from gcnbatch.ranks.communicator import Communicator

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

INSTALL = "Install it: pip install 'gcnbatch[nccl13]', or nccl12 for drivers older than 580"
NEEDED_BYTES = 512 << 20  # that NCCL takes at most for a communicator of one host
_TYPES = {"int32": "Int32", "int64": "Int64", "float32": "Float32", "float64": "Float64", "uint8": "Uint8"}


def load_nccl() -> Any:
    """Return nccl4py's plain bindings, with NCCL's library loaded.

    Raises
    ------
    BackendUnavailable
        When nccl4py or the library is not installed.
    """
    try:
        calls = import_module("nccl.bindings.nccl")
    except ImportError as error:
        raise BackendUnavailable("NCCL", "nccl4py is not installed", hint=f"{INSTALL}.") from error
    try:
        calls.get_version()
    except Exception as error:  # a class of cuda-pathfinder, which nccl4py brings
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BackendUnavailable("NCCL", f"its library cannot be loaded ({reason})", hint=f"{INSTALL}.") from error
    return calls


def version(calls: Any) -> str:
    """Return the library's version, such as ``"2.28.9"``."""
    number = int(calls.get_version())
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


class Arriving:
    """An exchange on the side stream; it keeps its arrays until they may be reused."""

    def __init__(self, side: SideStream, arrays: object) -> None:
        self._side, self._arrays = side, arrays

    def arrive(self) -> None:
        """Let kernels launched from now on wait for the exchange; once."""
        self._side.precede()
        del self._arrays


class Gathering:
    """An all-gather on the side stream whose result the host reads."""

    def __init__(self, side: SideStream, arrays: object, pinned: NDArray[Any]) -> None:
        self._side, self._arrays, self._pinned = side, arrays, pinned

    def read(self) -> NDArray[Any]:
        """Wait for it, not for kernels on the device's stream; return the arrays of all ranks, (size, …), once."""
        self._side.synchronize()
        del self._arrays
        return self._pinned.copy()


class NcclCommunicator:
    """`gcnbatch.ranks.communicator.Communicator` of arrays on this rank's device; all ranks create it together.

    NCCL chooses the order of its sums by size, ranks and the links between the GPUs. The sums are equal to the bit on
    all ranks, and in later runs on the same machine.

    Parameters
    ----------
    device : Device
        A different one on each rank.
    ranks : Communicator
        Of host arrays: it carries NCCL's identifier.

    Raises
    ------
    BackendUnavailable
        NCCL is missing.
    MachineError
        NCCL cannot connect the devices.
    """

    def __init__(self, device: Device, ranks: Communicator) -> None:
        self._device, self._calls = device, load_nccl()
        self.rank, self.size = ranks.rank, ranks.size
        calls = self._calls
        device.release()  # NCCL takes memory of its own, beside the pool
        identifier = np.zeros(len(bytes(calls.UniqueId())), np.uint8)
        with self._errors():
            if self.rank == 0:
                identifier[:] = np.frombuffer(bytes(calls.get_unique_id()), np.uint8)
            ranks.broadcast(identifier)
            unique = calls.UniqueId.from_buffer(identifier.tobytes())
            self._comm = calls.comm_init_rank(self.size, unique, self.rank)
            atexit.register(self._abort)
        self._sum, self._stream = int(calls.RedOp.Sum), int(device.stream.handle)
        self._gathered = np.empty(0, np.uint8)  # pinned; `gather_beside`
        self._of = {np.dtype(name): int(getattr(calls.DataType, of)) for name, of in _TYPES.items()}

    def all_reduce(self, array: DeviceArray, out: DeviceArray | None = None) -> None:
        """As `Communicator.all_reduce`; with `out`, the sum is written there."""
        if array.size:
            with self._errors():
                about = (array.size, self._of[array.dtype], self._sum, self._comm, self._stream)
                self._calls.all_reduce(array.ptr, (array if out is None else out).ptr, *about)

    def all_gather(self, array: DeviceArray) -> DeviceArray:
        found = self._device.empty((self.size, *array.shape), array.dtype)
        if array.size:
            with self._errors():
                about = (array.size, self._of[array.dtype], self._comm, self._stream)
                self._calls.all_gather(array.ptr, found.ptr, *about)
        return found

    def broadcast(self, array: DeviceArray) -> None:
        if array.size:
            with self._errors():
                about = (array.size, self._of[array.dtype], 0, self._comm, self._stream)
                self._calls.broadcast(array.ptr, array.ptr, *about)

    def exchange(
        self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray | None = None
    ) -> list[DeviceArray]:
        """As `Communicator.exchange`. What others send is received in `out`, one after the other, else in a new array.

        `rows` of this rank itself are not counted in `out`.
        """
        if out is None:
            of_others = sum(rows) - rows[self.rank]
            out = self._device.empty((of_others, *parts[0].shape[1:]), parts[0].dtype)
        received = self._places(parts, rows, out)
        self._send_and_receive(parts, received, self._stream)
        return received

    def exchange_beside(
        self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray, follows: bool = True
    ) -> Arriving:
        """Start `exchange` beside the device's stream; kernels launched before `Arriving.arrive` do not wait for it.

        Without `follows`, it waits only for what the call before it on the side stream waited for.
        """
        side, observer = self._side, self._device.observer
        if follows:
            side.follow()
        begun = side.mark() if observer is not None else None
        self._send_and_receive(parts, self._places(parts, rows, out), side.handle)
        if observer is not None and begun is not None:
            observer.append(Observation("exchange", Launch((1, 1, 1), (1, 1, 1)), begun, side.mark()))
        return Arriving(side, (parts, out))

    def gather_beside(self, array: DeviceArray) -> Gathering:
        """Start an all-gather beside the device's stream, for the host."""
        found, side = self._device.empty((self.size, *array.shape), array.dtype), self._side
        if self._gathered.nbytes < found.nbytes:
            self._gathered = self._device.pinned(found.nbytes, np.uint8)
        side.follow()
        with self._errors():
            self._calls.all_gather(array.ptr, found.ptr, array.size, self._of[array.dtype], self._comm, side.handle)
        side.download(found, self._gathered)
        return Gathering(side, (array, found), self._gathered[: found.nbytes].view(found.dtype).reshape(found.shape))

    @cached_property
    def _side(self) -> SideStream:
        return SideStream(self._device)

    def _places(self, parts: Sequence[DeviceArray], rows: Sequence[int], out: DeviceArray) -> list[DeviceArray]:
        """Return where what each rank sends is received; what this rank sends itself stays where it is."""
        received, start, width = list(parts), 0, prod(out.shape[1:])
        for rank in range(self.size):
            if rank != self.rank:
                received[rank] = out.view(start, (rows[rank], *out.shape[1:]))
                start += rows[rank] * width
        return received

    def _send_and_receive(self, parts: Sequence[DeviceArray], received: Sequence[DeviceArray], stream: int) -> None:
        kind = self._of[parts[0].dtype]
        with self._group():
            for rank in range(self.size):
                if rank != self.rank and parts[rank].size:
                    self._calls.send(parts[rank].ptr, parts[rank].size, kind, rank, self._comm, stream)
                if rank != self.rank and received[rank].size:
                    self._calls.recv(received[rank].ptr, received[rank].size, kind, rank, self._comm, stream)

    @contextmanager
    def _group(self) -> Iterator[None]:
        """Start the calls inside together; send and receive would otherwise wait for each other."""
        with self._errors():
            self._calls.group_start()
            try:
                yield
            finally:
                self._calls.group_end()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._calls.NCCLError as error:
            message = (str(error).splitlines() or ["failed"])[0]
            if self._device.memory().free < NEEDED_BYTES:
                raise self._device.out_of_memory(NEEDED_BYTES) from error
            hint = "Each rank needs a GPU of its own; NCCL_DEBUG=INFO says more."
            raise MachineError(f"NCCL between {self.size} ranks", message, hint=hint) from error

    def close(self) -> None:
        """Give back NCCL's memory and streams; all ranks call, after their last operation."""
        self._device.synchronize()
        atexit.unregister(self._abort)
        with self._errors():
            self._calls.comm_destroy(self._comm)
        if "_side" in vars(self):
            self._side.close()
        self._device.release()

    def _abort(self) -> None:
        """Leave without waiting for the others, before the context goes."""
        with suppress(self._calls.NCCLError):
            self._calls.comm_abort(self._comm)
