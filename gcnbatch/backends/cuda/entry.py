"""Entry points of the backends ``batched`` and ``nonbatched``: check and open."""

from __future__ import annotations

from gcnbatch.backends.cuda.backend import CudaBackend
from gcnbatch.backends.cuda.runtime import compiler, loader
from gcnbatch.backends.cuda.runtime.cache import KernelCache
from gcnbatch.backends.cuda.runtime.device import Device, open_device
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.config_sections import CudaConfig
from gcnbatch.progress import counter
from gcnbatch.resources import cuda_sources


def check(device: int = 0) -> None:
    """Raise unless kernels can be compiled for this device and run on it; start nothing on it.

    Raises
    ------
    BackendUnavailable
        With the reason in `got` and the fix in `hint`.
    InputError
        When there is no device of this number.
    """
    info, cache = loader.choose(device), KernelCache()
    arch = compiler.arch_of(info.capability)
    if cache.compiler:
        loader.check_compiler(info, cache.compiler)
    elif not all(cache.find(source, arch) for source in Sources(cuda_sources()).values() if cache.takes(source)):
        raise compiler.no_compiler()


def open_backend(name: str, device: int = 0, options: CudaConfig | None = None) -> CudaBackend:
    """Open ``"nonbatched"`` or ``"batched"`` on a device; compile kernels that are not cached.

    Raises
    ------
    BackendUnavailable, InputError
        As `check`.
    MachineError
        When the device does not open.
    """
    options = options or CudaConfig()
    return CudaBackend(name, open_ready(device, options.fast_math), options)


def open_ready(device: int = 0, fast_math: bool = False) -> Device:
    """Open a device and compile the kernels that are not in the cache; `fast_math` compiles them with fast-math.

    Raises
    ------
    BackendUnavailable, InputError, MachineError
        As `open_backend`.
    """
    check(device)
    opened = open_device(device)
    if fast_math:
        opened = opened.fast_math()
    with counter(None, " files", "compiling kernels", delay=0.5, leave=False) as bar:
        opened.kernels.prepare(lambda file: bar.update())
    return opened
