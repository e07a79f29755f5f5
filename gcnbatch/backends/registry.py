"""Which backends exist, whether each can start here, and the opening of one. Nothing falls back silently."""

from __future__ import annotations

from typing import NamedTuple

from gcnbatch.backends.base import Backend
from gcnbatch.errors import BackendUnavailable, InputError, nearest

FASTEST_FIRST = ("fused", "batched", "nonbatched", "cpu")


class BackendStatus(NamedTuple):
    """Whether a backend can start here, and if not, why and what to do."""

    name: str
    ready: bool
    reason: str = ""
    hint: str = ""


def status() -> list[BackendStatus]:
    """Return the state of every backend, slowest first."""
    return [_probe(name) for name in reversed(FASTEST_FIRST)]


def open_backend(name: str) -> Backend:
    """Open the backend `name`; ``"auto"`` takes the fastest that can start.

    Raises
    ------
    InputError
        Unknown name.
    BackendUnavailable
        With the reason and the mend.
    """
    if name == "auto":
        name = next(candidate for candidate in FASTEST_FIRST if _probe(candidate).ready)
    if name not in FASTEST_FIRST:
        raise InputError(
            "backend", f"'{name}'", f"auto, {', '.join(reversed(FASTEST_FIRST))}", nearest(name, FASTEST_FIRST)
        )
    state = _probe(name)
    if not state.ready:
        raise BackendUnavailable(f"backend {name}", state.reason, hint=state.hint)
    from gcnbatch.backends.cpu import CpuBackend

    return CpuBackend()


def _probe(name: str) -> BackendStatus:
    if name == "cpu":
        return BackendStatus(name, True)
    return BackendStatus(name, False, "not part of this version yet", "Use --backend cpu.")
