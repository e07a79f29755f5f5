"""Comparison of a CSV with the Parquet file beside it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest


def assert_same_table(path: Path) -> None:
    """Assert that a CSV and the Parquet file beside it have the same columns and cells."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (the extra 'tables')")
    found = parquet.read_table(path.with_suffix(".parquet"))
    with path.open(encoding="utf-8", newline="") as stream:
        names, *rows = list(csv.reader(stream))
    assert found.column_names == names
    assert found.num_rows == len(rows)
    for name, texts in zip(names, zip(*rows, strict=True), strict=False):
        for value, text in zip(found.column(name).to_pylist(), texts, strict=True):
            if isinstance(value, float):
                assert value == pytest.approx(float(text), rel=1e-7)
            else:
                assert ("" if value is None else str(value)) == text
