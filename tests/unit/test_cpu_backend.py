"""Which operations the cpu backend takes."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from gcnbatch.backends import cpu
from gcnbatch.backends.cpu import CpuOps
from gcnbatch.backends.registry import open_backend


def test_without_numba_operations_are_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    backend = open_backend("cpu")
    assert type(backend.ops) is CpuOps
    assert backend.meter.about()["loops"] == "NumPy"


def test_with_numba_operations_are_compiled() -> None:
    pytest.importorskip("numba", reason="Numba is not installed (the extra 'fast')")
    from gcnbatch.backends.compiled import CompiledOps

    backend = open_backend("cpu")
    assert type(backend.ops) is CompiledOps
    assert backend.meter.about()["loops"] == f"Numba {version('numba')}"
