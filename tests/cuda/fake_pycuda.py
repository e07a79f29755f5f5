"""A stand-in for PyCUDA whose device memory is host memory: what is copied arrives, what is launched is written down.

It answers the calls that `gcnbatch.backends.cuda.device` makes, in PyCUDA's own terms, and fails when told to.
"""

from __future__ import annotations

import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

FREE, TOTAL = 3 << 20, 8 << 20


class Fake:
    """The machine: its devices, what ran on it, and what is to fail (`failures`: name of a call -> exception)."""

    def __init__(self) -> None:
        self.devices = [("Fake 90", (9, 0)), ("Fake 75", (7, 5))]
        self.cuda = 13_000  # as the driver tells its version: CUDA 13.0
        self.calls: list[Any] = []
        self.failures: dict[str, Exception] = {}
        self.driver = self._driver()
        self.package = ModuleType("pycuda")
        self.package.driver = self.driver

    def did(self, name: str, *what: Any) -> None:
        if name in self.failures:
            raise self.failures[name]
        self.calls.append((name, *what))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]

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
                return TOTAL

            def get_attribute(self, attribute: str) -> int:
                return {"sms": 132, "clock": 1_980_000, "memory clock": 2_619_000}[attribute]

            def retain_primary_context(self) -> Any:
                return SimpleNamespace(push=lambda: fake.did("push"), pop=lambda: fake.did("pop"))

        class Event:
            clock = 0

            def record(self, stream: Any) -> None:
                Event.clock += 1
                self.at = Event.clock

            def synchronize(self) -> None:
                fake.did("synchronize event")

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
            active_bytes = 0

            def allocate(self, nbytes: int) -> Any:
                fake.did("allocate", nbytes)
                return Allocation(self, nbytes)

            def stop_holding(self) -> None:
                fake.did("stop_holding")

        class Allocation:
            def __init__(self, pool: Pool, nbytes: int) -> None:
                self.pool, self.buffer = pool, (ctypes.c_ubyte * nbytes)(*([0xCD] * min(nbytes, 64)))
                pool.active_bytes += nbytes

            def __int__(self) -> int:
                return ctypes.addressof(self.buffer)

            def __del__(self) -> None:
                self.pool.active_bytes -= len(self.buffer)

        def module_from_buffer(cubin: bytes) -> Any:
            fake.did("load", cubin)
            return SimpleNamespace(get_function=Function)

        def upload(ptr: int, host: np.ndarray[Any, Any], stream: Any) -> None:
            fake.did("upload", host.nbytes)
            ctypes.memmove(ptr, host.ctypes.data, host.nbytes)

        def download(host: np.ndarray[Any, Any], ptr: int, stream: Any) -> None:
            fake.did("download", host.nbytes)
            ctypes.memmove(host.ctypes.data, ptr, host.nbytes)

        def memset(ptr: int, value: int, nbytes: int, stream: Any) -> None:
            ctypes.memset(ptr, value, nbytes)

        def memory() -> tuple[int, int]:
            fake.did("memory")
            return FREE, TOTAL

        driver.Device, driver.Event, driver.DeviceMemoryPool = Device, Event, Pool
        driver.Stream = lambda: SimpleNamespace(synchronize=lambda: fake.did("synchronize"))
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
