"""Every kernel compiles for every architecture without warnings and spills, and within its launch bounds.

For Hopper, static assertions follow the text: the compiler agrees with the constants and structs that the host reads.

nvcc makes the PTX of each text that the preprocessor can make of a source once, and assembles it for every
architecture of that text, except those whose machine code is that of another. NVRTC, which has the same code generator
and assembler but other built-in headers, makes the PTX of all kernels for Hopper, and for a GPU before it and one after
it that of the texts that differ.

By default nvcc compiles four sources. It takes a second or more for each, minutes for all; the others are marked
``slow``. Where GCNBATCH_COMPILED names a folder, what compilers say is kept there: only what changed compiles again.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import distributions
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch import fileio
from gcnbatch.backends.cuda.ops.matmul import TILES
from gcnbatch.backends.cuda.runtime.compiler import (
    NVCC_FLAGS,
    NVRTC_FLAGS,
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
from gcnbatch.backends.cuda.runtime.sources import ALONE, KernelSource
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.conftest import package_sources
from tests.backends.cuda.runtime.agreement import assertions

REGISTERS = 65_536  # of a multiprocessor, on every architecture listed
HOPPER = arch_of((9, 0))  # as a device asks for it, with its tensor-core kernels
# All that nvcc 13 offers but sm_90, Hopper without its own features, which no device asks for, and those of SAME.
OTHERS = [f"sm_{number}" for number in (75, 80, 86, 87, 89, 100, 103, 110, 120)]
SAME = {"sm_88": "sm_86", "sm_121": "sm_120"}  # architectures whose machine code is that of another
HEADER_BYTES = 8  # of machine code, at most, that name its architecture
# What the default run compiles: a plain kernel, a sum over blocks, a template, and a fused step.
QUICK = {"dense/relu.cu", "dense/bias.cu", "spmm/naive.cu", "fused/kipf/step.cu"}
ARCH_CONDITION = re.compile(r"^#\s*(?:el)?if(?:def)? (.*CUDA_ARCH.*(?:(?<=\\)\n.*)*)", flags=re.MULTILINE)
BOUNDS = re.compile(r"__launch_bounds__\(([\w:]+)(?:, (\w+))?\)\s*(?:void\s+)?(?:[A-Z_]+\(\d+\)\s+)?(\w+)\(")
KERNELS = re.compile(
    r"^KERNEL(?:_WITH_SHARED)?\((?:[A-Z_]+\(\d+\)\s+)?(\w+),\s*\w+,\s*\(([\w:]+)(?:, (\w+))?\)", re.MULTILINE
)


def text_for(source: KernelSource, arch: str) -> tuple[bool, ...]:
    """Return which `#if` conditions on the architecture hold. Equal results mean equal preprocessed texts."""
    number = arch.removeprefix("sm_").rstrip("a")
    texts = (source.text, *source.headers.values())
    conditions = [condition for text in texts for condition in ARCH_CONDITION.findall(text)]
    replaced = {
        "\\\n": " ",
        "defined(__CUDACC_RTC__)": "False",  # of one compiler, the same for all architectures
        "defined(__CUDA_ARCH__)": "True",
        "__CUDA_ARCH__": f"{number}0",
        "__CUDA_ARCH_FEAT_SM90_ALL": str(arch == "sm_90a"),
        "&&": "and",
        "||": "or",
    }
    for old, new in replaced.items():
        conditions = [condition.replace(old, new) for condition in conditions]
    return tuple(eval(condition, {}) for condition in conditions)


def has_equal_ptx(source: KernelSource, arch: str) -> tuple[bool, tuple[bool, ...]]:
    """Return a key that is equal for architectures with equal PTX: the text, and which of two NVVM compiles it."""
    return int(arch.removeprefix("sm_")) >= 100, text_for(source, arch)


def variants(few_quick: bool = False) -> Iterator[Any]:
    """Yield (source, flags) for all that is compiled; with `few_quick`, all but `QUICK` are marked slow."""
    for source in package_sources().values():
        for flags in source.variants:
            name = source.name + ("" if flags == ALONE else " for cohorts")
            marks = [pytest.mark.slow] if few_quick and name not in QUICK else []
            yield pytest.param(source, flags, id=name, marks=marks)


def find(name: str) -> Compiler:
    if name == "NVRTC":
        nvrtc = find_nvrtc()
        return nvrtc if nvrtc else pytest.skip("NVRTC is not installed (the extra 'nvrtc13')")
    path = find_nvcc()
    return Nvcc(path, nvcc_version(path), nvcc_architectures(path)) if path else pytest.skip("nvcc is not installed")


@cache
def nvrtc_packages() -> list[str]:
    """Return the installed packages of NVRTC, whose own version lacks the last number."""
    return sorted(f"{each.name} {each.version}" for each in distributions() if "nvrtc" in each.name)


def kept(compiler: Compiler, source: KernelSource, flags: Iterable[str], log_of: Callable[[], str]) -> str:
    """Return the log of a compilation without errors, from GCNBATCH_COMPILED if the same was compiled before."""
    if not (folder := os.environ.get("GCNBATCH_COMPILED")):
        return log_of()
    by = (compiler.name, compiler.version, inspect.getsource(type(compiler)), *nvrtc_packages())
    key = "\0".join((*by, source.name, source.digest, *flags))
    path = Path(folder, hashlib.sha256(key.encode()).hexdigest())
    if not path.exists():
        log = log_of()
        path.parent.mkdir(parents=True, exist_ok=True)
        fileio.write_text(path, log)
    return path.read_text(encoding="utf-8")


def log_for(compiler: Compiler, source: KernelSource, arch: str, flags: tuple[str, ...]) -> str:
    """Return the log of a compilation for one architecture."""
    own = NVCC_FLAGS if compiler.name == "nvcc" else NVRTC_FLAGS
    return kept(compiler, source, (arch, *own, *flags), lambda: compiler.compile(source, arch, flags).log)


def asserting(source: KernelSource) -> KernelSource:
    """Return the source with an assertion for each constant and struct that the host reads."""
    return replace(source, text=f"{source.text}\n{assertions(source.declarations)}\n")


def complaints(source: KernelSource, log: str) -> Iterator[str]:
    """Yield the faults of a file compiled for one architecture, from the output of compiler and assembler."""
    yield from (line for line in log.splitlines() if "warning" in line)
    if set(re.findall(r"(\d+) bytes stack frame", log)) != {"0"}:
        yield f"{source.name} has a stack frame"
    taken = usages(log)
    for name in {entry.name for entry in source.entries} ^ taken.keys():
        yield f"{name} is not both in the source and in the machine code"
    tiles = {
        f"Tile{tile.name.replace('tf32_', 'Tf32')}::THREADS": tile.threads for kind in TILES.values() for tile in kind
    }

    def threads_of(bound: str) -> int:
        return int(bound) if bound.isdigit() else tiles.get(bound) or source.declarations.constant(bound)

    found = BOUNDS.findall(source.text) + [(*bound, name) for name, *bound in KERNELS.findall(source.text)]
    bounds = {name: threads_of(threads) * fewest_blocks(source, blocks or "1") for threads, blocks, name in found}
    for name, usage in taken.items():
        if usage.spilled:
            yield f"{name} spills {usage.spilled} bytes"
        allocated = -(-usage.registers // 8) * 8  # registers are allocated in units of eight per thread
        if allocated * bounds.get(name, 1024) > REGISTERS:
            yield f"{name} takes {usage.registers} registers, too many for its block"


def fewest_blocks(source: KernelSource, blocks: str) -> int:
    """Return the blocks of a launch bound; of a constant that depends on the architecture, the least."""
    if blocks.isdigit():
        return int(blocks)
    texts = "".join((source.text, *source.headers.values()))
    return min(int(number) for number in re.findall(rf"\b{blocks} = (\d+);", texts))


def virtual(arch: str) -> str:
    """Return the virtual architecture, for which compilers make PTX."""
    return arch.replace("sm", "compute")


def by_architecture(log: str) -> dict[str, str]:
    """Return the assembler's report for each architecture."""
    found: dict[str, str] = {}
    for part in re.split(r"^(?=ptxas info *: Compiling entry function)", log, flags=re.MULTILINE)[1:]:
        arch = re.match(r".*? for '(sm_\w+)'", part)
        assert arch
        found[arch[1]] = found.get(arch[1], "") + part
    return found


def test_architectures_differ_in_text_by_generation_and_hopper_features() -> None:
    sources = package_sources()
    hopper, relu, rows = (sources[name] for name in ("fused/wide/layers.cu", "dense/relu.cu", "spmm/rows.cu"))
    assert len({text_for(hopper, arch) for arch in (HOPPER, "sm_75", "sm_80", "sm_90")}) == 4
    assert text_for(relu, "sm_75") == text_for(relu, HOPPER)
    assert text_for(rows, "sm_86") == text_for(rows, "sm_89") != text_for(rows, "sm_80")
    assert has_equal_ptx(relu, "sm_90") != has_equal_ptx(relu, "sm_100") == has_equal_ptx(relu, "sm_121")


def test_logs_are_kept_for_equal_sources_flags_and_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCNBATCH_COMPILED", str(tmp_path / "kept"))
    source, logs = package_sources()["dense/relu.cu"], iter("abcdefg")

    def log(version: str = "13.0.1", source: KernelSource = source, flags: tuple[str, ...] = ()) -> str:
        return kept(Nvcc(Path("nvcc"), version), source, flags, lambda: next(logs))

    header = replace(source, headers={**source.headers, "common/common.cuh": "int changed;"})
    assert [log(), log(), log("13.0.2"), log(source=header), log(source=asserting(source))] == list("aabcd")
    assert [log(flags=("-O3",)), log(flags=("-O3",)), log()] == list("eea")
    monkeypatch.delenv("GCNBATCH_COMPILED")
    assert log() == "f"


def test_quick_sources_are_names_of_sources() -> None:
    assert {variant.id for variant in variants()} > QUICK


@pytest.mark.parametrize(("source", "flags"), list(variants(few_quick=True)))
def test_every_kernel_compiles_for_hopper_without_warnings_and_spills(
    source: KernelSource, flags: tuple[str, ...]
) -> None:
    nvcc = find("nvcc")
    assert knows(nvcc, HOPPER)
    assert list(complaints(source, log_for(nvcc, asserting(source), HOPPER, flags))) == []


@pytest.mark.parametrize(("source", "flags"), list(variants(few_quick=True)))
def test_nvrtc_compiles_every_kernel_for_hopper_without_warnings(source: KernelSource, flags: tuple[str, ...]) -> None:
    nvrtc = find("NVRTC")
    assert knows(nvrtc, HOPPER)
    assert log_for(nvrtc, asserting(source), virtual(HOPPER), flags) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("source", "flags"), list(variants()))
def test_every_kernel_compiles_for_the_other_architectures(
    source: KernelSource, flags: tuple[str, ...], tmp_path: Path
) -> None:
    nvcc = find("nvcc")
    known = [arch for arch in OTHERS if knows(nvcc, arch)]
    options = ["-fatbin", *NVCC_FLAGS, *flags, "-Xptxas=-v"]
    for _, group in groupby(known, lambda arch: has_equal_ptx(source, arch)):
        equal = list(group)
        options.append(f"-gencode=arch={virtual(equal[0])},code=[{','.join(equal)}]")

    def log_of() -> str:
        places = [f"-I{cuda_sources()}", "-o", tmp_path / "out.fatbin", cuda_sources() / source.name]
        done = subprocess.run([nvcc.path, *options, *places], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    log = kept(nvcc, source, options, log_of)
    assert [line for line in log.splitlines() if "warning" in line] == []
    logs = by_architecture(log)
    assert sorted(logs) == sorted(known)
    assert [(arch, fault) for arch, log in logs.items() for fault in complaints(source, log)] == []


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "other"), SAME.items())
def test_the_machine_code_of_two_architectures_is_the_same(arch: str, other: str, tmp_path: Path) -> None:
    nvcc, found = find("nvcc"), []
    for name in (arch, other):
        target = f"-gencode=arch={virtual(other)},code={name}"
        command = [nvcc.path, "-cubin", *NVCC_FLAGS, target, f"-I{cuda_sources()}", "-o", tmp_path / "out.cubin"]
        subprocess.run([*command, cuda_sources() / "fused/kipf/step.cu"], check=True)
        found.append(np.frombuffer((tmp_path / "out.cubin").read_bytes(), np.uint8))
    assert (found[0] != found[1]).sum() <= HEADER_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "compiled"), [("sm_86", (HOPPER,)), ("sm_120", (HOPPER, "sm_86"))])
@pytest.mark.parametrize(("source", "flags"), list(variants()))
def test_nvrtc_compiles_the_texts_that_are_not_hoppers(
    source: KernelSource, flags: tuple[str, ...], arch: str, compiled: tuple[str, ...]
) -> None:
    nvrtc = find("NVRTC")
    if text_for(source, arch) not in {text_for(source, other) for other in compiled}:
        assert log_for(nvrtc, source, virtual(arch), flags) == ""
