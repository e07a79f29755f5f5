"""One device: its context (`context`), and the launches of its kernels.

Only `context`, `copies`, `kernels`, `events` and `loader` call PyCUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.cuda.runtime.cache import KernelCache
from gcnbatch.backends.cuda.runtime.context import DeviceContext, Slabs
from gcnbatch.backends.cuda.runtime.events import Observation
from gcnbatch.backends.cuda.runtime.kernels import Kernel, Kernels
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.errors import MachineError
from gcnbatch.resources import cuda_sources

SHARED_WITHOUT_ASKING = 48 * 1024


class Device(DeviceContext):
    """An opened device. `open_device` creates it.

    Parameters
    ----------
    number : int
        Number among the visible devices.
    cache : KernelCache
    sources : Sources

    Attributes
    ----------
    launches : int
        Kernels launched so far.
    observer : list of Observation or None
        If a list, every launch is timed by a pair of events and appended to it.
    kernels : Kernels
        Kernels of `sources`.

    Further attributes as `DeviceContext`.
    """

    def __init__(self, number: int, cache: KernelCache, sources: Sources) -> None:
        super().__init__(number)
        self.launches = 0
        self.observer: list[Observation] | None = None
        self.kernels = Kernels(self.driver, self.info.capability, cache, sources, self.errors)
        self._sources = sources
        self._twins: dict[str, Device] = {}  # `fast_math`, `for_cohorts`
        self._is_fast = False
        self._workspaces: dict[str, DeviceArray] = {}

    def fast_math(self) -> Device:
        """Return this device, with the same memory and stream, but with kernels compiled with fast-math; cached."""
        return self._twin("fast_math", KernelCache(fast_math=True), is_fast=True)

    def for_cohorts(self) -> Device:
        """Return this device, with the same memory and stream, but with kernels for several models; cached."""
        return self._twin("for_cohorts", KernelCache(fast_math=self._is_fast, cohort=True), self._is_fast)

    def _twin(self, name: str, cache: KernelCache, is_fast: bool) -> Device:
        if name not in self._twins:
            twin = copy(self)
            twin.kernels = Kernels(self.driver, self.info.capability, cache, self._sources, self.errors)
            twin._slabs, twin._twins, twin._is_fast = Slabs(twin._allocate), {}, is_fast
            self._twins[name] = twin
        return self._twins[name]

    def workspace(self, name: str, nbytes: int) -> DeviceArray:
        """Return at least `nbytes` bytes (uint8) that persist under `name` between calls.

        They are 0 at first and whenever the workspace grows. Kernels leave them in the state that the next launch
        needs, such as counters at 0.
        """
        held = self._workspaces.get(name)
        if held is None or held.nbytes < nbytes:
            held = self._workspaces[name] = self.zeros(nbytes, np.uint8)
        return held

    def launch(self, entry: str, launch: Launch, /, **arguments: Any) -> None:
        """Launch the kernel `entry` and return at once.

        Parameters
        ----------
        entry : str
            Its name in ``cuda_src``.
        launch : Launch
            A grid without blocks launches nothing and is not counted.
        **arguments : DeviceArray, number, None, or dict
            Arguments by the names in the kernel's declaration, or in its parameter struct; None is the null pointer. A
            name that is a Python keyword takes an underscore: ``in_``.

        Raises
        ------
        KernelCompileError
            When the kernel's source does not compile.
        TypeError
            When the arguments are not those of the declaration.
        MachineError
            When the device fails.
        """
        if launch.blocks:
            kernel = self.kernels[entry]
            self._start(kernel, launch, kernel.pack(arguments))

    def prepared(self, entry: str, launch: Launch, /, **arguments: Any) -> Callable[[], None]:
        """Return a function that launches as `launch` does, on at least one block.

        The arguments are packed once; the caller keeps their arrays alive.

        Raises
        ------
        KernelCompileError, TypeError
            As `launch`.
        """
        kernel = self.kernels[entry]
        return partial(self._start, kernel, launch, kernel.pack(arguments))

    def _start(self, kernel: Kernel, launch: Launch, packed: bytes) -> None:
        if launch.shared > SHARED_WITHOUT_ASKING:
            self.kernels.allow_shared(kernel, launch.shared)
        start = self.event() if self.observer is not None else None
        try:
            # The core of PyCUDA's prepared_async_call, without an obsolete driver call: less than a third of its time.
            kernel.start(launch.grid, launch.block, packed, launch.shared, self.stream)
        except self.driver.Error as error:
            raise self._failure(error) from error
        self.launches += 1
        if self.observer is not None and start is not None:
            self.observer.append(Observation(kernel.entry.name, launch, start, self.event()))

    def about(self) -> dict[str, str]:
        """Return facts for a report: name, driver, compiler and nominal clocks of this device.

        CUDA does not know the current clocks; `gcnbatch.environment.gpus` reads them.
        """
        major, minor = loader.driver_cuda_version()
        attributes = self.driver.device_attribute
        with self.errors():
            clocks = [
                self._device.get_attribute(which) for which in (attributes.CLOCK_RATE, attributes.MEMORY_CLOCK_RATE)
            ]
        found = self.kernels.compiler
        return {
            "GPU": self.name,
            "compute capability": ".".join(map(str, self.compute_capability)),
            "multiprocessors": str(self.multiprocessors),
            "driver": f"CUDA {major}.{minor}",
            "compiler": f"{found.name} {found.version}" if found else "none; kernels from the cache",
            "nominal clocks": f"{clocks[0] // 1000} MHz, memory {clocks[1] // 1000} MHz",
        }

    def _clear_kernels(self) -> None:
        self.kernels.clear()
        for twin in self._twins.values():
            twin._clear_kernels()

    def _close(self) -> None:
        self._workspaces.clear()
        self._clear_kernels()
        super()._close()


_open: dict[int, Device] = {}


def open_device(number: int = 0) -> Device:
    """Return device `number`, opened once per process.

    Raises
    ------
    InputError
        When there is no such device.
    BackendUnavailable
        As `gcnbatch.backends.cuda.runtime.loader.load_cuda`, or the device is too old.
    MachineError
        When this process already works on another device.
    """
    if number not in _open:
        if _open:
            raise MachineError(
                f"device {number}", f"this process works on device {next(iter(_open))}", hint="Start another process."
            )
        _open[number] = Device(number, KernelCache(), Sources(cuda_sources()))
    return _open[number]


def close_devices() -> None:
    """Close the device that this thread has opened; see `gcnbatch.backends.registry.close_devices`."""
    while _open:
        _open.popitem()[1].close()
