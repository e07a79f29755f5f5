"""The fused backend: a training step in a few launches, captured once and replayed as one graph.

A folder for each form of the step (`narrow`, `wide`, `fp16`, `kipf`), and `shared`; `engine` runs a form's launches as
replays of a CUDA graph. ``cuda_src/fused/FUSED.md`` follows a step through its kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcnbatch.backends import cuda

if TYPE_CHECKING:
    from gcnbatch.backends.cuda.fused.backend import FusedBackend
    from gcnbatch.config_sections import CudaConfig


def check(device: int = 0) -> None:
    """Raise unless the backend can start: as `gcnbatch.backends.cuda.check`, and NVIDIA's binding is there.

    Raises
    ------
    BackendUnavailable, InputError
    """
    from gcnbatch.backends.cuda.runtime.graph import load_bindings

    cuda.check(device)
    load_bindings()


def open_backend(name: str, device: int = 0, options: CudaConfig | None = None) -> FusedBackend:
    """Open the backend on a device; as `gcnbatch.backends.cuda.open_backend`."""
    from gcnbatch.backends.cuda.fused.backend import FusedBackend
    from gcnbatch.config_sections import CudaConfig

    options = options or CudaConfig()
    return FusedBackend(name, cuda.open_ready(device, options.fast_math), options)
