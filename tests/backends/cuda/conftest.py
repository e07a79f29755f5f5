"""Fixtures of the CUDA tests: a stand-in for PyCUDA, kernels to compile, and compilers that count their calls."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gcnbatch.backends.cuda.runtime import compiler, device, loader
from gcnbatch.backends.cuda.runtime.cache import KernelCache
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.backends.cuda.runtime.sources import KernelSource, Sources
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.fake_pycuda import Fake

HEADER = "__device__ inline float twice(float x) { return 2 * x; }\n"
SCALE = """\
#include "shared.cuh"
// extern "C" __global__ void not_this_one(int n)
extern "C" __global__ void __launch_bounds__(32 * (2 + 2), 2) scale_forward(
    float* __restrict__ y, const float* __restrict__ x /* (N,) */, const int* __restrict__ rows, long long n) {
  if (threadIdx.x < n) y[threadIdx.x] = twice(x[rows[threadIdx.x]]);
}
extern "C" __global__ void scale_count(unsigned long long* count, unsigned n, float by) { *count += n * by; }
"""
PLAIN = 'extern "C" __global__ void plain(unsigned char* bytes, int n) { bytes[0] = n; }\n'
STRUCT = """\
#include "shared.cuh"
namespace ours {
struct Scale { float* y; const float* x; int n; bool twice; };
}
extern "C" __global__ void scale_struct(const __grid_constant__ ours::Scale scale) {
  for (int i = 0; i < scale.n; ++i) scale.y[i] = scale.twice ? twice(scale.x[i]) : scale.x[i];
}
"""

# Writes what it is asked for, and a line per compilation into calls.txt.
NVCC = """\
#!/bin/sh
folder=$(dirname "$0")
if [ "$1" = --version ]; then echo version >> "$folder/calls.txt"; echo "release 13.0, V13.0.88"; exit 0; fi
if [ "$1" = --list-gpu-code ]; then
  echo architectures >> "$folder/calls.txt"; printf 'sm_75\\nsm_80\\nsm_90\\nsm_121\\nsm_100\\n'; exit 0
fi
for last; do :; done
if [ "$GCNBATCH_TEST_SECONDS" ]; then sleep "$GCNBATCH_TEST_SECONDS"; fi
echo "$last" >> "$folder/calls.txt"
if [ "$GCNBATCH_TEST_HOST" ]; then echo "$GCNBATCH_TEST_HOST" >&2; exit 1; fi
if grep -q 'not C' "$last"; then echo "$last(3): error: expected a declaration" >&2; exit 1; fi
cp "$last" out.cubin
echo "ptxas info    : Compiling entry function 'scale_forward' for 'sm_90'" >&2
echo "    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads" >&2
echo "ptxas info    : Used 17 registers, used 0 barriers" >&2
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A machine with a driver, PyCUDA and two devices."""
    made = Fake()
    for name, module in made.modules().items():
        monkeypatch.setitem(sys.modules, name, module)

    def version(held: ctypes.c_int) -> int:
        held.value = made.cuda
        return 0

    library = SimpleNamespace(cuDriverGetVersion=lambda by_reference: version(by_reference._obj))
    monkeypatch.setattr(loader, "load_library", lambda name, mode: library)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("driver"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    loader.load_cuda.cache_clear()
    monkeypatch.setattr(device, "_open", {})
    yield made
    loader.load_cuda.cache_clear()


@pytest.fixture
def machine(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The first device of the stand-in, opened, with all kernels of the package; they need no compiler."""
    monkeypatch.setattr("atexit.register", lambda function: None)
    monkeypatch.setattr(KernelCache, "build", lambda *about: None)
    monkeypatch.setattr(KernelCache, "load", _empty_cubin)
    device._open[0] = Device(0, KernelCache(), package_sources())
    return fake


def _empty_cubin(cache: KernelCache, source: KernelSource, arch: str) -> bytes:
    assert cache.takes(source), f"{source.name} does not compile for what launches it"
    return b""


@functools.cache
def package_sources() -> Sources:
    return Sources(cuda_sources())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two sources and a header."""
    place = tmp_path / "cuda_src"
    place.mkdir()
    for name, text in {"shared.cuh": HEADER, "scale.cu": SCALE, "plain.cu": PLAIN}.items():
        (place / name).write_text(text)
    return place


@pytest.fixture
def sources(folder: Path) -> Sources:
    return Sources(folder)


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only nvcc on this machine: it copies its input and logs each call in calls.txt in its folder."""
    home = tmp_path / "toolkit"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "nvcc"
    program.write_text(NVCC)
    program.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(home))
    return program


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_nvcc", lambda: None)
    monkeypatch.setattr(compiler, "find_nvrtc", lambda: None)


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "kernels")


@pytest.fixture
def opened(fake: Fake, nvcc: Path, cache: KernelCache, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> Device:
    """An opened device of the stand-in, with the two sources as its kernels."""
    monkeypatch.setattr("atexit.register", lambda function: None)
    return Device(0, cache, sources)


def calls(nvcc: Path) -> list[str]:
    """Return the logged calls of the fake nvcc."""
    log = nvcc.parent / "calls.txt"
    return log.read_text().split(os.linesep)[:-1] if log.exists() else []


def in_folders(folder: Path) -> Path:
    """Move the sources into folders; includes are written from the root."""
    for name in ("common", "ops/scale"):
        (folder / name).mkdir(parents=True)
    (folder / "shared.cuh").rename(folder / "common" / "shared.cuh")
    text = (folder / "scale.cu").read_text().replace("shared.cuh", "ops/scale/own.cuh")
    (folder / "ops" / "scale" / "own.cuh").write_text('#include "common/shared.cuh"\n')
    (folder / "ops" / "scale" / "scale.cu").write_text(text)
    (folder / "scale.cu").unlink()
    return folder
