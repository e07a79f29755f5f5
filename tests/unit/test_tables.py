"""Tables by columns as CSV and Parquet."""

from __future__ import annotations

import csv
import os
import sys
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from gcnbatch import tables
from gcnbatch.errors import MachineError
from gcnbatch.workers.pool import WorkerDied, Workers
from tests.parquet import assert_same_table

COLUMNS: dict[str, object] = {
    "id": np.array(["a", "b\x1b[1m", ""]),
    "single": np.array([0.1, np.nan, 3], dtype=np.float32),
    "double": [0.1, None, 3],
    "count": [1, None, 2**60],
    "mixed": [1, "two", None],
    "yes": [True, False, None],
    "blank": [None, None, None],
}


def test_a_table_is_written_as_csv_and_beside_it_as_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (the extra 'tables')")
    tables.write(tmp_path / "t.csv", COLUMNS, parquet=True)  # type: ignore[arg-type]
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as stream:
        assert list(csv.reader(stream)) == [
            list(COLUMNS),
            ["a", "0.1", "0.1", "1", "1", "True", ""],
            ["b\\x1b[1m", "", "", "", "two", "False", ""],
            ["", "3.0", "3", str(2**60), "", "", ""],
        ]
    found = parquet.read_table(tmp_path / "t.parquet")
    types = ["string", "float", "double", "int64", "string", "bool", "string"]
    assert [str(field.type) for field in found.schema] == types
    assert found.column("id").to_pylist() == ["a", "b\x1b[1m", None]
    assert found.column("single").to_pylist() == [np.float32(0.1), None, 3]
    assert found.column("double").to_pylist() == [0.1, None, 3]
    assert found.column("mixed").to_pylist() == ["1", "two", None]


@pytest.mark.parametrize("shared", [False, True])
def test_a_long_table_is_written_in_blocks(shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((1001, 3)).astype(np.float32)
    columns = {"id": np.array([f"n{i}" for i in range(1001)])} | {f"x{k}": numbers[:, k] for k in range(3)}
    whole = tables.csv_text(columns)
    monkeypatch.setattr(tables, "BLOCK_CELLS", 400)
    monkeypatch.setattr(tables, "SHARED_CELLS", 0 if shared else 10**9)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    started = []

    def start(count: int, quiet: bool) -> Workers:
        started.append(count)
        return Workers(count, quiet=quiet)

    monkeypatch.setattr(tables, "Workers", start)
    tables.write(tmp_path / "t.csv", columns)
    assert started == ([3] if shared else [])
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == whole.header + whole.rows


def test_a_block_whose_process_died_is_made_here() -> None:
    made = Future[tables.CsvText]()
    made.set_exception(WorkerDied())
    assert tables._text(made, {"x": np.zeros(1, np.float32)}) == tables.CsvText("x\n", "0.0\n")


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (the extra 'tables')")
    tables.write(tmp_path / "t.csv", {"id": [], "x": np.zeros(0, np.float32)}, parquet=True)
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == "id,x\n"
    assert_same_table(tmp_path / "t.csv")


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MachineError) as caught:
        tables.check_parquet("--parquet")
    assert str(caught.value) == "--parquet: pyarrow is not installed. Install it: pip install 'gcnbatch[tables]'."
