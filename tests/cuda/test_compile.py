"""Every kernel compiles for every architecture without a warning, keeps to registers, and fits its launch bound."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from gcnbatch.backends.cuda.compiler import (
    Compiler,
    Nvcc,
    arch_of,
    find_nvcc,
    find_nvrtc,
    knows,
    nvcc_architectures,
    nvcc_version,
    usages,
)
from gcnbatch.backends.cuda.sources import Sources
from gcnbatch.resources import cuda_sources

REGISTERS = 65_536  # of a multiprocessor, on every architecture listed
HOPPER = arch_of((9, 0))  # as a device asks for it, with its tensor-core kernels
# With it all that nvcc 13 offers.
OTHERS = [f"sm_{number}" for number in (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)]
BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, (\d+))?\)\s*(?:void\s+)?(?:[A-Z_0-9]+\s+)?(\w+)\(")


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(cuda_sources())


@pytest.fixture(scope="module", params=["nvcc", "NVRTC"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    if request.param == "NVRTC":
        nvrtc = find_nvrtc()
        return nvrtc if nvrtc else pytest.skip("NVRTC is not installed (the extra 'nvrtc13')")
    path = find_nvcc()
    return Nvcc(path, nvcc_version(path), nvcc_architectures(path)) if path else pytest.skip("nvcc is not installed")


@pytest.fixture(scope="module", params=[HOPPER, *(pytest.param(arch, marks=pytest.mark.slow) for arch in OTHERS)])
def logs(request: pytest.FixtureRequest, compiler: Compiler, sources: Sources) -> dict[str, str]:
    """What the compiler and the assembler say of each file."""
    if not knows(compiler, request.param):
        pytest.skip(f"this {compiler.name} does not know {request.param}")
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
