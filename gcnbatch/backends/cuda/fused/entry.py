"""Entry points of the backend ``fused``: check that it can start, and open it."""

from __future__ import annotations

from gcnbatch.backends.cuda import entry
from gcnbatch.backends.cuda.fused.backend import FusedBackend
from gcnbatch.backends.cuda.runtime.graph import load_bindings
from gcnbatch.config_sections import CudaConfig


def check(device: int = 0) -> None:
    """Raise unless the backend can start: `gcnbatch.backends.cuda.entry.check` passes and cuda-bindings is installed.

    Raises
    ------
    BackendUnavailable, InputError
    """
    entry.check(device)
    load_bindings()


def open_backend(name: str, device: int = 0, options: CudaConfig | None = None) -> FusedBackend:
    """Open the backend on a device, as `gcnbatch.backends.cuda.entry.open_backend` does."""
    options = options or CudaConfig()
    return FusedBackend(name, entry.open_ready(device, options.fast_math), options)
