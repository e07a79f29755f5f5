"""Launches captured into a CUDA graph through NVIDIA's own binding, on PyCUDA's stream, and replayed as one.

From compute capability 9.0 on each launch may start while the one before still runs (programmatic dependent launch);
its kernels wait where they must (cuda_src/fused/shared/fused.cuh).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.cuda.runtime.device import SHARED_WITHOUT_ASKING
from gcnbatch.backends.cuda.runtime.launch import Launch
from gcnbatch.errors import BackendUnavailable, MachineError

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.device import Device

DEPENDENT_LAUNCH = (9, 0)  # compute capability from which it exists,
IN_GRAPHS = (12, 4)  # and CUDA version of the driver from which graphs hold it
ALL_SHARED = 100  # per cent of what a multiprocessor may have
NULL = 0  # TODO(transition): None


class Call(NamedTuple):
    """A launch with its arguments by name."""

    entry: str
    launch: Launch
    arguments: Mapping[str, Any] | tuple[Any, ...]  # TODO(transition): names alone

    def start(self, device: Device) -> None:
        """Launch it by itself, outside of any graph."""
        if isinstance(self.arguments, tuple):  # TODO(transition)
            device.launch(self.entry, self.launch, *self.arguments)
        else:
            device.launch(self.entry, self.launch, **self.arguments)


class Prepared(NamedTuple):
    """A launch as the driver takes it: its packed arguments, and the address of each of them among these.

    The driver reads both during the call and keeps neither.
    """

    config: Any
    function: Any
    packed: NDArray[np.uint8]
    addresses: NDArray[np.uint64]


def addresses(packed: NDArray[np.uint8], offsets: Sequence[int]) -> NDArray[np.uint64]:
    """Return the addresses of parameters that begin at these bytes: what CUDA calls kernelParams."""
    return np.array([packed.ctypes.data + at for at in offsets], np.uint64)


def load_bindings() -> Any:
    """Return the module of driver calls.

    Raises
    ------
    BackendUnavailable
        When it is not installed.
    """
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BackendUnavailable(
            "backend fused",
            "cuda-bindings is not installed",
            hint="pip install 'gcnbatch[cuda]', or --backend batched.",
        ) from error


class Graph:
    """A captured sequence of launches, ready to run.

    Parameters
    ----------
    device : Device
    ready : object
        The instantiated graph.
    launches : int
        Kernels in it.
    """

    def __init__(self, device: Device, driver: Any, ready: Any, launches: int) -> None:
        self._device, self._driver, self._ready, self._launches = device, driver, ready, launches
        self._stream = driver.CUstream(device.stream.handle)

    def launch(self) -> None:
        """Start it; returns at once.

        Raises
        ------
        MachineError
            When the device fails, or has no room to run it.
        """
        (status,) = self._driver.cuGraphLaunch(self._ready, self._stream)
        if status != 0:
            raise _failure(self._device, self._driver, status)
        self._device.launches += self._launches

    def close(self) -> None:
        """Give it back."""
        self._driver.cuGraphExecDestroy(self._ready)


class Recorder:
    """Captures graphs; loads each kernel's module a second time, because PyCUDA does not hand out its handles."""

    def __init__(self, device: Device) -> None:
        self._device, self._driver = device, load_bindings()
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}
        known = loader.driver_cuda_version() >= IN_GRAPHS
        self._overlap = known and device.compute_capability >= DEPENDENT_LAUNCH

    def record(self, calls: Sequence[Call], repeats: int, same_carveout: bool = False) -> Graph:
        """Return a graph of `repeats` times these launches, one behind the other.

        `same_carveout` has all of them run with as much shared memory to a multiprocessor as there is: a kernel that
        needs it does not wait until the multiprocessors of the one before have made room.

        Raises
        ------
        MachineError
            When the device fails, or has no room for kernels or graph.
        """
        driver, stream = self._driver, self._driver.CUstream(self._device.stream.handle)
        prepared = [self._prepare(call) for call in calls if call.launch.blocks]
        if same_carveout:
            which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            for each in prepared:
                self._check(driver.cuFuncSetAttribute(each.function, which, ALL_SHARED))
        self._device.synchronize()
        self._check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            for _ in range(repeats):
                for each in prepared:
                    self._check(driver.cuLaunchKernelEx(each.config, each.function, each.addresses, 0))
        finally:
            captured = driver.cuStreamEndCapture(stream)
        graph = self._check(captured)
        ready = self._check(driver.cuGraphInstantiate(graph, 0))
        self._check(driver.cuGraphDestroy(graph))
        return Graph(self._device, driver, ready, repeats * len(prepared))

    def clusters(self, name: str, launch: Launch) -> int:
        """Return how many clusters of a kernel the device surely runs at once: 0 where others may have a part of it.

        Under MPS they may, and a driver that does not know of the attribute cannot tell.
        """
        driver = self._driver
        by_mps = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        status, shared = driver.cuDeviceGetAttribute(by_mps, self._check(driver.cuDeviceGet(self._device.info.number)))
        if status != driver.CUresult.CUDA_SUCCESS or shared:
            return 0
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes = launch.shared
        return int(self._check(driver.cuOccupancyMaxActiveClusters(self._function(name, launch.shared), config)))

    def _prepare(self, call: Call) -> Prepared:
        driver, launch = self._driver, call.launch
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes, config.hStream = launch.shared, driver.CUstream(self._device.stream.handle)
        if self._overlap:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        entry = self._device.kernels[call.entry].entry
        packed = np.frombuffer(entry.pack(call.arguments), np.uint8)
        return Prepared(config, self._function(call.entry, launch.shared), packed, addresses(packed, entry.offsets))

    def _function(self, name: str, shared: int) -> Any:
        driver = self._driver
        if name not in self._functions:
            file, cubin = self._device.kernels.cubin(name)
            if file not in self._modules:
                self._modules[file] = self._check(driver.cuModuleLoadData(cubin))
            self._functions[name] = self._check(driver.cuModuleGetFunction(self._modules[file], name.encode()))
        if shared > max(SHARED_WITHOUT_ASKING, self._shared.get(name, 0)):
            self._shared[name] = shared
            which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(driver.cuFuncSetAttribute(self._functions[name], which, shared))
        return self._functions[name]

    def _check(self, result: tuple[Any, ...]) -> Any:
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise _failure(self._device, self._driver, result[0])
        return result[1] if len(result) > 1 else None


def _failure(device: Device, driver: Any, status: Any) -> MachineError:
    """Return the error of a call that gave back this status."""
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        return device.out_of_memory()
    return device.lost(status.name)
