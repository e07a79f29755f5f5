"""The operations of backend cpu with and without Numba, and its number of threads."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from gcnbatch.backends import cpu
from gcnbatch.backends.blas import BlasThreads, shared_processors
from gcnbatch.backends.cpu import CpuOps, ops
from gcnbatch.backends.registry import open_backend


def test_without_numba_operations_are_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    backend = open_backend("cpu")
    assert type(backend.ops) is CpuOps
    assert backend.meter.about()["loops"] == "NumPy"


@pytest.mark.numba
def test_with_numba_operations_are_compiled() -> None:
    from gcnbatch.backends.cpu.compiled import CompiledOps

    backend = open_backend("cpu")
    assert type(backend.ops) is CompiledOps
    assert backend.meter.about()["loops"] == f"Numba {version('numba')}"


@pytest.mark.numba
def test_loops_are_compiled_without_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    from gcnbatch.backends.cpu import compiled

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert compiled.compiled(lambda x: x + 1)(2) == 3


def test_small_products_use_one_thread_and_large_ones_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_ops, asked = CpuOps(), []
    monkeypatch.setattr(ops._threads, "_shares", None)
    monkeypatch.setattr(ops._threads, "_libraries", [(SimpleNamespace(set_num_threads=asked.append), 7)], raising=False)
    small, large = np.ones((100, 100), np.float32), np.ones((1000, 301), np.float32)
    with shared_processors(1):  # a server of other tests may share them meanwhile
        cpu_ops.matmul(small, small)
        cpu_ops.matmul_backward(small, small, small)
        cpu_ops.matmul(large, np.ones((301, 100), np.float32))
        cpu_ops.matmul(small, small)
        with shared_processors():
            cpu_ops.matmul(large, np.ones((301, 100), np.float32))
        cpu_ops.matmul(large, np.ones((301, 100), np.float32))
    assert asked == [1, 7, 1, 3, 7]


def test_blas_threads_are_set_and_restored() -> None:
    threads = BlasThreads()

    def now() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with threadpool_limits(2, "blas"), shared_processors(1):
        before = now()
        threads.fit(1)
        assert now() == [1] * len(before)
        threads.fit(10**9)
        assert now() == before
