"""Backend ``cpu``: NumPy and BLAS, SciPy for sparse products, and Numba's loops where the extra ``fast`` is installed.

`ops` holds the operations; `backend` holds memory, batches and clock. `compiled` replaces some of both with Numba's
loops. The modules below never import this one.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from gcnbatch.backends.cpu.backend import CpuBackend, HostBatch, HostFeed, HostMeter
from gcnbatch.backends.cpu.ops import CpuOps

if TYPE_CHECKING:
    from gcnbatch.config_sections import CudaConfig

__all__ = ["CpuBackend", "CpuOps", "HostBatch", "HostFeed", "HostMeter", "check", "open_backend"]


def check(device: int = 0) -> None:
    """Raise nothing: the host can always compute."""


def open_backend(name: str = "cpu", device: int = 0, options: CudaConfig | None = None) -> CpuBackend:
    """Return the backend with Numba's loops if Numba is installed, else with NumPy's."""
    if find_spec("numba") is None:
        return CpuBackend()
    from gcnbatch.backends.cpu.compiled import CompiledBackend

    return CompiledBackend()
