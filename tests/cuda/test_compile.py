"""Every kernel compiles for every architecture without a warning, keeps to registers, and fits its launch bound."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from gcnbatch.backends.cuda.compiler import Nvcc, find_nvcc, find_nvrtc, nvcc_version, usages
from gcnbatch.backends.cuda.sources import Sources
from gcnbatch.resources import cuda_sources

NVCC = find_nvcc()
REGISTERS = 65_536  # of a multiprocessor, on every architecture listed
# With sm_90a all that nvcc 13 offers.
OTHERS = [f"sm_{number}" for number in (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)]
BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, (\d+))?\)\s*(?:void\s+)?(?:[A-Z_0-9]+\s+)?(\w+)\(")


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(cuda_sources())


@pytest.fixture(scope="module", params=["sm_90a", *(pytest.param(arch, marks=pytest.mark.slow) for arch in OTHERS)])
def logs(request: pytest.FixtureRequest, sources: Sources) -> dict[str, str]:
    """What the compiler and the assembler say of each file."""
    if NVCC is None:
        pytest.skip("nvcc is not installed")
    known = subprocess.run([NVCC, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    if request.param.removesuffix("a") not in known:
        pytest.skip(f"this nvcc does not know {request.param}")
    compiler = Nvcc(NVCC, nvcc_version(NVCC))
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda source: compiler.compile(source, request.param).log, sources.values())
        return dict(zip(sources, compiled, strict=True))


def test_there_is_no_warning(logs: dict[str, str]) -> None:
    assert [line for log in logs.values() for line in log.splitlines() if "warning" in line] == []


def test_every_kernel_is_there_and_keeps_to_registers(logs: dict[str, str], sources: Sources) -> None:
    for file, log in logs.items():
        taken = usages(log)
        assert taken.keys() == {entry.name for entry in sources[file].entries}
        assert {name: usage.spilled for name, usage in taken.items() if usage.spilled} == {}
        assert set(re.findall(r"(\d+) bytes stack frame", log)) == {"0"}, file


def test_blocks_fit_the_register_file(logs: dict[str, str], sources: Sources) -> None:
    for file, log in logs.items():
        bounds = {name: int(threads) * int(blocks or 1) for threads, blocks, name in BOUNDS.findall(sources[file].text)}
        for name, usage in usages(log).items():
            allocated = -(-usage.registers // 8) * 8  # registers are given to a thread by eights
            assert allocated * bounds.get(name, 1024) <= REGISTERS, name


def test_nvrtc_takes_every_source(sources: Sources) -> None:
    nvrtc = find_nvrtc()
    if nvrtc is None:
        pytest.skip("NVRTC is not installed (the extra 'nvrtc13')")
    for source in sources.values():
        log = nvrtc.compile(source, "sm_90").log
        assert usages(log).keys() == {entry.name for entry in source.entries}
        assert "warning" not in log, log
