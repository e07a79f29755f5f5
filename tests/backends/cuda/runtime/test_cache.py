"""The cache of compiled kernels, without a GPU."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import multiprocessing
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gcnbatch.backends.cuda.runtime import cache as caching
from gcnbatch.backends.cuda.runtime import compiler
from gcnbatch.backends.cuda.runtime.cache import KernelCache, cache_folder
from gcnbatch.backends.cuda.runtime.compiler import KernelCompileError, Nvcc
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.errors import BackendUnavailable, MachineError
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.conftest import calls


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
    ranks = {"fused/wide/ranks_layers.cu", "fused/wide/ranks_step.cu"}
    for_one = {name for name, by in taken.items() if by == (True, False)}
    assert {name.rpartition("/")[0] for name in for_one - ranks} == {"fused/fp16", "fused/kipf"}
    assert ranks <= for_one
    assert taken["fused/narrow/step.cu"] == taken["dense/relu.cu"] == (True, True)


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


@settings(max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_a_process_that_keeps_the_lock_is_not_waited_for_for_ever(cache, sources, nvcc, monkeypatch) -> None:
    monkeypatch.setattr(caching, "LONGEST_TURN", 0.2)
    cache.folder.mkdir(mode=0o700, parents=True)
    with (cache.folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
