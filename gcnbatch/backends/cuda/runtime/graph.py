"""CUDA graphs: work captured once on PyCUDA's stream through cuda-bindings, then run with one launch.

`Recorder` captures explicit launches. From compute capability 9.0 on, a launch may start while the previous one still
runs (programmatic dependent launch); the kernels wait where they must (cuda_src/fused/shared/fused.cuh). `capture`
captures everything that a callable queues, such as operations or calls of a vendor's library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.cuda.runtime.device import SHARED_WITHOUT_ASKING
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.errors import BackendUnavailable, MachineError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

DEPENDENT_LAUNCH = (9, 0)  # first compute capability with programmatic dependent launch
IN_GRAPHS = (12, 4)  # first CUDA version of the driver that captures it into graphs
NON_BLOCKING, WITHOUT_TIMES = 1, 2  # flags of streams and events
ALL_SHARED = 100  # carve-out: per cent of the largest shared memory of a multiprocessor


class Call(NamedTuple):
    """A launch with its arguments by name."""

    entry: str
    launch: Launch
    arguments: Mapping[str, Any]

    def start(self, device: Device) -> None:
        """Launch the kernel now, outside of any graph."""
        device.launch(self.entry, self.launch, **self.arguments)


class Prepared(NamedTuple):
    """A launch as the driver takes it: the packed arguments, and the address of each argument.

    The driver reads both during the call only.
    """

    config: Any
    function: Any
    packed: NDArray[np.uint8]
    addresses: NDArray[np.uint64]


def addresses(packed: NDArray[np.uint8], offsets: Sequence[int]) -> NDArray[np.uint64]:
    """Return the addresses of the arguments at these byte offsets: CUDA's kernelParams."""
    return np.array([packed.ctypes.data + offset for offset in offsets], np.uint64)


def load_bindings() -> Any:
    """Return cuda-bindings' module of driver calls.

    Raises
    ------
    BackendUnavailable
        When cuda-bindings is not installed.
    """
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BackendUnavailable(
            "backend fused",
            "cuda-bindings is not installed",
            hint="pip install 'gcnbatch[cuda]', or --backend batched.",
        ) from error


class NotCaptured(MachineError):
    """Work that a CUDA graph cannot hold."""


class Driver:
    """The driver through cuda-bindings, on a device's stream; a failed call raises an error of the device."""

    def __init__(self, device: Device) -> None:
        self.device, self.calls = device, load_bindings()

    @cached_property
    def stream(self) -> Any:
        """The device's stream as an object of cuda-bindings."""
        return self.calls.CUstream(self.device.stream.handle)

    def check(self, result: tuple[Any, ...]) -> Any:
        """Return the value of a driver call.

        Raises
        ------
        MachineError
            When the device fails or is out of memory.
        """
        status, *values = result
        if status != self.calls.CUresult.CUDA_SUCCESS:
            is_full = status == self.calls.CUresult.CUDA_ERROR_OUT_OF_MEMORY
            raise self.device.out_of_memory() if is_full else self.device.lost(status.name)
        return values[0] if values else None

    def capture(self, work: Callable[[], object]) -> Any:
        """Return the driver's graph of the work that `work` queues on the stream. Errors of `work` are raised."""
        mode = self.calls.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self.check(self.calls.cuStreamBeginCapture(self.stream, mode))
        try:
            work()
        finally:
            captured = self.calls.cuStreamEndCapture(self.stream)
        return self.check(captured)


def config_of(driver: Driver, launch: Launch) -> Any:
    """Return a launch's geometry as the driver takes it."""
    config = driver.calls.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared
    return config


class Functions:
    """Kernels as functions of the driver, for launches that PyCUDA does not know.

    It loads each kernel's module a second time, because PyCUDA does not hand out its handles.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}

    def function(self, name: str, shared: int = 0) -> Any:
        """Return the kernel, which may then use `shared` bytes of dynamic shared memory."""
        driver, calls = self._driver, self._driver.calls
        if name not in self._functions:
            file, cubin = driver.device.kernels.cubin(name)
            if file not in self._modules:
                self._modules[file] = driver.check(calls.cuModuleLoadData(cubin))
            self._functions[name] = driver.check(calls.cuModuleGetFunction(self._modules[file], name.encode()))
        if shared > max(SHARED_WITHOUT_ASKING, self._shared.get(name, 0)):
            self._shared[name] = shared
            which = calls.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.check(calls.cuFuncSetAttribute(self._functions[name], which, shared))
        return self._functions[name]

    def prepare(self, call: Call, config: Any) -> Prepared:
        """Return a launch of this configuration as the driver takes it."""
        entry = self._driver.device.kernels[call.entry].entry
        packed = np.frombuffer(entry.pack(call.arguments), np.uint8)
        function = self.function(call.entry, call.launch.shared)
        return Prepared(config, function, packed, addresses(packed, entry.offsets))


class Branches:
    """The streams on which the branches of a graph are captured; the first branch is on the device's stream.

    Parameters
    ----------
    driver : Driver
    number : int
        Branches.

    Raises
    ------
    MachineError
        When the device fails or has no memory for a stream.
    """

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver, self._events = driver, list[Any]()
        self.streams = [driver.stream]
        for _ in range(number - 1):
            self.streams.append(driver.check(driver.calls.cuStreamCreate(NON_BLOCKING)))

    def fork(self) -> None:
        """Let the other streams follow what is queued on the first."""
        for stream in self.streams[1:]:
            self._order(self.streams[0], stream)

    def join(self) -> None:
        """Let the first stream follow what is queued on the others."""
        for stream in self.streams[1:]:
            self._order(stream, self.streams[0])

    def close(self) -> None:
        """Destroy the streams after the capture. On a lost device this fails silently."""
        for event in self._events:
            self._driver.calls.cuEventDestroy(event)
        for stream in self.streams[1:]:
            self._driver.calls.cuStreamDestroy(stream)

    def _order(self, first: Any, then: Any) -> None:
        check, calls = self._driver.check, self._driver.calls
        self._events.append(check(calls.cuEventCreate(WITHOUT_TIMES)))
        check(calls.cuEventRecord(self._events[-1], first))
        check(calls.cuStreamWaitEvent(then, self._events[-1], 0))


class Graph:
    """A CUDA graph, ready to run with one launch.

    Parameters
    ----------
    driver : Driver
    captured : object
        The driver's graph. It is destroyed here.
    launches : int
        Number of kernels in the graph.

    Raises
    ------
    MachineError
        When the device fails or has no memory for the graph.
    """

    def __init__(self, driver: Driver, captured: Any, launches: int) -> None:
        self._driver, self._launches = driver, launches
        self._ready = driver.check(driver.calls.cuGraphInstantiate(captured, 0))
        driver.check(driver.calls.cuGraphDestroy(captured))

    def launch(self) -> None:
        """Start the graph; return without waiting.

        Raises
        ------
        MachineError
            When the device fails or has no memory to run the graph.
        """
        driver = self._driver
        driver.check(driver.calls.cuGraphLaunch(self._ready, driver.stream))
        driver.device.launches += self._launches

    def close(self) -> None:
        """Destroy the graph after its last run. On a lost device this fails silently."""
        self._driver.calls.cuGraphExecDestroy(self._ready)


def capture(device: Device, work: Callable[[], object]) -> Graph:
    """Return a graph of the work that `work` queues on the device's stream.

    Parameters
    ----------
    device : Device
    work : callable
        Launches kernels on arrays that outlive the graph. It must have run before, so that all kernels are loaded. Its
        work on the host happens once, during the capture.

    Raises
    ------
    NotCaptured
        When the work cannot be captured, for example because it waits for the device.
    """
    driver, before = Driver(device), device.launches
    try:
        captured = driver.capture(work)
        return Graph(driver, captured, device.launches - before)
    except Exception as error:
        reason = error.got if isinstance(error, MachineError) else error
        raise NotCaptured("CUDA graph", f"the work cannot be captured ({reason})") from error
    finally:
        device.launches = before


class Recorder:
    """Captures graphs of explicit launches through cuLaunchKernelEx, which takes attributes."""

    def __init__(self, device: Device) -> None:
        self._device, self._driver = device, Driver(device)
        self._functions = Functions(self._driver)
        known = loader.driver_cuda_version() >= IN_GRAPHS
        self._overlap = known and device.compute_capability >= DEPENDENT_LAUNCH

    def record(self, branches: Sequence[Sequence[Call]], repeats: int, same_carveout: bool = False) -> Graph:
        """Return a graph that runs the launches of each branch in order, `repeats` times; branches run at once.

        With `same_carveout`, all kernels prefer the largest shared-memory carve-out. A kernel that needs it then does
        not wait until multiprocessors change their carve-out.

        Raises
        ------
        MachineError
            When the device fails or has no memory for kernels or graph.
        """
        driver, calls = self._driver, self._driver.calls
        on = Branches(driver, len(branches))
        prepared = [
            [self._prepare(call, stream) for call in branch if call.launch.blocks]
            for branch, stream in zip(branches, on.streams, strict=True)
        ]
        if same_carveout:
            which = calls.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            for each in chain(*prepared):
                driver.check(calls.cuFuncSetAttribute(each.function, which, ALL_SHARED))

        def launch_all() -> None:
            on.fork()
            for _ in range(repeats):
                for each in chain(*prepared):
                    driver.check(calls.cuLaunchKernelEx(each.config, each.function, each.addresses, 0))
            on.join()

        self._device.synchronize()
        try:
            return Graph(driver, driver.capture(launch_all), repeats * sum(map(len, prepared)))
        finally:
            on.close()

    def clusters(self, name: str, launch: Launch) -> int:
        """Return how many clusters of a kernel are guaranteed to run at once; 0 if MPS may share the device.

        A driver that does not know the MPS attribute counts as shared.
        """
        driver, calls = self._driver, self._driver.calls
        by_mps = calls.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        status, shared = calls.cuDeviceGetAttribute(by_mps, driver.check(calls.cuDeviceGet(self._device.info.number)))
        if status != calls.CUresult.CUDA_SUCCESS or shared:
            return 0
        function = self._functions.function(name, launch.shared)
        return int(driver.check(calls.cuOccupancyMaxActiveClusters(function, config_of(self._driver, launch))))

    def _prepare(self, call: Call, stream: Any) -> Prepared:
        calls, config = self._driver.calls, config_of(self._driver, call.launch)
        config.hStream = stream
        if self._overlap:
            attribute = calls.CUlaunchAttribute()
            attribute.id = calls.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return self._functions.prepare(call, config)
