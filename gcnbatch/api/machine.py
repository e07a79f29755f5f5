"""The machine and its compiled kernels from Python, and the commands ``info`` and ``kernels``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import optional_path
from gcnbatch.backends import registry
from gcnbatch.options.declaration import arguments
from gcnbatch.options.machine import BuildKernelsOptions

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.runtime.cache import Cubin
    from gcnbatch.errors import GcnbatchError
    from gcnbatch.fileio import StrPath


def info() -> dict[str, Any]:
    """Return the state of this installation on this machine: backends, devices, versions.

    Returns
    -------
    dict
        Plain values for JSON. ``backends`` has a dict per backend: ``name``, ``ready`` and, where it is not ready,
        ``reason`` and ``hint``.

    Examples
    --------
    >>> import gcnbatch
    >>> {state["name"]: state["ready"] for state in gcnbatch.info()["backends"]}["cpu"]
    True
    """
    from gcnbatch import environment
    from gcnbatch.backends.cuda.runtime import inventory
    from gcnbatch.ranks import inventory as ranks

    backends = []
    for state in registry.status():
        entry = registry.entry(state.name)
        step_us, machine = entry.step_time or (None, None)
        about = {"summary": entry.summary, "measured_us": step_us, "measured_on": machine}
        backends.append({**state._asdict(), **about})
    return {**environment.collect(), "cuda": inventory.collect(), "ranks": ranks.collect(), "backends": backends}


@arguments(BuildKernelsOptions)
def build_kernels(given: BuildKernelsOptions) -> tuple[list[dict[str, Any]], list[GcnbatchError]]:
    """Compile every CUDA kernel that is not yet in the cache; needs a compiler, but no GPU.

    Returns
    -------
    kernels : list of dict
        As of `list_kernels`, for these architectures.
    failures : list of GcnbatchError
        A distinct error per source that cannot be compiled.

    Raises
    ------
    InputError
        For a name that is no architecture; for no name where there is no device.
    MachineError
        When the cache cannot be written.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.build_kernels(["hopper"])
    Traceback (most recent call last):
        ...
    gcnbatch.errors.InputError: --arch: 'hopper'; expected sm_ and the compute capability's digits, such as sm_90
    """
    from gcnbatch.backends.cuda.runtime import loader
    from gcnbatch.backends.cuda.runtime.cache import KernelCache
    from gcnbatch.backends.cuda.runtime.sources import Sources
    from gcnbatch.progress import counter
    from gcnbatch.resources import cuda_sources

    names, sources = loader.architectures(given.architectures), list(Sources(cuda_sources()).values())
    place = optional_path(given.folder)
    alone = KernelCache(place, replaceable=False)
    cohort = KernelCache(place, cohort=True, replaceable=False)
    wanted = [(alone, [one for one in sources if alone.takes(one)])]
    wanted.append((cohort, [one for one in sources if one.knows_cohorts and cohort.takes(one)]))
    total = sum(len(of) for _, of in wanted) * len(names)
    with counter(total, " files", leave=False, quiet=not given.progress) as bar:
        built = [cache.build(of, name, lambda file: bar.update()) for name in names for cache, of in wanted]
    failures = {str(error): error for errors in built for error in errors.values()}
    found = [cache.find(one, name) for name in names for cache, of in wanted for one in of]
    return [_about(cubin) for cubin in found if cubin], list(failures.values())


def list_kernels(folder: StrPath | None = None) -> list[dict[str, Any]]:
    """Return what a cache of compiled kernels holds, a dict per file.

    Parameters
    ----------
    folder : path
        Of the cache; None: the user's.

    Returns
    -------
    list of dict
        ``file``, ``arch``; ``kernels``, most ``registers`` of one and bytes ``spilled`` by all, None where the
        compiler left no log; ``bytes`` of the file.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.list_kernels("kernels")
    []
    """
    from gcnbatch.backends.cuda.runtime.cache import KernelCache

    return [_about(cubin) for cubin in KernelCache(optional_path(folder)).cubins()]


def clear_kernels(folder: StrPath | None = None) -> int:
    """Remove every kernel from a cache, and return the number of files; the next start compiles again.

    Parameters
    ----------
    folder : path
        Of the cache; None: the user's.

    Raises
    ------
    MachineError
        When the folder cannot be written.

    Examples
    --------
    >>> import gcnbatch
    >>> gcnbatch.clear_kernels("kernels")
    0
    """
    from gcnbatch.backends.cuda.runtime.cache import KernelCache

    return KernelCache(optional_path(folder)).clear()


def _about(cubin: Cubin) -> dict[str, Any]:
    usages = cubin.usages.values()
    return {
        "file": cubin.file,
        "arch": cubin.arch,
        "kernels": len(usages) or None,
        "registers": max((usage.registers for usage in usages), default=None),
        "spilled": sum(usage.spilled for usage in usages) if usages else None,
        "bytes": cubin.path.stat().st_size,
    }
