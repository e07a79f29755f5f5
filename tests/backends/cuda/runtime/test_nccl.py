"""NCCL through a stand-in for nccl4py whose arrays are host memory: calls, groups, errors."""

from __future__ import annotations

import ctypes
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.runtime import inventory, nccl
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.nccl import NcclCommunicator
from gcnbatch.errors import BackendUnavailable, MachineError
from tests.ranks.threads import on_ranks

STREAM = 77


class Failed(Exception):
    """The stand-in's NCCLError."""


class Unique(bytes):
    """The stand-in's identifier."""

    def __new__(cls, value: bytes = bytes(128)) -> Unique:
        return super().__new__(cls, value)

    @classmethod
    def from_buffer(cls, value: bytes) -> Unique:
        return cls(value)


class Library(ModuleType):
    """The stand-in for ``nccl.bindings.nccl``: it logs calls with their arguments."""

    RedOp, DataType = SimpleNamespace(Sum=0), SimpleNamespace(Int32=2, Int64=4, Float32=7, Float64=8, Uint8=1)
    UniqueId, NCCLError = Unique, Failed

    def __init__(self) -> None:
        super().__init__("nccl.bindings.nccl")
        self.calls: list[tuple[Any, ...]] = []
        self.failing = ""

    def get_version(self) -> int:
        if self.failing == "get_version":
            raise OSError("libnccl.so.2: cannot open shared object file\nmore")
        return 22809

    def get_unique_id(self) -> Unique:
        return Unique(bytes(range(128)))

    def comm_init_rank(self, size: int, identifier: Unique, rank: int) -> Any:
        self.calls.append(("comm_init_rank", size, bytes(identifier), rank))
        return f"comm {rank}"

    def __getattr__(self, name: str) -> Any:
        if name not in (
            "all_reduce",
            "all_gather",
            "broadcast",
            "send",
            "recv",
            "group_start",
            "group_end",
            "comm_destroy",
        ):
            raise AttributeError(name)

        def call(*about: Any) -> None:
            if self.failing == name:
                raise Failed("UnhandledCudaError (1): unhandled cuda error\nmore")
            self.calls.append((name, *about))

        return call


class HostDevice:
    """A device whose arrays are host memory."""

    stream = SimpleNamespace(handle=STREAM)
    observer = None
    free = 1 << 40  # bytes

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1

    def synchronize(self) -> None:
        pass

    def memory(self) -> SimpleNamespace:
        return SimpleNamespace(free=self.free)

    def out_of_memory(self, asked: int) -> MachineError:
        return MachineError("device 0", f"out of memory: {asked} bytes asked for, {self.free} free")

    def pinned(self, shape: int, dtype: Any) -> np.ndarray:
        return np.zeros(shape, dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float32) -> DeviceArray:
        kind = np.dtype(dtype)
        memory = (ctypes.c_char * max(int(np.prod(shape)) * kind.itemsize, 1))()
        return DeviceArray(ctypes.addressof(memory) if np.prod(shape) else 0, shape, kind, memory)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    for name in ("nccl", "nccl.bindings"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", found)
    monkeypatch.setattr(nccl.atexit, "register", lambda call: None)
    return found


def communicators(size: int = 2) -> list[NcclCommunicator]:
    return on_ranks(size, lambda ranks: NcclCommunicator(HostDevice(), ranks))  # type: ignore[arg-type]


def test_all_ranks_join_with_the_identifier_of_rank_0(library: Library) -> None:
    assert [(communicator.rank, communicator.size) for communicator in communicators(3)] == [(0, 3), (1, 3), (2, 3)]
    assert sorted(library.calls) == [("comm_init_rank", 3, bytes(range(128)), rank) for rank in range(3)]


def test_a_sum_is_one_call_on_the_devices_stream_and_none_for_an_empty_array(library: Library) -> None:
    communicator, device = communicators()[1], HostDevice()
    one, out, empty = (device.empty((count,)) for count in (3, 3, 0))
    totals = device.empty((2,), np.float64)
    library.calls.clear()
    communicator.all_reduce(one)
    communicator.all_reduce(one, out)
    communicator.all_reduce(empty)
    communicator.all_reduce(totals)
    found = communicator.all_gather(one)
    assert found.shape == (2, 3)
    communicator.broadcast(one)
    assert library.calls == [
        ("all_reduce", one.ptr, one.ptr, 3, 7, 0, "comm 1", STREAM),
        ("all_reduce", one.ptr, out.ptr, 3, 7, 0, "comm 1", STREAM),
        ("all_reduce", totals.ptr, totals.ptr, 2, 8, 0, "comm 1", STREAM),
        ("all_gather", one.ptr, found.ptr, 3, 7, "comm 1", STREAM),
        ("broadcast", one.ptr, one.ptr, 3, 7, 0, "comm 1", STREAM),
    ]


def test_an_exchange_sends_and_receives_in_one_group_and_skips_empty_parts(library: Library) -> None:
    communicator, device = communicators(3)[1], HostDevice()
    parts, out = [device.empty((count, 4)) for count in (2, 0, 0)], device.empty((8, 4))
    library.calls.clear()
    received = communicator.exchange(parts, [5, 0, 3], out)
    assert [part.shape for part in received] == [(5, 4), (0, 4), (3, 4)]
    assert library.calls == [
        ("group_start",),
        ("send", parts[0].ptr, 8, 7, 0, "comm 1", STREAM),
        ("recv", out.ptr, 20, 7, 0, "comm 1", STREAM),
        ("recv", out.ptr + 5 * 16, 12, 7, 2, "comm 1", STREAM),
        ("group_end",),
    ]
    assert [part.shape for part in communicator.exchange(parts, [5, 0, 3])] == [(5, 4), (0, 4), (3, 4)]


class Side:
    """A side stream that logs its order among NCCL's calls."""

    handle = 99

    def __init__(self, library: Library) -> None:
        self._log = library.calls

    def follow(self) -> None:
        self._log.append(("follow",))

    def precede(self) -> None:
        self._log.append(("precede",))

    def download(self, array: DeviceArray, pinned: np.ndarray) -> None:
        self._log.append(("download", array.ptr))
        pinned.view(np.int32)[: array.size] = np.arange(array.size)

    def synchronize(self) -> None:
        self._log.append(("synchronize",))

    def mark(self) -> str:
        return f"after {len(self._log)} calls"


def test_an_exchange_beside_the_stream_follows_it_and_precedes_what_comes_after_its_arrival(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "SideStream", lambda device: Side(library))
    communicator, device = communicators()[1], HostDevice()
    parts, out = [device.empty((2, 4)), device.empty((0, 4))], device.empty((3, 4))
    library.calls.clear()
    exchange = communicator.exchange_beside(parts, [3, 0], out)
    beside = [("send", parts[0].ptr, 8, 7, 0, "comm 1", 99), ("recv", out.ptr, 12, 7, 0, "comm 1", 99)]
    assert library.calls == [("follow",), ("group_start",), *beside, ("group_end",)]
    exchange.arrive()
    assert library.calls[-1] == ("precede",)
    library.calls.clear()
    communicator._device.observer = seen = []  # type: ignore[assignment]
    communicator.exchange_beside(parts, [3, 0], out)
    assert [tuple(one)[::2] for one in seen] == [("exchange", "after 1 calls")]
    assert seen[0].stop == "after 5 calls"


def test_the_host_reads_what_ranks_gather_beside_the_stream(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "SideStream", lambda device: Side(library))
    communicator, device = communicators()[1], HostDevice()
    array = device.empty((3,), np.int32)
    library.calls.clear()
    gathering = communicator.gather_beside(array)
    (_, sent, received, *about), (_, downloaded) = library.calls[1:3]
    assert [name for name, *_ in library.calls] == ["follow", "all_gather", "download"]
    assert (sent, about, downloaded) == (array.ptr, [3, 2, "comm 1", 99], received)
    assert gathering.read().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert library.calls[-1] == ("synchronize",)
    library.calls.clear()
    parts, out = [device.empty((2, 4)), device.empty((0, 4))], device.empty((3, 4))
    communicator.exchange_beside(parts, [3, 0], out, follows=False)
    assert library.calls[0] == ("group_start",)


def test_the_arrays_of_an_exchange_live_until_it_has_arrived(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "SideStream", lambda device: Side(library))
    communicator, device = communicators()[1], HostDevice()
    parts, out = [device.empty((2, 4)), device.empty((0, 4))], device.empty((3, 4))
    held = [weakref.ref(array.owner) for array in (parts[0], out)]
    exchange = communicator.exchange_beside(parts, [3, 0], out)
    del parts, out
    assert all(each() is not None for each in held)
    exchange.arrive()
    assert all(each() is None for each in held)


def test_a_failure_of_nccl_is_one_line_with_a_hint(library: Library) -> None:
    communicator = communicators()[0]
    library.failing = "all_reduce"
    array, calls = HostDevice().empty((3,)), len(library.calls)
    with pytest.raises(MachineError) as failed:
        communicator.all_reduce(array)
    assert str(failed.value) == (
        "NCCL between 2 ranks: UnhandledCudaError (1): unhandled cuda error. Each rank needs a GPU of its own; "
        "NCCL_DEBUG=INFO says more."
    )
    assert len(library.calls) == calls
    library.failing = "send"
    with pytest.raises(MachineError):
        communicator.exchange([array, array], [0, 1])
    assert library.calls[-1] == ("group_end",)  # a group left open would hold back all later calls


def test_short_memory_is_one_line_with_the_bytes(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    communicator = communicators()[0]
    library.failing = "all_reduce"
    monkeypatch.setattr(HostDevice, "free", 200 << 20)
    with pytest.raises(MachineError) as failed:
        communicator.all_reduce(HostDevice().empty((3,)))
    assert str(failed.value) == "device 0: out of memory: 536870912 bytes asked for, 209715200 free"


def test_a_closed_communicator_gives_back_what_it_held(library: Library) -> None:
    communicator = communicators()[1]
    device: Any = communicator._device
    assert device.released == 1  # NCCL takes memory beside the pool
    communicator.close()
    assert library.calls[-1] == ("comm_destroy", "comm 1")
    assert device.released == 2


def test_what_is_missing_is_named_with_what_to_install(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inventory.collect()["nccl"] == "NCCL 2.28.9"
    install = "Install it: pip install 'gcnbatch[nccl13]', or nccl12 for drivers older than 580."
    library.failing = "get_version"
    with pytest.raises(BackendUnavailable) as failed:
        nccl.load_nccl()
    said = "its library cannot be loaded (libnccl.so.2: cannot open shared object file)"
    assert str(failed.value) == f"NCCL: {said}. {install}"
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", None)
    with pytest.raises(BackendUnavailable) as failed:
        nccl.load_nccl()
    assert str(failed.value) == f"NCCL: nccl4py is not installed. {install}"
    assert inventory.collect()["missing"]["nccl"] == f"nccl4py is not installed. {install}"
