"""nvcc and NVRTC: how they are found, what they compile and what they say, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gcnbatch.backends.cuda.runtime import compiler
from gcnbatch.backends.cuda.runtime.compiler import KernelCompileError, Nvcc, Nvrtc, Usage
from gcnbatch.backends.cuda.runtime.sources import ALONE, FOR_COHORTS, Sources
from gcnbatch.errors import MachineError
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.conftest import STRUCT, in_folders


def test_nvcc_is_searched_in_the_documented_places(tmp_path, nvcc, monkeypatch) -> None:
    assert compiler.find_nvcc() == nvcc
    assert list(compiler.nvcc_paths({"CUDA_HOME": "/a", "CUDA_PATH": "/b", "PATH": str(nvcc.parent)}))[:4] == [
        Path("/a/bin/nvcc"),
        Path("/b/bin/nvcc"),
        nvcc,
        Path("/usr/local/cuda/bin/nvcc"),
    ]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler.find_nvcc() is None, "no host compiler to preprocess with"
    (tmp_path / "gcc").symlink_to("/bin/true")
    assert compiler.find_nvcc() is None, "one for C alone does not serve"
    with monkeypatch.context() as named:
        named.setenv("NVCC_CCBIN", "clang++")
        assert compiler.find_nvcc() == nvcc
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-ccbin=/opt/bin/x86_64-conda-linux-gnu-c++")
    assert compiler.find_nvcc() == nvcc


def test_an_nvcc_that_does_not_answer_is_not_used(cache, nvcc, monkeypatch) -> None:
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(compiler, "find_nvrtc", lambda: None)
    assert cache.compiler is None
    assert compiler.nvcc_version(Path("/nowhere/nvcc")) == ""
    with pytest.raises(MachineError, match=r"/nowhere/nvcc: cannot be run \(No such file or directory\)\. Install"):
        Nvcc(Path("/nowhere/nvcc"), "13.0").compile(next(iter(Sources(cuda_sources()).values())), "sm_90")


def test_usages_are_read_from_the_assemblers_report(cache, sources, nvcc) -> None:
    cache.build([sources["scale.cu"]], "sm_90")
    (cubin,) = cache.cubins()
    assert cubin.usages == {"scale_forward": Usage(registers=17, spilled=12)}
    cubin.path.with_suffix(".log").unlink()
    assert cubin.usages == {}


def test_an_nvrtc_error_names_the_failing_call(sources) -> None:
    success, failure = SimpleNamespace(name="NVRTC_SUCCESS"), SimpleNamespace(name="NVRTC_ERROR_OUT_OF_MEMORY")
    library = SimpleNamespace(
        nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=success), nvrtcCreateProgram=lambda *given: (failure, None)
    )
    with pytest.raises(MachineError, match=r"NVRTC 13\.0: CreateProgram failed with NVRTC_ERROR_OUT_OF_MEMORY"):
        Nvrtc(library, "13.0").compile(sources["plain.cu"], "sm_90")


def real_compilers() -> list[compiler.Compiler]:
    path = compiler.find_nvcc()
    found = [Nvcc(path, compiler.nvcc_version(path), compiler.nvcc_architectures(path))] if path else []
    return [*found, *filter(None, [compiler.find_nvrtc()])]


@pytest.fixture(params=["nvcc", "NVRTC"])
def real(request: pytest.FixtureRequest) -> compiler.Compiler:
    """A compiler of this machine."""
    for found in real_compilers():
        if found.name == request.param:
            return found
    pytest.skip(f"no {request.param} here")


def test_both_compilers_return_cubins(real, sources) -> None:
    made = real.compile(sources["scale.cu"], "sm_90")
    assert made.cubin.startswith(b"\x7fELF")
    assert set(compiler.usages(made.log)) == {"scale_forward", "scale_count"}
    assert all(usage.registers > 0 == usage.spilled for usage in compiler.usages(made.log).values())


@pytest.mark.slow
def test_the_compiler_refuses_a_variant_that_is_not_launched(real) -> None:
    sources = Sources(cuda_sources())
    with pytest.raises(KernelCompileError, match=r"a model alone runs the kernels of fused/narrow/step\.cu"):
        real.compile(sources["fused/narrow/warps.cu"], "sm_90", ALONE)
    with pytest.raises(KernelCompileError, match="cohorts do not run the Kipf form"):
        real.compile(sources["fused/kipf/step.cu"], "sm_90", FOR_COHORTS)


@pytest.mark.slow
def test_both_compilers_take_folders_and_structs(real, folder) -> None:
    (folder / "struct.cu").write_text(STRUCT.replace("shared.cuh", "common/shared.cuh"))
    sources = Sources(in_folders(folder))
    for name in ("ops/scale/scale.cu", "struct.cu"):
        assert real.compile(sources[name], "sm_75").cubin.startswith(b"\x7fELF")
    (folder / "common" / "shared.cuh").write_text("\nthis is not C;\n")
    with pytest.raises(KernelCompileError, match=rf"{folder}/common/shared\.cuh\(2\): error"):
        real.compile(Sources(folder)["ops/scale/scale.cu"], "sm_90")


def test_both_compilers_name_our_file_and_line(real, folder) -> None:
    (folder / "plain.cu").write_text("\n\nthis is not C;\n")
    with pytest.raises(KernelCompileError) as caught:
        real.compile(Sources(folder)["plain.cu"], "sm_90")
    assert f"{folder / 'plain.cu'}(3): error" in str(caught.value)


def test_both_compilers_explain_an_unknown_architecture(real, sources) -> None:
    with pytest.raises(
        MachineError, match=r"^sm_35: .* makes no code for it; .* below 7\.5 needs CUDA 12, a GPU newer"
    ):
        real.compile(sources["plain.cu"], "sm_35")


def test_both_compilers_list_their_architectures(real) -> None:
    assert {"sm_75", "sm_90", "sm_120"} <= set(real.architectures)
    assert all(map(partial(compiler.knows, real), ("sm_90a", "sm_120")))
    assert not compiler.knows(real, "sm_35")


@pytest.mark.parametrize(
    "said",
    [
        "gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory",
        "sh: 1: gcc: not found\nnvcc fatal   : Failed to preprocess host compiler properties.",
        "nvcc fatal   : Cannot find compiler 'g++' in PATH",
        "host_config.h:159:2: error: #error -- unsupported GNU version!",
        '/usr/include/c++/17/type_traits(512): error: expected a ">"',
    ],
)
def test_an_unsupported_host_compiler_is_named(sources, nvcc, monkeypatch, said: str) -> None:
    monkeypatch.setenv("GCNBATCH_TEST_HOST", said)
    with pytest.raises(MachineError, match=r"host compiler does not serve \(.*\)\. Install g\+\+, or name") as caught:
        Nvcc(nvcc, "13.0").compile(sources["plain.cu"], "sm_90")
    assert " ".join(said.splitlines()[-1].split()).rstrip(".") in str(caught.value)


def test_nvcc_reports_a_missing_host_compiler(sources, monkeypatch) -> None:
    path = compiler.find_nvcc()
    if path is None:
        pytest.skip("no nvcc here")
    monkeypatch.setenv("NVCC_CCBIN", "no-such-compiler")
    with pytest.raises(MachineError, match=r"its host compiler does not serve \(.*\)\. Install g\+\+"):
        Nvcc(path, "13.0").compile(sources["plain.cu"], "sm_90")


def test_importing_the_backends_does_not_import_pycuda() -> None:
    program = (
        "import sys, gcnbatch.backends.cuda.runtime.device, gcnbatch.backends.registry\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('pycuda', 'cuda')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
