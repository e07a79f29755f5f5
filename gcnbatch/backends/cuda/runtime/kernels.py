"""The kernels of one device, each loaded at its first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from gcnbatch.backends.cuda.runtime import compiler, loader
from gcnbatch.backends.cuda.runtime.cache import KernelCache, Progress
from gcnbatch.backends.cuda.runtime.sources import Entry, Sources
from gcnbatch.errors import MachineError


class Kernel(NamedTuple):
    """A loaded kernel: its declaration, PyCUDA's function, and the functions that pack arguments and launch."""

    entry: Entry
    function: Any
    pack: Callable[[Mapping[str, Any]], bytes]
    start: Callable[..., None]


class Kernels(dict[str, Kernel]):
    """Kernels by name. A missing one is loaded, so a launch costs one dictionary look-up.

    Parameters
    ----------
    driver : module
        PyCUDA's driver module, with the device's context.
    capability : (major, minor)
        Compute capability of the device.
    cache : KernelCache
    sources : Sources
    errors : callable
        Returns a context that turns the driver's errors into MachineError.
    """

    def __init__(
        self,
        driver: Any,
        capability: tuple[int, int],
        cache: KernelCache,
        sources: Sources,
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__()
        self._driver, self._arch, self._errors = driver, compiler.arch_of(capability), errors
        self._cache, self._sources = cache, sources
        self._modules: dict[str, Any] = {}
        self._shared: dict[str, int] = {}

    @property
    def compiler(self) -> compiler.Compiler | None:
        """The compiler of kernels that are not in the cache."""
        return self._cache.compiler

    def prepare(self, progress: Progress = lambda file: None) -> None:
        """Compile every kernel that is not in the cache. The first use of a kernel raises its failure."""
        self._cache.build(filter(self._cache.takes, self._sources.values()), self._arch, progress)

    def allow_shared(self, kernel: Kernel, nbytes: int) -> None:
        """Allow `kernel` to use `nbytes` of dynamic shared memory, more than the default limit."""
        if nbytes <= self._shared.get(kernel.entry.name, 0):
            return
        with self._errors():
            kernel.function.set_attribute(self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)
        self._shared[kernel.entry.name] = nbytes

    def cubin(self, name: str) -> tuple[str, bytes]:
        """Return the file of the kernel `name` and its cubin, for callers that load it themselves."""
        file = self[name].entry.file
        return file, self._cache.load(self._sources[file], self._arch)

    def clear(self) -> None:
        """Unload every kernel and module."""
        super().clear()
        self._modules.clear()

    def __missing__(self, name: str) -> Kernel:
        if not self._modules:
            self.prepare()
        entry = self._sources.entries[name]
        if entry.file not in self._modules:
            self._modules[entry.file] = self._load(entry.file)
        with self._errors():
            function = self._modules[entry.file].get_function(name)
        return self.setdefault(name, Kernel(entry, function, entry.layout.pack, function._launch_kernel))

    def _load(self, file: str) -> Any:
        cubin = self._cache.load(self._sources[file], self._arch)
        driver = self._driver
        with self._errors():
            try:
                return driver.module_from_buffer(cubin)
            except (driver.MemoryError, driver.LaunchError):  # the device's failures, not the cubin's
                raise
            except driver.Error as error:
                major, minor = loader.driver_cuda_version()
                raise MachineError(
                    f"{file} for {self._arch}",
                    f"the driver (CUDA {major}.{minor}) does not load it ({error})",
                    hint=f"Update the driver, or compile with CUDA toolkit {major}; then 'gcnbatch kernels clear'.",
                ) from error
