"""The CUDA installation of this machine, for ``gcnbatch info`` and reports: each part, or the reason it is missing."""

from __future__ import annotations

from typing import Any

from gcnbatch.backends.cuda.runtime import compiler, loader, nccl
from gcnbatch.backends.cuda.runtime.cache import KernelCache
from gcnbatch.errors import BackendUnavailable


def collect() -> dict[str, Any]:
    """Return plain values for JSON: ``driver``, ``devices``, ``compiler``, ``nccl``, ``cache``, ``missing``.

    A missing part is None (devices: an empty list); ``missing`` holds the reason and the fix under the same name.
    """
    found: dict[str, Any] = {"driver": None, "devices": [], "compiler": None, "nccl": None, "missing": {}}
    try:
        major, minor = loader.driver_cuda_version()
        found["driver"] = f"CUDA {major}.{minor}"
    except BackendUnavailable as error:
        found["missing"]["driver"] = _why(error)
    try:
        found["devices"] = [_device(device) for device in loader.devices()]
    except BackendUnavailable as error:
        found["missing"]["devices"] = _why(error)
    cache = KernelCache()
    if cache.compiler:
        found["compiler"] = f"{cache.compiler.name} {cache.compiler.version}"
    else:
        found["missing"]["compiler"] = _why(compiler.no_compiler())
    try:
        found["nccl"] = f"NCCL {nccl.version(nccl.load_nccl())}"
    except BackendUnavailable as error:
        found["missing"]["nccl"] = _why(error)
    sizes = [cubin.path.stat().st_size for cubin in cache.cubins()]
    found["cache"] = {"folder": str(cache.folder), "files": len(sizes), "bytes": sum(sizes)}
    return found


def _device(device: loader.DeviceInfo) -> dict[str, Any]:
    return {**device._asdict(), "capability": "{}.{}".format(*device.capability)}


def _why(error: BackendUnavailable) -> str:
    return f"{error.got}. {error.hint}"
