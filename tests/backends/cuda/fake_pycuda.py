"""A stand-in for PyCUDA whose device memory is host memory. It executes copies and logs launches.

It implements the calls of `gcnbatch.backends.cuda.runtime.device` with PyCUDA's interface, and fails on demand. Streams
run their work at once, or when `Fake.pick` chooses them, in any order that CUDA allows.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from threading import get_ident
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

FREE, TOTAL = 3 << 20, 8 << 20


class Mark:
    """A recorded event of a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.passed = stream, False

    def come(self) -> None:
        """Run only the work that must end before this event has passed."""
        while not self.passed:
            self.stream.force()


class Stream:
    """A queue of work: functions to call, and marks of other streams to wait for."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None] | Mark] = deque()

    @property
    def ready(self) -> bool:
        """Return whether the next piece of work may run now."""
        return bool(self.queue) and (not isinstance(self.queue[0], Mark) or self.queue[0].passed)

    def run(self) -> None:
        work = self.queue.popleft()
        if not isinstance(work, Mark):
            work()

    def force(self) -> None:
        """Run the next piece of work, after the work that it waits for."""
        if isinstance(self.queue[0], Mark):
            self.queue[0].come()
        self.run()


class Fake:
    """The machine: its devices, a log of calls, and injected failures (`failures`: name of a call -> exception).

    `pick` receives the streams that may run, in order of creation, and returns one of them, or None to stop for now.
    """

    def __init__(self) -> None:
        self.devices = [("Fake 90", (9, 0)), ("Fake 75", (7, 5))]
        self.cuda = 13_000  # the driver's version number: CUDA 13.0
        self.calls: list[Any] = []
        self.failures: dict[str, Exception] = {}
        self.streams: list[Stream] = []
        self.pick: Callable[[list[Stream]], Stream | None] = lambda ready: ready[0]
        self.driver = self._driver()
        self.package = ModuleType("pycuda")
        self.package.driver = self.driver

    def did(self, name: str, *what: Any) -> None:
        if name in self.failures:
            raise self.failures[name]
        self.calls.append((name, *what))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]

    def ask(self, stream: Stream, work: Callable[[], None] | Mark) -> None:
        stream.queue.append(work)
        self.advance()

    def advance(self) -> None:
        while (ready := [stream for stream in self.streams if stream.ready]) and (picked := self.pick(ready)):
            picked.run()

    def modules(self) -> dict[str, ModuleType]:
        return {"pycuda": self.package, "pycuda.driver": self.driver}

    def _driver(self) -> Any:
        fake, driver = self, ModuleType("pycuda.driver")

        class Error(Exception):
            pass

        driver.Error = Error
        for name in ("MemoryError", "LogicError", "LaunchError", "RuntimeError"):
            setattr(driver, name, type(name, (Error,), {}))

        class Device:
            def __init__(self, number: int) -> None:
                self.number = number

            @staticmethod
            def count() -> int:
                return len(fake.devices)

            def name(self) -> str:
                return fake.devices[self.number][0]

            def compute_capability(self) -> tuple[int, int]:
                return fake.devices[self.number][1]

            def total_memory(self) -> int:
                fake.did("total memory")
                return TOTAL

            def get_attribute(self, attribute: str) -> int:
                return {"sms": 132, "clock": 1_980_000, "memory clock": 2_619_000}[attribute]

            def retain_primary_context(self) -> Any:
                fake.did("retain context")
                return SimpleNamespace(push=lambda: fake.did("push"), pop=lambda: fake.did("pop"))

        class DriverStream(Stream):
            def __init__(self) -> None:
                super().__init__()
                fake.streams.append(self)

            def synchronize(self) -> None:
                fake.did("synchronize")
                while self.queue:
                    self.force()

            def wait_for_event(self, event: Event) -> None:
                fake.did("wait for event")
                fake.ask(self, event.mark)

        class Event:
            clock = 0

            def record(self, stream: Stream) -> None:
                Event.clock += 1
                self.at, self.mark = Event.clock, Mark(stream)
                mark = self.mark
                fake.ask(stream, lambda: setattr(mark, "passed", True))

            def synchronize(self) -> None:
                fake.did("synchronize event")
                self.mark.come()

            def time_since(self, earlier: Event) -> float:
                return float(self.at - earlier.at)

        class Function:
            def __init__(self, name: str) -> None:
                self.name = name

            def set_attribute(self, attribute: str, value: int) -> None:
                fake.did("set_attribute", self.name, attribute, value)

            def _launch_kernel(self, grid: Any, block: Any, packed: bytes, shared: int, stream: Any) -> None:
                fake.did("launch", self.name, grid, block, shared, packed)

        class Pool:
            """Reuses a freed block for the next allocation, even if queued work still reads it, like PyCUDA's pool."""

            def __init__(self) -> None:
                self.active_bytes, self.owner = 0, get_ident()
                self.held: dict[int, list[Any]] = {}

            def allocate(self, nbytes: int) -> Any:
                fake.did("allocate", nbytes)
                return Allocation(self, nbytes)

            def free_held(self) -> None:
                for blocks in self.held.values():
                    blocks.clear()

            def stop_holding(self) -> None:
                fake.did("stop_holding")

        class Allocation:
            def __init__(self, pool: Pool, nbytes: int) -> None:
                self.pool, self.nbytes = pool, nbytes
                self.bin = pool.held.setdefault(nbytes.bit_length(), [])
                size = (1 << nbytes.bit_length()) - 1
                self.buffer = self.bin.pop() if self.bin else (ctypes.c_ubyte * size)(*([0xCD] * min(size, 64)))
                pool.active_bytes += nbytes

            def __int__(self) -> int:
                return ctypes.addressof(self.buffer)

            def __del__(self) -> None:
                if get_ident() != self.pool.owner and not any(self.pool.held.values()):
                    fake.did("terminate")  # its first free block needs a context, which the thread lacks
                self.pool.active_bytes -= self.nbytes
                self.bin.append(self.buffer)

        def module_from_buffer(cubin: bytes) -> Any:
            fake.did("load", cubin)
            return SimpleNamespace(get_function=Function)

        def upload(ptr: int, host: np.ndarray[Any, Any], stream: Stream) -> None:
            fake.did("upload", host.nbytes)
            fake.ask(stream, lambda: ctypes.memmove(ptr, host.ctypes.data, host.nbytes) and None)

        def download(host: np.ndarray[Any, Any], ptr: int, stream: Stream) -> None:
            fake.did("download", host.nbytes)
            fake.ask(stream, lambda: ctypes.memmove(host.ctypes.data, ptr, host.nbytes) and None)

        def memset(ptr: int, value: int, nbytes: int, stream: Stream) -> None:
            fake.ask(stream, lambda: ctypes.memset(ptr, value, nbytes) and None)

        def memory() -> tuple[int, int]:
            fake.did("memory")
            return FREE, TOTAL

        driver.Device, driver.Event, driver.DeviceMemoryPool = Device, Event, Pool
        driver.Stream = DriverStream
        driver.device_attribute = SimpleNamespace(
            MULTIPROCESSOR_COUNT="sms", CLOCK_RATE="clock", MEMORY_CLOCK_RATE="memory clock"
        )
        driver.function_attribute = SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic")
        driver.init = lambda: fake.did("init")
        driver.module_from_buffer = module_from_buffer
        driver.memcpy_htod_async, driver.memcpy_dtoh_async, driver.memset_d8_async = upload, download, memset
        driver.mem_get_info = memory
        driver.pagelocked_empty = np.empty
        return driver
