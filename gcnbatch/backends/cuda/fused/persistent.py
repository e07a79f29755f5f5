"""Many steps in one launch: a table of phases for `fused_steps`, started as a cooperative grid.

PyCUDA does not launch cooperative grids, so this launch goes through NVIDIA's own binding, on PyCUDA's stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from struct import pack
from typing import TYPE_CHECKING, Any

import numpy as np

from gcnbatch.backends.cuda.device import SHARED_WITHOUT_ASKING
from gcnbatch.backends.cuda.fused.step import Call
from gcnbatch.errors import BackendUnavailable, DeviceLost

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.device import Device

KERNEL = "fused_steps"
KINDS = ("fused_forward", "fused_readout", "fused_backward", "fused_update")
PHASE_BYTES, THREADS = 336, 256  # as in fused_step.cu
TYPES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


def load_bindings() -> Any:
    """Return the module of driver calls.

    Raises
    ------
    BackendUnavailable
        When it is not installed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendUnavailable(
            "backend fused", "cuda-bindings is missing", hint="pip install 'gcnbatch[cuda]', or --backend batched."
        ) from error
    return driver


def table(device: Device, calls: Sequence[Call]) -> bytes:
    """Return what `fused_steps` reads: per phase its kind and place, then the arguments as its kernel takes them."""
    rows = []
    for call in calls:
        about = pack("iiii", KINDS.index(call.entry), call.is_joined, call.first_block, 0)
        rows.append((about + device.kernels[call.entry].entry.pack(call.arguments)).ljust(PHASE_BYTES, b"\0"))
        assert len(rows[-1]) == PHASE_BYTES, call.entry
    return b"".join(rows)


class Steps:
    """The phases of a step, ready to run any number of times.

    Parameters
    ----------
    device : Device
    calls : sequence of Call
    """

    def __init__(self, device: Device, calls: Sequence[Call]) -> None:
        self._device, self._driver, self._phases = device, load_bindings(), len(calls)
        self._table = device.upload(np.frombuffer(table(device, calls), dtype=np.int64))
        self._arrived = device.zeros(1, np.int32)
        shared = len(calls) * PHASE_BYTES + max(call.launch.shared for call in calls)
        self._config, self._function = self._prepare(shared)

    def run(self, steps: int) -> None:
        """Start so many steps; returns at once."""
        self._device.clear(self._arrived)
        arguments = (self._arrived.ptr, self._table.ptr, self._phases, steps)
        self._check(self._driver.cuLaunchKernelEx(self._config, self._function, (arguments, TYPES), 0))
        self._device.launches += 1

    def _prepare(self, shared: int) -> tuple[Any, Any]:
        """Load the kernel's module once more, because PyCUDA does not hand out handles; describe its launch."""
        driver = self._driver
        _, cubin = self._device.kernels.cubin(KERNEL)
        self._module = self._check(driver.cuModuleLoadData(cubin))
        function = self._check(driver.cuModuleGetFunction(self._module, KERNEL.encode()))
        if shared > SHARED_WITHOUT_ASKING:
            which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(driver.cuFuncSetAttribute(function, which, shared))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.blockDimX = self._device.multiprocessors, THREADS
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.sharedMemBytes, config.hStream = shared, driver.CUstream(self._device.stream.handle)
        cooperative = driver.CUlaunchAttribute()
        cooperative.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1
        config.attrs, config.numAttrs = [cooperative], 1
        return config, function

    def _check(self, result: tuple[Any, ...]) -> Any:
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise DeviceLost(f"device {self._device.info.number} ({self._device.name})", result[0].name)
        return result[1] if len(result) > 1 else None
