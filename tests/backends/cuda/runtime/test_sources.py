"""The sources of kernels: what is read from them and checked, without a GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.conftest import STRUCT, in_folders


def test_signatures_are_read_from_the_declarations(sources: Sources) -> None:
    formats = {
        entry.name: (entry.file, tuple(entry.layout.fields), entry.layout.format) for entry in sources.entries.values()
    }
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


def test_the_fields_of_the_only_parameter_are_the_arguments(folder: Path) -> None:
    (folder / "struct.cu").write_text(STRUCT)
    entry = Sources(folder).entries["scale_struct"]
    assert (tuple(entry.layout.fields), entry.offsets) == (("y", "x", "n", "twice"), (0,))
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
