"""Geometry of the pass: its numbers and tables are those of the source, and everything fits a multiprocessor."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np
import pytest

from gcnbatch.backends.cuda.fused.fp16 import step_geometry as geometry
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.resources import cuda_sources
from tests.backends.cuda.runtime.sources import assert_numbers

HEADER = (cuda_sources() / "fused/fp16/step.cuh").read_text()


def struct(name: str) -> list[str]:
    """Return the fields of a struct of the header, in order."""
    (body,) = re.findall(rf"^struct {name} {{\n(.*?)^}};", HEADER, re.DOTALL | re.MULTILINE)
    lines = re.sub(r"//[^\n]*", "", body).replace("\n", " ").split(";")
    return [word for line in lines for word in re.findall(r"(\w+)\s*(?:,|$)", line.strip())]


@pytest.mark.parametrize("table", [geometry.PassLayer, geometry.Pass])
def test_tables_have_the_fields_of_the_source(table: type) -> None:
    assert [field.name for field in fields(table)] + ["unused"] == struct(table.__name__)


def test_numbers_are_those_of_the_source() -> None:
    source = "".join(path.read_text() for path in sorted(cuda_sources().glob("fused/**/*.cu*")))
    same = ("TILE_ROWS", "WORKERS", "MAX_LAYERS", "MAX_TILES", "MAX_OUTPUTS")
    others = {"HALF_PANEL": geometry.SLICE, "PASS_SHARED_BYTES": geometry.SHARED_BYTES}
    assert_numbers(source, {**{name: getattr(geometry, name) for name in same}, **others})
    kernels = re.findall(r"__launch_bounds__\((\d+), 1\) CLUSTERS_OF_(\d)\s+(\w+)\(", source)
    passes = {name: (int(threads), int(blocks)) for threads, blocks, name in kernels if name.startswith("fused_pass")}
    assert passes == {geometry.entry(P): (geometry.THREADS, P // 64) for P in geometry.WIDTHS}


@pytest.mark.parametrize("P", geometry.WIDTHS)
def test_a_block_has_a_slice_of_a_tile(P: int) -> None:
    launch = geometry.launch(P, 7)
    assert launch.grid == (P // 64, 7, 1)
    assert launch.threads == geometry.THREADS
    assert launch.shared <= 227 * 1024


def test_the_exchange_has_room_for_every_layer() -> None:
    one, two = (geometry.exchange_bytes(layers, 15, 512) - geometry.TAG_BYTES for layers in (1, 2))
    assert two == 2 * one
    assert one == 2 * 15 * 512 * 16 + 15 * 8 * (8 + 8 * geometry.WORKERS)


def test_tables_hold_pointers_then_numbers_then_pairs_of_floats() -> None:
    arrays = [DeviceArray(256 * number, (4,), np.dtype(np.float32)) for number in range(1, 24)]
    layer = geometry.PassLayer(*arrays[:2], None, *arrays[3:15], 128, 2.0, 1e-5, 0.5)
    table = layer.table()
    assert table.dtype == np.int64
    assert table[:3].tolist() == [256, 512, 0]
    assert table[15] == 128
    np.testing.assert_array_equal(table[16:].view(np.float32), np.array([2, 1e-5, 0.5, 0], np.float32))
    of_batch = geometry.Pass(*arrays, 3, 100, 1, 1, 15, 1.5).table()
    assert of_batch[22:28].tolist() == [23 * 256, 3, 100, 1, 1, 15]
    np.testing.assert_array_equal(of_batch[28:].view(np.float32), np.array([1.5, 0], np.float32))
