"""The CUDA backends in the registry and on the command line, where something is missing."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends import registry
from gcnbatch.backends.cuda import backend as backends
from gcnbatch.backends.cuda.runtime import loader
from gcnbatch.backends.cuda.runtime.cache import KernelCache
from gcnbatch.backends.cuda.runtime.context import FEWER_GRAPHS, SMALLER_PARTS
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.cli import app
from gcnbatch.config_sections import CudaConfig
from gcnbatch.errors import BackendUnavailable, InputError
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.conftest import calls
from tests.backends.cuda.fake_pycuda import Fake
from tests.backends.cuda.ops.recorder import Recorder


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, mode: int) -> None:
        raise OSError

    loader.load_cuda.cache_clear()
    monkeypatch.setattr(loader, "load_library", missing)


def states(device: int = 0) -> dict[str, registry.BackendStatus]:
    return {state.name: state for state in registry.status(device)}


def test_without_a_driver_cpu_is_ready_and_the_others_say_why(no_driver) -> None:
    found = states()
    assert [name for name, state in found.items() if state.ready] == ["cpu"]
    assert found["batched"].reason == found["nonbatched"].reason == "no NVIDIA driver (libcuda.so.1 is not here)"
    assert found["batched"].hint == "Install the driver of your GPU, or use --backend cpu."
    assert found["fused"].reason == found["batched"].reason
    assert registry.open_backend("auto").name == "cpu"
    with pytest.raises(
        BackendUnavailable, match=r"backend batched: no NVIDIA driver \(libcuda.so.1 is not here\)\. Inst"
    ):
        registry.open_backend("batched")


def test_with_everything_the_cuda_backends_are_ready(fake: Fake, nvcc, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    assert [name for name, state in states().items() if state.ready] == [
        "cpu",
        "nonbatched",
        "batched",
        "fused",
    ]
    with pytest.raises(InputError, match="device: 7; expected 0 to 1"):
        registry.open_backend("batched", 7)


def test_fused_needs_nvidias_binding_too(fake: Fake, nvcc, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    found = states()
    assert found["batched"].ready
    assert (found["fused"].reason, found["fused"].hint) == (
        "cuda-bindings is not installed",
        "pip install 'gcnbatch[cuda]', or --backend batched.",
    )


def test_without_a_compiler_the_cuda_backends_are_not_ready(fake: Fake, no_compiler, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    assert states()["batched"].reason == "no kernel compiler (neither nvcc with g++ nor NVRTC 12.3 or newer)"


def test_a_device_too_old_for_the_compiler_makes_backends_unavailable(fake: Fake, nvcc, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    fake.devices[1] = ("Fake 70", (7, 0))
    assert states(0)["batched"].ready
    assert "device 1 (Fake 70, compute capability 7.0) is too old for nvcc 13.0.88" in states(1)["batched"].reason


def test_a_device_too_new_for_the_compiler_is_refused_before_opening(fake: Fake, nvcc, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    fake.devices[1] = ("Fake 130", (13, 0))
    assert states(0)["batched"].ready
    found = states(1)["batched"]
    assert (found.reason, found.hint) == (
        "nvcc 13.0.88, which compiles for sm_75 to sm_121, does not know device 1 (Fake 130, compute capability 13.0)",
        "Install a newer CUDA toolkit and point CUDA_HOME to it, or use --backend cpu.",
    )
    assert sorted(calls(nvcc)) == ["architectures", "version"], "asked once"


def test_opening_compiles_first_and_returns_the_device(fake: Fake, nvcc, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("atexit.register", lambda function, *rest, **named: None)
    backend = registry.open_backend("nonbatched", 1)
    assert (backend.name, backend.device.name) == ("nonbatched", "Fake 75")
    compiled = {cubin.file for cubin in KernelCache(tmp_path / "cache" / "kernels").cubins()}
    assert compiled == set(Sources(cuda_sources())) - {"fused/narrow/warps.cu"}, "those of cohorts wait for one"


@pytest.mark.parametrize("options", [("--backend", "batched"), ("--backend", "nonbatched", "--device", "1")])
def test_training_without_a_driver_exits_with_code_3_and_one_line(
    no_driver, monkeypatch, tmp_path, capsys, options
) -> None:
    monkeypatch.setattr(sys, "argv", ["gcnbatch", "train", "-o", str(tmp_path / "run"), *options])
    with pytest.raises(SystemExit) as left:
        app.main()
    printed = capsys.readouterr()
    assert (left.value.code, printed.out) == (3, "")
    assert printed.err == (
        f"error: backend {options[1]}: no NVIDIA driver (libcuda.so.1 is not here). "
        "Install the driver of your GPU, or use --backend cpu.\n"
    )
    assert not (tmp_path / "run").exists()


def test_training_wakes_the_gpu_that_it_will_use(no_driver, monkeypatch, tmp_path, capsys) -> None:
    woken = []
    monkeypatch.setattr(loader, "wake", woken.append)
    for backend in ("cpu", "batched"):
        command = ["gcnbatch", "train", "--backend", backend, "--device", "1", "--data", str(tmp_path / "none.h5")]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit):
            app.main()
    assert woken == [1]
    capsys.readouterr()


def test_an_incomplete_pycuda_makes_backends_unavailable(monkeypatch) -> None:
    loader.load_cuda.cache_clear()
    monkeypatch.setattr(loader, "load_library", lambda name, mode: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pycuda", ModuleType("pycuda"))
    assert states()["batched"].reason == "PyCUDA lacks the module pycuda.driver"


@pytest.mark.parametrize(("graphs", "expected"), [(1, SMALLER_PARTS), (2, FEWER_GRAPHS)])
def test_without_memory_one_graph_is_not_given_smaller_batches(graphs: int, expected: str, monkeypatch) -> None:
    monkeypatch.setattr(backends, "open_batches", lambda *about: None)
    device: Any = Recorder()
    device.memory = lambda: SimpleNamespace(free=0)
    source: Any = SimpleNamespace(n_graphs=graphs)
    backends.CudaBackend("batched", device, CudaConfig()).feed(source, np.zeros(1))
    assert device.takes_less == expected
