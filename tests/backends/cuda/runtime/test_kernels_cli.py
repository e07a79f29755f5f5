"""``gcnbatch kernels`` through the program's entry point."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from gcnbatch import resources
from gcnbatch.backends.cuda.runtime import loader
from tests.backends.cuda.conftest import calls
from tests.backends.cuda.fake_pycuda import Fake


@pytest.fixture
def call(command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path):
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(resources, "cuda_sources", lambda: folder)

    return partial(command, "kernels")


def test_kernels_are_built_for_other_machines_listed_and_cleared(call, nvcc: Path, tmp_path: Path) -> None:
    code, out, err = call("build", "--arch", "sm_80", "--arch", "sm_90", "--arch", "sm_80")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["file", "arch", "kernels", "registers", "spilled", "size"]
    assert [line[:5] for line in lines[1:]] == [
        [name, arch, "1", "17", "12"] for arch in ("sm_80", "sm_90a") for name in ("plain.cu", "scale.cu")
    ]
    assert len(calls(nvcc)) == 6
    assert call("build", "--arch", "sm_90a")[0] == 0
    assert len(calls(nvcc)) == 6
    listed = call("list")[1].splitlines()
    assert len(listed) == 6
    assert listed[-1] == str(tmp_path / "cache" / "kernels")
    assert call("clear")[1] == f"4 files removed from {listed[-1]}\n"
    assert len(call("list")[1].splitlines()) == 2


def test_kernels_in_folders_are_listed_by_their_paths(call, nvcc: Path, folder: Path) -> None:
    (folder / "ops").mkdir()
    (folder / "scale.cu").rename(folder / "ops" / "scale.cu")
    built = [line.split()[0] for line in call("build", "--arch", "sm_80")[1].splitlines()[1:]]
    listed = [line.split()[0] for line in call("list")[1].splitlines()[1:-1]]
    assert sorted(built) == sorted(listed) == ["ops/scale.cu", "plain.cu"]


def test_kernels_are_built_for_models_and_cohorts_as_their_sources_say(call, nvcc: Path, folder: Path) -> None:
    shares = "constexpr bool SHARES_LAUNCHES = IN_COHORT != 0;\n"
    only_alone, only_cohorts = 'static_assert(!SHARES_LAUNCHES, "");\n', 'static_assert(SHARES_LAUNCHES, "");\n'
    for name, only in {"both": "", "alone": only_alone, "cohorts": only_cohorts}.items():
        (folder / f"{name}.cu").write_text(f'{shares}{only}extern "C" __global__ void {name}(int n) {{}}\n')
    built = [line.split()[0] for line in call("build", "--arch", "sm_80")[1].splitlines()[1:]]
    assert built == ["alone.cu", "both.cu", "plain.cu", "scale.cu", "both.cu", "cohorts.cu"]
    assert sorted(name for name in calls(nvcc) if name.endswith(".cu")) == sorted(built)


def test_kernels_are_built_for_the_visible_devices(call, nvcc: Path, fake: Fake) -> None:
    fake.devices.append(("Fake 90", (9, 0)))
    code, out, _ = call("build")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["sm_75", "sm_75", "sm_90a", "sm_90a"]


def test_a_kernel_that_fails_does_not_hide_the_others(call, nvcc: Path, folder: Path) -> None:
    for name in ("plain.cu", "plainer.cu"):
        (folder / name).write_text("not C\n")
    code, out, err = call("build", "--arch", "sm_90")
    assert code == 3
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["scale.cu"]
    assert "error: plain.cu: nvcc 13.0.88 -arch=sm_90" in err
    assert "plainer.cu(3): error: expected a declaration" in err


def test_a_missing_compiler_is_reported_once_for_all_kernels(call, no_compiler) -> None:
    code, _, err = call("build", "--arch", "sm_80", "--arch", "sm_90")
    assert (code, err.count("\n")) == (3, 1)
    assert err.startswith("error: CUDA: no kernel compiler (neither nvcc with g++ nor NVRTC 12.3 or newer). Install a")


def test_an_unknown_architecture_is_reported_once_for_all_kernels(call, nvcc: Path) -> None:
    assert call("build", "--arch", "sm_70")[::2] == (
        3,
        "error: sm_70: nvcc 13.0.88 makes no code for it; expected one of sm_75, sm_80, sm_90, sm_100, sm_121. Compute "
        "capability below 7.5 needs CUDA 12, a GPU newer than the compiler a newer CUDA toolkit.\n",
    )
    assert sorted(calls(nvcc)) == ["architectures", "version"], "nothing was compiled"


def test_a_failing_host_compiler_is_reported_once_for_all_kernels(call, nvcc: Path, monkeypatch) -> None:
    said = "gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory"
    monkeypatch.setenv("GCNBATCH_TEST_HOST", f"{said}\ncompilation terminated.")
    code, _, err = call("build", "--arch", "sm_80")
    assert (code, err) == (
        3,
        f"error: nvcc 13.0.88: its host compiler does not serve ({said}). Install g++, or name one that this nvcc "
        "supports in NVCC_CCBIN; where there is no g++ at all, NVRTC serves (pip install 'gcnbatch[cuda,nvrtc13]').\n",
    )


def test_a_cache_that_cannot_be_filled_is_a_failure(call, nvcc: Path, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path / "file"))
    assert call("build", "--arch", "sm_90") == (
        3,
        "",
        f"error: {tmp_path}/file/kernels: cannot be written (Not a directory). "
        "Set GCNBATCH_CACHE_DIR to a folder of yours.\n",
    )
    assert not [name for name in calls(nvcc) if name.endswith(".cu")]


def test_a_cache_without_permission_is_not_cleared(call, nvcc: Path, monkeypatch) -> None:
    def refuse(path: Path, missing_ok: bool) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    call("build", "--arch", "sm_90")
    monkeypatch.setattr(Path, "unlink", refuse)
    code, _, err = call("clear")
    assert code == 3
    assert err.endswith(
        "kernels: cannot be cleared (Permission denied). "
        "Ask its owner, or set GCNBATCH_CACHE_DIR to a folder of yours.\n"
    )


def test_without_devices_an_architecture_must_be_given(call, nvcc: Path, monkeypatch) -> None:
    def missing(name: str, mode: int) -> None:
        raise OSError

    loader.load_cuda.cache_clear()
    monkeypatch.setattr(loader, "load_library", missing)
    assert call("build") == (
        2,
        "",
        "error: --arch: not given, and no NVIDIA driver (libcuda.so.1 is not here); "
        "expected an architecture such as sm_90\n",
    )
    assert call("build", "--arch", "90")[2] == (
        "error: --arch: '90'; expected sm_ and the compute capability's digits, such as sm_90\n"
    )
