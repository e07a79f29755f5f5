"""Loading of PyCUDA and selection of a device. Each missing part has its own error with a fix."""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from threading import Thread
from typing import Any, NamedTuple

from gcnbatch.backends.cuda.runtime.compiler import OLDEST_CAPABILITY, OLDEST_OF_CUDA_13, Compiler, arch_of, knows
from gcnbatch.errors import BackendUnavailable, InputError
from gcnbatch.resources import install_guide
from gcnbatch.timeline import span

LIBRARY = "libcuda.so.1"
load_library = ctypes.CDLL
_CPU = "or use --backend cpu"


class DeviceInfo(NamedTuple):
    """A device as listed by the driver; nothing is started on it.

    Parameters
    ----------
    number : int
        The value of ``--device``; CUDA_VISIBLE_DEVICES selects and orders the devices.
    name : str
    capability : (major, minor)
    memory : int
        Bytes.
    multiprocessors : int
    """

    number: int
    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int


@cache
def load_cuda() -> Any:
    """Return `pycuda.driver`, initialised and with at least one device.

    Raises
    ------
    BackendUnavailable
        No driver, no PyCUDA, a PyCUDA that does not match the driver, a driver that does not start, or no device.
    """
    open_driver()
    driver = _import_pycuda()
    try:
        driver.init()
        count = driver.Device.count()
    except driver.Error as error:
        if "no CUDA-capable device" in str(error):
            raise _no_device() from error
        raise BackendUnavailable(
            "CUDA",
            f"the NVIDIA driver does not start ({error})",
            hint=f"See whether nvidia-smi runs; reinstall the driver or restart the machine, {_CPU}.",
        ) from error
    if count == 0:
        raise _no_device()
    return driver


def open_driver() -> ctypes.CDLL:
    """Load the driver's library, with its symbols visible to PyCUDA, and return it.

    Raises
    ------
    BackendUnavailable
        When this machine has no NVIDIA driver.
    """
    try:
        return load_library(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BackendUnavailable(
            "CUDA", f"no NVIDIA driver ({LIBRARY} is not here)", hint=f"Install the driver of your GPU, {_CPU}."
        ) from error


def wake(number: int) -> Thread | None:
    """Initialise the driver and device `number` in a thread, while Python still imports modules.

    Initialisation takes a fifth of a second, during which the thread does not hold Python's lock. Errors are ignored
    here: `choose` reports them. Without a driver or PyCUDA, do nothing and return None.
    """
    if find_spec("pycuda") is None:
        return None
    with suppress(BackendUnavailable):
        thread = Thread(target=_wake, args=(open_driver(), number), daemon=True)
        thread.start()
        return thread
    return None


def _wake(driver: ctypes.CDLL, number: int) -> None:
    context = ctypes.c_void_p()
    with span("start the GPU"):
        if driver.cuInit(0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)


def driver_cuda_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports, such as (13, 0).

    Raises
    ------
    BackendUnavailable
        When this machine has no NVIDIA driver.
    """
    version = ctypes.c_int()
    open_driver().cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def devices() -> list[DeviceInfo]:
    """Return every visible device.

    Raises
    ------
    BackendUnavailable
        As `load_cuda`, or a device does not answer.
    """
    driver = load_cuda()
    found = []
    for number in range(driver.Device.count()):
        try:
            device = driver.Device(number)
            sms = device.get_attribute(driver.device_attribute.MULTIPROCESSOR_COUNT)
            found.append(DeviceInfo(number, device.name(), device.compute_capability(), device.total_memory(), sms))
        except driver.Error as error:
            hint = f"See what nvidia-smi says of it; hide it by CUDA_VISIBLE_DEVICES, {_CPU}."
            raise BackendUnavailable("CUDA", f"device {number} does not answer ({error})", hint=hint) from error
    return found


def choose(number: int) -> DeviceInfo:
    """Return device `number`, if kernels can be compiled for it.

    Raises
    ------
    InputError
        When there is no such device.
    BackendUnavailable
        As `load_cuda`; or the device is older than compute capability 7.0.
    """
    found = devices()
    if number >= len(found):
        hidden = f", of those that CUDA_VISIBLE_DEVICES={_visible()} shows" if _visible() is not None else ""
        raise InputError("device", str(number), f"0 to {len(found) - 1}{hidden}", "'gcnbatch info' lists the devices.")
    if found[number].capability < OLDEST_CAPABILITY:
        raise BackendUnavailable(
            "CUDA", f"{_named(found[number])} is older than 7.0", hint=f"Choose another --device, {_CPU}."
        )
    return found[number]


def architectures(asked: Iterable[str] | None) -> list[str]:
    """Return the architectures to compile for: the named ones, or those of the visible devices.

    Raises
    ------
    InputError
        When a name does not have the form sm_90, or no name is given and there is no device.
    """
    if not asked:
        try:
            return sorted({arch_of(device.capability) for device in devices()})
        except BackendUnavailable as error:
            raise InputError("--arch", f"not given, and {error.got}", "an architecture such as sm_90") from error
    found: dict[str, None] = {}
    for name in asked:
        digits = re.fullmatch(r"sm_(\d{1,2})(\d)[af]?", name)
        if not digits:
            raise InputError("--arch", f"'{name}'", "sm_ and the compute capability's digits, such as sm_90")
        found[arch_of((int(digits[1]), int(digits[2])))] = None
    return list(found)


def check_compiler(device: DeviceInfo, compiler: Compiler) -> None:
    """Raise BackendUnavailable if this compiler is known not to support `device` or its driver.

    A driver loads cubins of toolkits of its own major version and of older ones.
    """
    name, version = compiler.name, compiler.version
    major, newest = int(version.partition(".")[0]), driver_cuda_version()
    if major >= 13 and device.capability < OLDEST_OF_CUDA_13:
        raise BackendUnavailable(
            "CUDA",
            f"{_named(device)} is too old for {name} {version}, which compiles for 7.5 and newer",
            hint=f"Install CUDA toolkit 12 and point CUDA_HOME to it, {_CPU}.",
        )
    if major > newest[0]:
        raise BackendUnavailable(
            "CUDA",
            f"the driver, for CUDA {newest[0]}.{newest[1]}, is older than {name} {version}",
            hint=f"Update the driver, or install CUDA toolkit {newest[0]} and point CUDA_HOME to it, {_CPU}.",
        )
    if not knows(compiler, arch_of(device.capability)):
        first, last = compiler.architectures[0], compiler.architectures[-1]
        raise BackendUnavailable(
            "CUDA",
            f"{name} {version}, which compiles for {first} to {last}, does not know {_named(device)}",
            hint=f"Install a newer CUDA toolkit and point CUDA_HOME to it, {_CPU}.",
        )


def _named(device: DeviceInfo) -> str:
    major, minor = device.capability
    return f"device {device.number} ({device.name}, compute capability {major}.{minor})"


def _import_pycuda() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pycuda.driver
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            "CUDA",
            "PyCUDA is not installed" if error.name == "pycuda" else f"PyCUDA lacks the module {error.name}",
            hint=f"pip install 'gcnbatch[cuda]' ({install_guide()} says how without a CUDA toolkit), {_CPU}.",
        ) from error
    except ImportError as error:
        raise BackendUnavailable(
            "CUDA",
            f"this PyCUDA does not match the driver ({error})",
            hint=f"Build it again with headers no newer than the driver, as {install_guide()} says, {_CPU}.",
        ) from error
    return pycuda.driver


def _no_device() -> BackendUnavailable:
    hint = f"See what nvidia-smi lists, {_CPU}."
    if _visible() is not None:
        hint = f"CUDA_VISIBLE_DEVICES={_visible()} hides the others, if any: unset it. {hint}"
    return BackendUnavailable("CUDA", "the driver runs, but there is no device", hint=hint)


def _visible() -> str | None:
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else repr(value)
