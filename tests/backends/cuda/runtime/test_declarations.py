"""Constants, enums and struct layouts that the host reads from CUDA sources, and packing of structs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.runtime.compiler import find_nvcc
from gcnbatch.backends.cuda.runtime.declarations import Declarations
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources, declared
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.runtime.agreement import assertions, readable

HEADER = """
#pragma once
namespace ours {
constexpr int TILE_ROWS = 144, PANEL = 64;  // rows; columns
using Half = unsigned short;
}
"""
TEXT = """
#include "header.cuh"
namespace ours {
/* constexpr int NOT_THIS = 1; */
static constexpr int PIECES = TILE_ROWS / 48;
constexpr int TOP = 1 << 20, REST = (TOP - 1) % 1000;
constexpr float SCALE = 1.5e2f;
constexpr int SIZES[] = {1, 2};
constexpr int BYTES = sizeof(int);
constexpr int SMALLER = PIECES < 2 ? 1 : 2;
#if SOMETHING
constexpr int EITHER = 1;
#else
constexpr int EITHER = 2;
#endif
enum Readout { SUM, MEAN, MAX };

struct __align__(16) Aligned {
  int a, b[4];
};
struct __align__(32) Holder {
  char first;
  Aligned second, third;
};
struct Inner {
  Half* panel;
  int first[2], last = 0;
};
struct Table {
  static constexpr int SLICES = 8, LANES = SLICES * 2;
  struct Local { float row[LANES]; };
  const Half *u, *v;  // panels
  unsigned char flags[3];
  bool relu;
  float sums[PIECES][LANES];
  ours::Inner inner[2];
  Readout readout, mode;
  Table* next;
  double total = 0.0;
  const Inner* in;

  __device__ Table() : u(nullptr), total{1.0} { relu = true; }
  __device__ __forceinline__ int rows(int n) const { return n * SLICES; }
  __device__ int columns() const;
  __device__ bool operator==(const Table& other) const { return u == other.u; }
};
__device__ void function() { constexpr int INSIDE = 3; }
}  // namespace ours
"""


def of(text: str = TEXT) -> Declarations:
    return Declarations("table.cu", {"header.cuh": HEADER, "table.cu": text})


# ------------------------------------------------------------------------------------------------ constants


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TILE_ROWS", 144),
        ("PIECES", 3),
        ("REST", 575),
        ("SCALE", 150.0),
        ("MAX", 2),
        ("Table::LANES", 16),
    ],
)
def test_constants_are_evaluated(name: str, value: Any) -> None:
    found = of().constant(name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NOT_THIS", "constant NOT_THIS: table.cu does not declare it"),
        ("INSIDE", "constant INSIDE: table.cu does not declare it"),
        ("SIZES", "constant SIZES: table.cu does not declare it"),
        ("EITHER", "constant EITHER: table.cu declares several of that name"),
        ("Table::LD", "constant Table::LD: table.cu does not declare it"),
        ("BYTES", "constant sizeof: table.cu does not declare it"),
        ("SMALLER", r"table.cu: 'PIECES < 2 \? 1 : 2' cannot be read as a value"),
    ],
)
def test_unknown_and_ambiguous_constants_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        of().constant(name)


def test_enums_have_their_enumerators_in_order() -> None:
    assert list(of().enum("Readout").items()) == [("SUM", 0), ("MEAN", 1), ("MAX", 2)]
    with pytest.raises(ValueError, match=r"^enum Loss: table.cu does not declare it$"):
        of().enum("Loss")


# -------------------------------------------------------------------------------------------------- structs


def test_declared_alignments_count() -> None:
    aligned, holder = of().layout("Aligned"), of().layout("Holder")
    assert (aligned.alignment, aligned.size, aligned.dtype.itemsize) == (16, 32, 32)
    assert (holder.alignment, holder.offsets, holder.size) == (32, (0, 16, 48), 96)
    packed = holder.pack({"first": 1, "second": {"a": 2, "b": [3] * 4}, "third": {"a": 4, "b": [5] * 4}})
    assert np.frombuffer(packed, np.int32).tolist() == [1, 0, 0, 0, 2, 3, 3, 3, 3, 0, 0, 0, 4, 5, 5, 5, 5, *[0] * 7]


def array(dtype: Any, ptr: int = 64) -> DeviceArray:
    return DeviceArray(ptr, (4,), np.dtype(dtype))


def inner(**changes: Any) -> dict[str, Any]:
    return {"panel": None, "first": [1, 2], "last": 3, **changes}


def table(**changes: Any) -> dict[str, Any]:
    given = {"u": array("u2", 16), "v": None, "flags": [1, 2, 3], "relu": True, "sums": [*range(48)]}
    given |= {"inner": [inner(), inner(last=9)], "readout": 2, "mode": 1, "next": None, "total": 0.5, "in_": None}
    return given | changes


def test_field_offsets_are_those_of_cpp() -> None:
    layout = of().layout("Table")
    assert dict(zip(layout.fields, layout.offsets, strict=True)) == {
        **{"u": 0, "v": 8, "flags": 16, "relu": 19, "sums": 20, "inner": 216, "readout": 264, "mode": 268},
        **{"next": 272, "total": 280, "in_": 288},
    }
    assert (layout.size, layout.alignment, layout.dtype.itemsize) == (296, 8, 296)


def test_structs_are_filled_by_name() -> None:
    layout = of().layout("Table")
    (read,) = layout.pack_many([table()])
    assert (read["u"], read["v"], read["relu"], read["readout"], read["total"]) == (16, 0, True, 2, 0.5)
    assert read["flags"].tolist() == [1, 2, 3]
    assert read["sums"].tolist() == [*range(48)]
    assert read["inner"]["last"].tolist() == [3, 9]
    assert read["inner"]["first"].tolist() == [[1, 2], [1, 2]]
    assert layout.pack(dict(reversed(table().items()))) == read.tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inner": [inner()]}, r"Table: inner is list .*; expected 2 elements"),
        ({"inner": [inner(), {"last": 3}]}, r"Table: inner\[1\] lacks panel, first"),
        ({"inner": [inner(), inner(more=1)]}, r"Table: inner\[1\] has no more; its fields are panel, first, last"),
        ({"inner": [inner(), 3]}, r"Table: inner\[1\] is int 3; expected a dict of the fields of Inner"),
        ({"flags": [1, 2, 256]}, r"Table: flags\[2\] is int 256; expected a number of type unsigned char"),
        ({"u": array("f4")}, "Table: u is an array of float32; expected an array of Half, or None"),
        ({"in_": array([("a", "i4")])}, r"Table: in_ is an array of \[.*\]; expected an array of Inner, or None"),
        ({"in_": array("f4")}, "Table: in_ is an array of float32; expected an array of Inner, or None"),
        ({"in": None}, "Table has no in; its fields are .*"),
    ],
)
def test_fields_of_a_wrong_type_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        of().layout("Table").pack(table(**changes))


def test_a_table_in_device_memory_fits_a_pointer_to_its_struct() -> None:
    there = array(of().layout("Inner").dtype, 48)
    (read,) = of().layout("Table").pack_many([table(in_=there)])
    assert read["in_"] == 48


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("struct S { union { int a; float b; }; };", "table.cu: struct S: 'union' cannot be read as fields"),
        ("struct S { int a : 3; };", "table.cu: struct S: 'int a : 3' cannot be read as fields"),
        ("struct S { int& a; };", "table.cu: struct S: 'int& a' cannot be read as fields"),
        ("struct S { void (*f)(int); };", r"table.cu: struct S: 'void \(\*f\)\(int\)' cannot be read as fields"),
        ("struct S { alignas(16) int a; };", r"table.cu: struct S: 'alignas\(16\) int a' cannot be read as fields"),
        ("struct S { float4 a; };", "table.cu: 'float4 a' has a type that cannot be passed"),
        ("struct S { int; };", "'int' cannot be read as a declaration"),
        ("struct S { struct T { int a; } t; };", "'t' cannot be read as a declaration"),
        ("struct S { int a{1}; };", "table.cu: struct S: 'int a' cannot be read as fields"),
        ("struct B {}; struct S : B { int a; };", "struct S: table.cu does not declare it"),
        ("struct S { int a; };\n#else\nstruct S { int b; };", "struct S: table.cu declares several of that name"),
    ],
)
def test_structs_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        of(text).layout("S")


# ------------------------------------------------------------------------------------------------ the compiler


def test_the_compiler_agrees_with_all_constants_and_layouts(tmp_path: Path) -> None:
    """Those of the real sources are checked in test_compile.py, as part of their compilation."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    (tmp_path / "header.cuh").write_text(HEADER)
    (tmp_path / "table.cu").write_text(TEXT + assertions(of()))
    command = [nvcc, "-std=c++17", "-arch=sm_90a", "-ptx", "-o", "out.ptx", "table.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_parameter_structs_and_most_constants_can_be_read() -> None:
    n_constants = n_structs = 0
    for source in Sources(cuda_sources()).values():
        constants, structs = readable(source.declarations)
        n_constants, n_structs = n_constants + len(constants), n_structs + len(structs)
    assert n_constants > 200
    assert n_structs > 50
    assert declared("common/scan.cuh").constant("SCAN_THREADS") == 256
