"""Every kernel compiles for every architecture without warnings and spills, and within its launch bounds.

nvcc compiles each text that the preprocessor can make of the sources once, or for every architecture if NVRTC is
missing. NVRTC, which has the same code generator and assembler but other built-in headers, compiles for the other
architectures and for Hopper's, with all kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gcnbatch.backends.cuda.runtime.compiler import (
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
from gcnbatch.backends.cuda.runtime.sources import KernelSource, Sources
from gcnbatch.resources import cuda_sources

REGISTERS = 65_536  # of a multiprocessor, on every architecture listed
HOPPER = arch_of((9, 0))  # as a device asks for it, with its tensor-core kernels
# With it all that nvcc 13 offers.
OTHERS = [f"sm_{number}" for number in (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)]
ARCH_CONDITION = re.compile(r"^#\s*(?:el)?if(?:def)? (.*CUDA_ARCH.*(?:(?<=\\)\n.*)*)", flags=re.MULTILINE)
BOUNDS = re.compile(r"__launch_bounds__\(([\w:]+)(?:, (\d+))?\)\s*(?:void\s+)?(?:[A-Z_0-9]+\s+)?(\w+)\(")


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(cuda_sources())


def text_for(arch: str) -> tuple[bool, ...]:
    """Return which `#if` conditions on the architecture hold. Equal results mean equal preprocessed texts."""
    number = arch.removeprefix("sm_").rstrip("a")
    files = sorted(path for path in cuda_sources().rglob("*") if path.suffix in (".cu", ".cuh"))
    conditions = [condition for path in files for condition in ARCH_CONDITION.findall(path.read_text(encoding="utf-8"))]
    replaced = {
        "\\\n": " ",
        "defined(__CUDA_ARCH__)": "True",
        "__CUDA_ARCH__": f"{number}0",
        "__CUDA_ARCH_FEAT_SM90_ALL": str(arch == "sm_90a"),
        "&&": "and",
        "||": "or",
    }
    for old, new in replaced.items():
        conditions = [condition.replace(old, new) for condition in conditions]
    return tuple(eval(condition, {}) for condition in conditions)


def cases() -> Iterator[Any]:
    """Yield the pairs (compiler, architecture) to compile with and for."""
    architectures = (HOPPER, *OTHERS)
    first_of_text = {text_for(arch): arch for arch in reversed(architectures)}
    texts = first_of_text.values() if find_nvrtc() else architectures
    nvcc_compiles = texts if find_nvcc() else ()
    for arch in architectures:
        for name in ("nvcc", "NVRTC"):
            if (arch in nvcc_compiles) == (name == "nvcc") or arch == HOPPER:
                slow = () if arch == HOPPER else pytest.mark.slow
                yield pytest.param(name, arch, marks=slow, id=f"{arch}-{name}")


def find(name: str) -> Compiler:
    if name == "NVRTC":
        nvrtc = find_nvrtc()
        return nvrtc if nvrtc else pytest.skip("NVRTC is not installed (the extra 'nvrtc13')")
    path = find_nvcc()
    return Nvcc(path, nvcc_version(path), nvcc_architectures(path)) if path else pytest.skip("nvcc is not installed")


def complaints(source: KernelSource, log: str) -> Iterator[str]:
    """Yield the faults of a compiled file, from the output of compiler and assembler."""
    yield from (line for line in log.splitlines() if "warning" in line)
    if set(re.findall(r"(\d+) bytes stack frame", log)) != {"0"}:
        yield f"{source.name} has a stack frame"
    taken = usages(log)
    for name in {entry.name for entry in source.entries} ^ taken.keys():
        yield f"{name} is not both in the source and in the machine code"
    number = source.declarations.constant
    bounds = {
        name: (int(threads) if threads.isdigit() else number(threads)) * int(blocks or 1)
        for threads, blocks, name in BOUNDS.findall(source.text)
    }
    for name, usage in taken.items():
        if usage.spilled:
            yield f"{name} spills {usage.spilled} bytes"
        allocated = -(-usage.registers // 8) * 8  # registers are allocated in units of eight per thread
        if allocated * bounds.get(name, 1024) > REGISTERS:
            yield f"{name} takes {usage.registers} registers, too many for its block"


def test_architectures_differ_in_text_by_generation_and_hopper_features() -> None:
    assert text_for("sm_86") == text_for("sm_89") != text_for("sm_80")
    assert len({text_for(arch) for arch in (HOPPER, "sm_75", "sm_80", "sm_90")}) == 4


# One test for each case: tests of one case may run in several processes, and each would compile everything.
@pytest.mark.parametrize(("name", "arch"), list(cases()))
def test_every_kernel_compiles_without_warnings_and_spills(name: str, arch: str, sources: Sources) -> None:
    compiler = find(name)
    if not knows(compiler, arch):
        pytest.skip(f"this {name} does not know {arch}")
    wanted = [(source, flags) for source in sources.values() for flags in source.variants]
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda one: compiler.compile(one[0], arch, one[1]).log, wanted))
    found = zip((source for source, _ in wanted), logs, strict=True)
    assert [complaint for source, log in found for complaint in complaints(source, log)] == []
