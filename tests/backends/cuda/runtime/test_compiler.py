"""Sources, compilers and the cache of compiled kernels, without a GPU."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import stat
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gcnbatch.backends.cuda.runtime import cache as caching
from gcnbatch.backends.cuda.runtime import compiler
from gcnbatch.backends.cuda.runtime.cache import KernelCache, cache_folder
from gcnbatch.backends.cuda.runtime.compiler import KernelCompileError, Nvcc, Nvrtc, Usage
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import ALONE, FOR_COHORTS, Sources
from gcnbatch.errors import BackendUnavailable, MachineError
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.conftest import calls

# -------------------------------------------------------------------------------------------------- sources


def test_signatures_are_read_from_the_declarations(sources: Sources) -> None:
    formats = {entry.name: (entry.file, entry.names, entry.layout.format) for entry in sources.entries.values()}
    assert formats == {
        "plain": ("plain.cu", ("bytes", "n"), "Pi"),
        "scale_forward": ("scale.cu", ("y", "x", "rows", "n"), "PPPq"),
        "scale_count": ("scale.cu", ("count", "n", "by"), "PIf"),
    }


def array(dtype: str, ptr: int = 64) -> DeviceArray:
    return DeviceArray(ptr, (4,), np.dtype(dtype))


FITTING = {"y": array("f4"), "x": array("f4"), "rows": array("i4"), "n": 4}


def test_arguments_are_packed_as_addresses_and_numbers(sources: Sources) -> None:
    scale, count = sources.entries["scale_forward"], sources.entries["scale_count"]
    given = {"n": 4, "rows": array("i4", 3), "x": array("f4", 2), "y": array("f4", 1)}
    assert scale.pack(given) == struct.pack("PPPq", 1, 2, 3, 4)
    given = {"y": array("u1", 1), "x": None, "rows": array("u4", 3), "n": np.int32(4)}
    assert scale.pack(given) == struct.pack("PPPq", 1, 0, 3, 4)
    assert count.pack({"count": array("i8", 5), "n": 7, "by": np.float32(0.5)}) == struct.pack("PIf", 5, 7, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": array("f8")}, r"scale_forward: x is an array of float64; expected an array of float, or None"),
        ({"rows": array("f4")}, "scale_forward: rows is an array of float32; expected an array of int, or None"),
        ({"x": 0}, "scale_forward: x is int 0; expected an array of float, or None"),
        ({"n": array("i4")}, "scale_forward: n is an array of int32; expected a number of type long long"),
        ({"n": None}, "scale_forward: n is None; expected a number of type long long"),
        ({"n": 2.5}, r"scale_forward: n is float 2\.5; expected a number of type long long"),
        ({"n": 1 << 63}, "scale_forward: n is int 9223372036854775808; expected a number of type long long"),
        ({"N": 4}, "scale_forward has no N; its fields are y, x, rows, n"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(sources: Sources, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        sources.entries["scale_forward"].pack(FITTING | changes)


@pytest.mark.parametrize("renamed", [{}, {"N": 4}])
def test_missing_arguments_are_named(sources: Sources, renamed: dict[str, Any]) -> None:
    given = {"y": FITTING["y"], "rows": FITTING["rows"], "n": 4, **renamed}
    with pytest.raises(TypeError, match=r"^scale_forward lacks x$"):
        sources.entries["scale_forward"].pack(given)


STRUCT = """\
#include "shared.cuh"
namespace ours {
struct Scale { float* y; const float* x; int n; bool twice; };
}
extern "C" __global__ void scale_struct(const __grid_constant__ ours::Scale scale) {
  for (int i = 0; i < scale.n; ++i) scale.y[i] = scale.twice ? twice(scale.x[i]) : scale.x[i];
}
"""


def test_the_fields_of_the_only_parameter_are_the_arguments(folder: Path) -> None:
    (folder / "struct.cu").write_text(STRUCT)
    entry = Sources(folder).entries["scale_struct"]
    assert (entry.names, entry.offsets, entry.is_struct) == (("y", "x", "n", "twice"), (0,), True)
    given = {"twice": True, "n": 3, "x": array("f4", 2), "y": array("f4", 1)}
    assert entry.pack(given) == struct.pack("PPi?xxx", 1, 2, 3, True)
    with pytest.raises(TypeError, match=r"^scale_struct \(Scale\): twice is an array of float32; expected a number of"):
        entry.pack(given | {"twice": array("f4")})


def test_a_digest_covers_the_source_and_every_header(folder: Path) -> None:
    before = Sources(folder)
    assert list(before["scale.cu"].headers) == ["shared.cuh"]
    (folder / "shared.cuh").write_text('#include "deeper.cuh"\n')
    (folder / "deeper.cuh").write_text('#include "shared.cuh"\n')
    after = Sources(folder)
    assert set(after["scale.cu"].headers) == {"shared.cuh", "deeper.cuh"}
    assert after["scale.cu"].digest != before["scale.cu"].digest
    assert after["plain.cu"].digest == before["plain.cu"].digest


def test_broken_folders_of_sources_are_refused(folder: Path) -> None:
    (folder / "other.cu").write_text('extern "C" __global__ void odd(float3 x) {}')
    with pytest.raises(ValueError, match=r"other.cu: 'float3 x' has a type that cannot be passed"):
        _ = Sources(folder).entries["odd"].layout
    (folder / "other.cu").write_text('extern "C" __global__ void plain(int n) {}')
    with pytest.raises(ValueError, match=r"kernel plain is in other.cu and in plain.cu"):
        Sources(folder)
    (folder / "other.cu").write_text('struct Pair { int a, b; };\nextern "C" __global__ void odd(Pair x, int n) {}')
    with pytest.raises(ValueError, match=r"other.cu: odd: a struct must be the only parameter"):
        _ = Sources(folder).entries["odd"].layout
    (folder / "other.cu").write_text('#include "nowhere.cuh"\n')
    with pytest.raises(ValueError, match=r'other.cu includes "nowhere.cuh", which is not in'):
        Sources(folder)


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


def test_sources_lie_in_folders_and_include_from_the_root(folder: Path) -> None:
    sources = Sources(in_folders(folder))
    assert list(sources) == ["ops/scale/scale.cu", "plain.cu"]
    assert list(sources["ops/scale/scale.cu"].headers) == ["ops/scale/own.cuh", "common/shared.cuh"]
    assert sources.entries["scale_forward"].file == "ops/scale/scale.cu"
    (folder / "ops" / "scale" / "own.cuh").write_text('#include "../../common/shared.cu"\n')
    with pytest.raises(ValueError, match=r'ops/scale/own.cuh includes "\.\./\.\./common/shared.cu", which is not in'):
        Sources(folder)


def test_the_kernels_of_the_package_are_device_code_alone() -> None:
    sources = Sources(cuda_sources())
    assert len(sources.entries) >= len(sources) > 0
    assert all(entry.layout.fields for entry in sources.entries.values())
    for source in sources.values():
        texts = {source.name: source.text, **source.headers}
        foreign = {name for name, text in texts.items() if "#include <" in text}
        assert not foreign, "NVRTC has no headers but ours"


# ------------------------------------------------------------------------------------------------ the cache


def test_a_second_start_compiles_nothing_and_starts_no_compiler(cache, sources, nvcc) -> None:
    assert cache.build(sources.values(), "sm_90") == {}
    assert sorted(calls(nvcc)) == ["architectures", "plain.cu", "scale.cu", "version"]
    again = KernelCache(cache.folder)
    ready: list[str] = []
    assert again.build(sources.values(), "sm_90", ready.append) == {}
    assert ready == ["plain.cu", "scale.cu"]
    assert again.load(sources["scale.cu"], "sm_90") == cache.load(sources["scale.cu"], "sm_90")
    assert len(calls(nvcc)) == 4


def test_sources_flags_and_architecture_change_the_cubin_name(cache, folder, nvcc, monkeypatch) -> None:
    def names() -> set[str]:
        return {cubin.path.name for cubin in cache.cubins()}

    def build(arch: str = "sm_90") -> set[str]:
        before = names()
        KernelCache(cache.folder).build(Sources(folder).values(), arch)
        return {name.split(".")[0] for name in names() - before}

    assert build() == {"plain", "scale"}
    assert build() == set()
    assert build("sm_80") == {"plain", "scale"}
    (folder / "shared.cuh").write_text("// no code\n")
    assert build() == {"scale"}
    monkeypatch.setattr(caching, "NVCC_FLAGS", (*compiler.NVCC_FLAGS, "-G"))
    assert build() == {"plain", "scale"}
    nvcc.write_text(nvcc.read_text().replace("V13.0.88", "V13.1.2"))
    assert build() == {"plain", "scale"}


def test_kernels_of_one_variant_are_not_launched_in_the_other(tmp_path) -> None:
    sources = Sources(cuda_sources())
    alone, cohort = KernelCache(tmp_path), KernelCache(tmp_path, cohort=True)
    taken = {name: (alone.takes(source), cohort.takes(source)) for name, source in sources.items()}
    assert {name for name, by in taken.items() if by == (False, True)} == {"fused/narrow/warps.cu"}
    assert {name.rpartition("/")[0] for name, by in taken.items() if by == (True, False)} == {
        "fused/fp16",
        "fused/kipf",
    }
    assert taken["fused/narrow/step.cu"] == taken["dense/relu.cu"] == (True, True)


def test_the_compiler_refuses_a_variant_that_is_not_launched(real) -> None:
    sources = Sources(cuda_sources())
    with pytest.raises(KernelCompileError, match=r"a model alone runs the kernels of fused/narrow/step\.cu"):
        real.compile(sources["fused/narrow/warps.cu"], "sm_90", ALONE)
    with pytest.raises(KernelCompileError, match="cohorts do not run the Kipf form"):
        real.compile(sources["fused/kipf/step.cu"], "sm_90", FOR_COHORTS)


def test_fast_math_has_cubins_of_its_own(cache, sources, nvcc) -> None:
    cache.build(sources.values(), "sm_90")
    fast = KernelCache(cache.folder, fast_math=True)
    assert fast.find(sources["plain.cu"], "sm_90") is None
    fast.build(sources.values(), "sm_90")
    assert fast.load(sources["plain.cu"], "sm_90") != b""
    assert len(cache.cubins()) == 2 * len(sources)


def test_a_source_that_does_not_compile_does_not_stop_the_others(cache, folder, nvcc) -> None:
    (folder / "plain.cu").write_text("not C\n")
    sources = Sources(folder)
    failed = cache.build(sources.values(), "sm_90")
    assert list(failed) == ["plain.cu"]
    assert cache.find(sources["scale.cu"], "sm_90")
    with pytest.raises(KernelCompileError) as caught:
        cache.load(sources["plain.cu"], "sm_90")
    first, *rest = str(caught.value).splitlines()
    assert first == f"plain.cu: nvcc 13.0.88 -arch=sm_90 {' '.join(compiler.NVCC_FLAGS)} failed"
    assert rest == ["  plain.cu(3): error: expected a declaration"]
    assert caught.value.exit_code == 3


def _build(arguments: tuple[Path, Path]) -> int:
    place, folder = arguments
    return len(KernelCache(place).build(Sources(folder).values(), "sm_90"))


def test_concurrent_processes_compile_each_file_once(cache, folder, nvcc, monkeypatch) -> None:
    monkeypatch.setenv("GCNBATCH_TEST_SECONDS", "0.2")  # so that the second process comes while the first compiles
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_build, [(cache.folder, folder)] * 2, chunksize=1) == [0, 0]
    assert sorted(name for name in calls(nvcc) if name.endswith(".cu")) == ["plain.cu", "scale.cu"]
    assert {cubin.file for cubin in cache.cubins()} == {"plain.cu", "scale.cu"}
    assert not list(cache.folder.glob("*.tmp"))


def test_without_a_compiler_cached_kernels_are_used(cache, sources, nvcc, monkeypatch, request) -> None:
    cache.build(sources.values(), "sm_90")
    request.getfixturevalue("no_compiler")
    later = KernelCache(cache.folder)
    assert later.load(sources["plain.cu"], "sm_90") == cache.load(sources["plain.cu"], "sm_90")
    with pytest.raises(
        BackendUnavailable, match=r"no kernel compiler .*\. Install a CUDA toolkit and g\+\+, or pip install"
    ):
        later.load(sources["plain.cu"], "sm_80")


def test_a_cache_that_cannot_be_written_warns_once(tmp_path, sources, nvcc, capsys) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file" / "kernels")
    assert cache.build(sources.values(), "sm_90") == {}
    assert cache.load(sources["plain.cu"], "sm_90")
    cache.build(sources.values(), "sm_80")
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert warning.startswith(f"warning: {cache.folder}: cannot be written (Not a directory); kernels are compiled")


def test_only_the_user_can_use_the_cache(cache, sources, nvcc) -> None:
    cache.build(sources.values(), "sm_90")
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_cache_that_others_can_write_is_neither_read_nor_written(cache, sources, nvcc, capsys, mode) -> None:
    cache.build(sources.values(), "sm_90")
    right = cache.load(sources["plain.cu"], "sm_90")
    for path in cache.folder.glob("*.cubin"):
        path.write_bytes(b"code of another user")
        path.with_suffix(caching.DIGEST).write_text(hashlib.sha256(b"code of another user").hexdigest())
    planted = {path.name: path.read_bytes() for path in cache.folder.iterdir()}
    cache.folder.chmod(mode)
    later = KernelCache(cache.folder)
    assert later.find(sources["plain.cu"], "sm_90") is None
    assert later.load(sources["plain.cu"], "sm_90") == right
    assert {path.name: path.read_bytes() for path in cache.folder.iterdir()} == planted
    assert capsys.readouterr().err == (
        f"warning: {cache.folder}: other users can write to it; kernels are compiled for this process only. "
        f"Run chmod 700 {cache.folder} if you trust what is in it, or remove it.\n"
    )
    with pytest.raises(MachineError, match=r"other users can write to it\. Run chmod 700"):
        KernelCache(cache.folder, replaceable=False).build(sources.values(), "sm_80")


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["cubin", "digest", "no digest"]), st.binary(max_size=80))
def test_a_cubin_with_another_digest_is_compiled_again(cache, sources, nvcc, damage, content) -> None:
    right = cache.load(sources["plain.cu"], "sm_90")
    found = cache.find(sources["plain.cu"], "sm_90")
    if damage == "no digest":
        found.path.with_suffix(caching.DIGEST).unlink()
    else:
        (found.path if damage == "cubin" else found.path.with_suffix(caching.DIGEST)).write_bytes(content)
    before = len(calls(nvcc))
    assert KernelCache(cache.folder).load(sources["plain.cu"], "sm_90") == right
    assert len(calls(nvcc)) == before + 1


def test_a_lock_of_another_user_does_not_stop_anyone(cache, sources, nvcc) -> None:
    (cache.folder / ".lock").mkdir(parents=True)  # cannot be opened, whoever runs this
    assert cache.build(sources.values(), "sm_90") == {}
    assert len(cache.cubins()) == 2


def test_kernels_that_vanish_from_the_cache_are_a_machine_error(cache, sources, nvcc, monkeypatch) -> None:
    monkeypatch.setattr(KernelCache, "build", lambda *arguments: {})
    with pytest.raises(MachineError, match=r"the kernels of plain.cu vanished\. Run again"):
        cache.load(sources["plain.cu"], "sm_90")


def test_files_of_others_in_the_cache_are_left_alone(cache, sources, nvcc) -> None:
    cache.build(sources.values(), "sm_90")
    (cache.folder / "notes.cubin").write_text("mine")
    (cache.folder / caching.VERSIONS).write_text("[broken")
    assert KernelCache(cache.folder).clear() == 2
    assert [path.name for path in sorted(cache.folder.iterdir())] == [".lock", "notes.cubin"]


def test_without_any_writable_folder_the_error_is_one_line(sources, nvcc, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    cache = KernelCache(tmp_path / "file" / "kernels")
    with monkeypatch.context() as patched:
        patched.setattr(caching.tempfile, "mkdtemp", no_room)
        with pytest.raises(MachineError) as caught:
            cache.build(sources.values(), "sm_90")
    assert str(caught.value) == (
        f"{tmp_path}/file/kernels: cannot be written (Not a directory), and no folder for temporary files can be "
        "written. Set GCNBATCH_CACHE_DIR and TMPDIR to folders of yours."
    )
    monkeypatch.setattr(compiler.tempfile, "TemporaryDirectory", no_room)
    with pytest.raises(MachineError) as caught:
        Nvcc(nvcc, "13.0").compile(sources["plain.cu"], "sm_90")
    assert str(caught.value) == (
        "temporary files of the compiler: no folder can be written. Set TMPDIR to a folder of yours."
    )


def no_room(*_: object, **__: object) -> None:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own" / "kernels"
    monkeypatch.delenv("GCNBATCH_CACHE_DIR")
    assert cache_folder() == tmp_path / "xdg" / "gcnbatch" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "gcnbatch" / "kernels"


# ---------------------------------------------------------------------------------------------- compilers


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
