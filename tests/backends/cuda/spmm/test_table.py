"""The table of "auto": nearest points, its file, and the sizes of the general kernel."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.backends.cuda.batches.batch import DeviceCsr, GraphLayout
from gcnbatch.backends.cuda.runtime.memory import DeviceArray
from gcnbatch.backends.cuda.runtime.sources import Sources
from gcnbatch.backends.cuda.spmm import table as spmm_table
from gcnbatch.backends.cuda.spmm.kernels import CANDIDATES, Blocks, ShortRows, SpmmOperands, spmm_kernel
from gcnbatch.backends.cuda.spmm.table import SpmmTable
from gcnbatch.resources import cuda_sources

KNOWN = frozenset(CANDIDATES)
AXES = ((32, 128), (1, 4), (16, 64, 256), (10, 1000))
NAMES = tuple(f"{number}" for number in range(24))
SHIPPED = SpmmTable.from_json(json.loads(spmm_table.SHIPPED.read_text()), KNOWN)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    spmm_table.load.cache_clear()
    yield
    spmm_table.load.cache_clear()


def test_a_point_of_the_grid_is_its_own_nearest() -> None:
    table = SpmmTable(AXES, NAMES, {})
    assert tuple(table.nearest(point) for point in product(*AXES)) == NAMES


@pytest.mark.parametrize(
    ("point", "same_as"),
    [
        ((63, 1, 16, 10), (32, 1, 16, 10)),
        ((65, 1, 16, 10), (128, 1, 16, 10)),
        ((32, 1.9, 16, 10), (32, 1, 16, 10)),
        ((32, 2.1, 16, 10), (32, 4, 16, 10)),
        ((32, 0, 31, 99), (32, 1, 16, 10)),
        ((1, 99, 127, 101), (32, 4, 64, 1000)),
        ((9999, 1, 129, 10**6), (128, 1, 256, 1000)),
    ],
)
def test_nearest_is_by_ratio_and_ends_at_the_edge(point: Any, same_as: Any) -> None:
    table = SpmmTable(AXES, NAMES, {})
    assert table.nearest(point) == table.nearest(same_as)


def test_a_saved_table_loads_unchanged(tmp_path: Path) -> None:
    names = tuple(sorted(KNOWN)[number % 5] for number in range(24))
    table = SpmmTable(AXES, names, {"gpu": "One GPU"})
    path = tmp_path / "table.json"
    for _ in range(2):
        spmm_table.save(table, spmm_table.output(path))
    again = SpmmTable.from_json(json.loads(path.read_text()), KNOWN)
    assert (again.axes, again.fastest, again.measured) == (AXES, names, {"gpu": "One GPU"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, not 1"),
        ({"rows": [64, 32]}, "not ascending"),
        ({"rows": [0, 32]}, "not ascending"),
        ({"batch": []}, "the axes are not rows, per_row, columns, batch"),
        ({"fastest": [0] * 23}, "23 choices for 24 points"),
        ({"candidates": ["4x4/8/256"]}, "unknown kernel '4x4/8/256'"),
        ({"fastest": [7] * 24}, "not a table of kernels"),
        ({"columns": None}, "not a table of kernels"),
    ],
)
def test_a_malformed_table_is_refused(change: dict[str, Any], message: str) -> None:
    good = SpmmTable(AXES, ("1x3/32/256",) * 24, {}).to_json()
    with pytest.raises(ValueError, match=message):
        SpmmTable.from_json({**good, **change}, KNOWN)
    with pytest.raises(ValueError, match="not a table"):
        SpmmTable.from_json([], KNOWN)


def test_the_users_table_takes_precedence() -> None:
    assert spmm_table.load("Some GPU", KNOWN).fastest == SHIPPED.fastest
    spmm_table.load.cache_clear()
    spmm_table.save(SpmmTable(AXES, ("1x5m/16/128",) * 24, {}), spmm_table.output(None, "Some  GPU (80GB)"))
    assert spmm_table.load("Some GPU 80GB", KNOWN).axes == AXES
    assert spmm_table.load("Another", KNOWN).axes == SHIPPED.axes


def test_a_broken_table_warns_and_the_shipped_one_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    path = spmm_table.user_table("Some GPU")
    path.parent.mkdir()
    path.write_text("{")
    assert spmm_table.load("Some GPU", KNOWN).fastest == SHIPPED.fastest
    assert spmm_table.load("Some GPU", KNOWN).fastest == SHIPPED.fastest
    error = capsys.readouterr().err
    assert error.count("warning") == 1
    assert f"warning: {path}: " in error
    assert "the shipped table is used. Run 'gcnbatch bench tune' again, or remove it." in error


def test_sizes_beyond_the_table_run_the_general_kernel() -> None:
    table = SpmmTable(AXES, ("2x1/8/256",) * 24, {})

    def chosen(rows: int, entries: int, width: int, graphs: int) -> str | None:
        return spmm_table.choose(table, rows, entries, width, graphs, 4)

    assert chosen(5000, 15_000, 64, 100) == "2x1/8/256"
    assert chosen(5000, 5000 * 15, 16, 100) == chosen(5000, 5000 * 16, 64, 100) == "2x1/8/256"
    assert chosen(5000, 5000 * 16, 16, 100) is None, "many entries for few columns"
    assert chosen(5000, 5000 * 17, 512, 100) is None, "rows far longer than any measured"
    assert chosen(232_965, 232_965 * 4, 64, 1) is None, "a graph far larger than any measured"
    assert chosen(0, 0, 64, 0) == "2x1/8/256"


class Noting:
    """A device that checks launches against the kernels' declarations and records them."""

    multiprocessors, name = 132, "Some GPU"
    sources = Sources(cuda_sources())

    def __init__(self) -> None:
        self.launched: list[str] = []

    def launch(self, entry: str, launch: Any, **given: Any) -> None:
        self.sources.entries[entry].pack(given)
        self.launched.append(entry)


def asked(width: int, n_rows: int = 500, address: int = 256, n_graphs: int = 10) -> tuple[SpmmOperands, Blocks]:
    values = DeviceArray(address, (0,), np.dtype(np.float32))
    numbers = DeviceArray(256, (0,), np.dtype(np.int32))
    matrix = DeviceCsr(numbers, numbers, values, n_rows, numbers)
    operands = SpmmOperands(values, values, matrix, 0, 0, width, width, 0, 0, 3 * n_rows, n_rows, width, 0)
    return operands, Blocks(numbers, GraphLayout(np.linspace(0, n_rows, n_graphs + 1).astype(np.int64)), 1)


def test_auto_runs_what_the_table_names() -> None:
    device: Any = Noting()
    for name in ("2x5/8/128", "1x3m/16/256"):
        spmm_table.save(SpmmTable(AXES, (name,) * 24, {}), spmm_table.output(None, device.name))
        spmm_table.load.cache_clear()
        spmm_kernel("auto").batched(device, *asked(64))
    spmm_kernel("auto").batched(device, *asked(64, 50_000))
    spmm_kernel("auto").graph(device, asked(64)[0])
    assert device.launched == ["spmm_rows_float4_2x5", "spmm_rows_float4_1x3m", "spmm_csr_float4", "spmm_csr_float4"]


@pytest.mark.parametrize("columns", [1, *SHIPPED.axes[2], 5000])
def test_auto_never_chooses_the_naive_kernel(columns: int) -> None:
    """Neither inside the shipped table nor beyond it; no table can name the kernel."""
    device: Any = Noting()
    for rows, graphs in product((1, *SHIPPED.axes[0], 10_000), SHIPPED.axes[3]):
        given = asked(columns, rows * graphs, n_graphs=graphs)
        spmm_kernel("auto").batched(device, *given)
        spmm_kernel("auto").graph(device, given[0])
    assert {name.rpartition("_float")[0] for name in device.launched} == {"spmm_rows", "spmm_csr"}
    with pytest.raises(ValueError, match="unknown kernel 'naive'"):
        SpmmTable.from_json({**SHIPPED.to_json(), "candidates": ["naive"]}, KNOWN)


@pytest.mark.parametrize(
    ("form", "width", "rows", "address", "entry"),
    [
        ("4x2", 64, 500, 256, "spmm_rows_float4_4x2"),
        ("4x2", 32, 500, 256, "spmm_rows_float4_1x3m"),
        ("2x5", 12, 500, 256, "spmm_rows_float4_1x5m"),
        ("2x1", 192, 500, 256, "spmm_rows_float4_2x1"),
        ("2x1", 96, 500, 256, "spmm_rows_float4_2x1"),
        ("2x1", 48, 500, 256, "spmm_rows_float4_1x3m"),
        ("2x5", 75, 500, 256, "spmm_rows_float1_1x5m"),
        ("1x3", 64, 500, 260, "spmm_rows_float1_1x5m"),
        ("1x3", 64, 2**30, 256, "spmm_csr_float4"),
        ("2x5", 64, 2**30, 256, "spmm_csr_float4"),
    ],
)
def test_a_form_that_does_not_fit_the_operands_is_replaced(
    form: str, width: int, rows: int, address: int, entry: str
) -> None:
    device: Any = Noting()
    ShortRows(form, 32, 128).batched(device, *asked(width, rows, address))
    ShortRows(form, 32, 128).graph(device, asked(width, rows, address)[0])
    assert device.launched == [entry, "spmm_csr_float4" if address == 256 and width % 4 == 0 else "spmm_csr_float1"]


def test_every_form_has_its_kernel() -> None:
    kernels = set(Sources(cuda_sources()).entries)
    forms = {kernel.form for kernel in CANDIDATES.values()}
    expected = {f"spmm_rows_float4_{form}" for form in forms} | {f"spmm_rows_float1_{ShortRows.SINGLE}"}
    assert {name for name in kernels if name.startswith("spmm_rows")} == expected
    assert set(ShortRows.NARROW.values()) <= forms
    assert set(ShortRows.NARROW) == {form for form in forms if not form.startswith("1x")}
