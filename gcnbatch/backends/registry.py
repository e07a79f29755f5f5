"""Which backends exist, whether each can start here, and the opening of one. Nothing falls back silently."""

from __future__ import annotations

from typing import NamedTuple

from gcnbatch.backends.base import Backend
from gcnbatch.config import CudaConfig
from gcnbatch.errors import BackendUnavailable, InputError, nearest

FASTEST_FIRST = ("fused", "batched", "nonbatched", "cpu")
CUDA = ("nonbatched", "batched", "fused")
PLAIN = CudaConfig()
# us a training step of Tox21, 2 x 64, batch 50: on two cores with Numba, on an NVIDIA H200; as in README.md
MEASURED = {"cpu": 940, "nonbatched": 6_198, "batched": 253, "fused": 23}


class BackendStatus(NamedTuple):
    """Whether a backend can start here, and if not, why and what to do."""

    name: str
    ready: bool
    reason: str = ""
    hint: str = ""


def status(device: int = 0) -> list[BackendStatus]:
    """Return the state of every backend, slowest first; the CUDA backends' on this device."""
    return [_probe(name, device) for name in reversed(FASTEST_FIRST)]


def open_backend(name: str, device: int = 0, options: CudaConfig = PLAIN) -> Backend:
    """Open the backend `name`; ``"auto"`` takes the fastest that can start (and can take the task; see `make_runner`).

    Parameters
    ----------
    device : int
        The CUDA backends' device, among those that CUDA_VISIBLE_DEVICES shows.
    options : CudaConfig
        How the CUDA backends compute.

    Raises
    ------
    InputError
        Unknown name, or no such device.
    BackendUnavailable
        With the reason and the mend.
    """
    automatic = name == "auto"
    if automatic:
        name = next(candidate for candidate in FASTEST_FIRST if _probe(candidate, device).ready)
    if name not in FASTEST_FIRST:
        raise InputError(
            "backend", f"'{name}'", f"auto, {', '.join(reversed(FASTEST_FIRST))}", nearest(name, FASTEST_FIRST)
        )
    state = _probe(name, device)
    if not state.ready:
        raise BackendUnavailable(f"backend {name}", state.reason, hint=state.hint)
    if name in CUDA:
        from gcnbatch.backends import cuda

        return cuda.open_backend(name, device, options, automatic)
    from gcnbatch.backends.cpu import open_cpu

    return open_cpu()


def _probe(name: str, device: int) -> BackendStatus:
    if name in CUDA:
        from gcnbatch.backends import cuda

        try:
            (cuda.check_fused if name == "fused" else cuda.check)(device)
        except BackendUnavailable as error:
            return BackendStatus(name, False, error.got, error.hint)
    return BackendStatus(name, True)
