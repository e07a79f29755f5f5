"""From measurements to a table, without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.backends.cuda import spmm_table
from gcnbatch.backends.cuda.spmm_kernels import CANDIDATES
from gcnbatch.bench import problems, tune
from gcnbatch.bench.tune import Tuning

AXES = ((50,), (3,), (16, 64, 1024), (10, 100))


def test_the_fastest_of_each_point() -> None:
    found = Tuning(AXES, {"gpu": "Some GPU"})
    found.times = {
        (50, 3, 16, 10): [{"1x3/128": 2.0, "csr": 3.0}],
        (50, 3, 16, 100): [{"1x3/128": 2.5, "csr": 2.0}],
        (50, 3, 64, 10): [{"1x3/128": 2.01, "2x3/128": 2.0}],
        (50, 3, 64, 100): [{"1x3/128": 2.2, "2x3/128": 2.0}],
    }
    table = found.table()
    assert table.nearest((50, 3, 16, 10)) == "1x3/128"
    assert table.nearest((50, 3, 16, 100)) == "csr"
    assert table.nearest((50, 3, 64, 10)) == "2x3/128"
    assert table.nearest((50, 3, 1024, 100)) == "2x3/128", "not measured: as the next fewer columns"
    assert found.counts() == [["2x3/128", 4], ["1x3/128", 1], ["csr", 1]]
    assert Tuning(AXES, {}).table().fastest == ("csr",) * 6


def test_of_those_close_on_equal_rows_ragged_ones_decide() -> None:
    axes = ((50,), (3,), (16,), (10,))
    equal, ragged = {"1x3/128": 2.0, "1x5/128": 2.09, "csr": 2.2}, {"1x3/128": 3.0, "1x5/128": 2.5, "csr": 2.4}
    assert Tuning(axes, {}, {(50, 3, 16, 10): [equal]}).table().fastest == ("1x3/128",)
    assert Tuning(axes, {}, {(50, 3, 16, 10): [equal, ragged]}).table().fastest == ("1x5/128",)
    assert Tuning(axes, {}, {(50, 3, 16, 10): [{"csr": 2.0}, ragged]}).table().fastest == ("csr",)
    assert Tuning(axes, {}, {(50, 3, 16, 10): [equal, {"csr": 9.0}]}).table().fastest == ("1x3/128",)


def test_a_point_stands_for_equal_and_for_ragged_rows() -> None:
    equal, ragged = tune.batches_of(32, 3, 10)
    assert (equal.per_row, equal.ragged) == ((3, 3), False)
    assert (ragged.per_row, ragged.ragged) == ((1, 5), True)
    assert [shape.per_row for shape in tune.batches_of(32, 1, 10)] == [(1, 1)]
    counts = [len(set(np.diff(problems.random_batch(shape).matrix.indptr))) for shape in (equal, ragged)]
    assert counts == [1, 5]


def test_a_table_is_saved_where_auto_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    spmm_table.load.cache_clear()
    found = Tuning(AXES, {"gpu": "Some GPU"})
    assert found.save() == tmp_path / "spmm" / "some-gpu.json"
    assert spmm_table.load("Some GPU", frozenset(CANDIDATES)).axes == AXES
    assert found.save(tmp_path / "mine.json") == tmp_path / "mine.json"
    spmm_table.load.cache_clear()


@pytest.mark.parametrize(
    ("per_row", "columns", "vector", "expected"),
    [
        (3, 64, 4, set(CANDIDATES)),
        (3, 16, 4, {name for name in CANDIDATES if not name.startswith(("2x", "4x"))}),
        (3, 75, 1, {"1x3/128", "1x3/256", "1x5/128", "1x5/256", "csr", "swa_csr"}),
        (16, 16, 4, {"csr"}),
    ],
)
def test_only_what_differs_is_measured(per_row: int, columns: int, vector: int, expected: set[str]) -> None:
    problem = problems.random_batch(problems.Shape("some", 10, (20, 20), (per_row, per_row)))
    assert set(tune.candidates(problem, columns, vector)) == expected


def test_the_grid_reaches_the_papers_figures() -> None:
    for shape in problems.FIGURES.values():
        for points, (low, high) in zip(tune.GRID[:2], (shape.dim, shape.per_row), strict=True):
            assert points[0] / 2 <= low
            assert high <= 2 * points[-1]
        assert tune.GRID[3][0] <= shape.batch <= tune.GRID[3][-1]
