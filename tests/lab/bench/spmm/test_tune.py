"""The table of kernels from measurements, without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.backends.cuda.spmm import table as spmm_table
from gcnbatch.backends.cuda.spmm.kernels import CANDIDATES
from gcnbatch.lab.bench.spmm import problems, tune
from gcnbatch.lab.bench.spmm.tune import Tuning

AXES = ((50,), (3,), (16, 64, 1024), (10, 100))


def test_the_fastest_of_each_point() -> None:
    found = Tuning(AXES, {"gpu": "Some GPU"})
    found.times = {
        (50, 3, 16, 10): [{"some": 2.0, "other": 3.0}],
        (50, 3, 16, 100): [{"some": 2.5, "other": 2.0}],
        (50, 3, 64, 10): [{"some": 2.01, "third": 2.0}],
        (50, 3, 64, 100): [{"some": 2.2, "third": 2.0}],
    }
    table = found.table()
    assert table.nearest((50, 3, 16, 10)) == "some"
    assert table.nearest((50, 3, 16, 100)) == "other"
    assert table.nearest((50, 3, 64, 10)) == "third"
    assert table.nearest((50, 3, 1024, 100)) == "third", "not measured: as the next fewer columns"
    assert found.counts() == [["third", 4], ["some", 1], ["other", 1]]
    assert set(Tuning(AXES, {}).table().fastest) <= set(CANDIDATES)


def test_candidates_close_on_equal_rows_are_ranked_on_both_batches() -> None:
    axes = ((50,), (3,), (16,), (10,))
    equal = {"branches": 2.0, "even": 2.1, "masks": 2.15, "slow": 2.2}
    ragged = {"branches": 3.0, "even": 2.9, "masks": 2.5, "slow": 1.0}
    assert Tuning(axes, {}, {(50, 3, 16, 10): [equal]}).table().fastest == ("branches",)
    assert Tuning(axes, {}, {(50, 3, 16, 10): [equal, ragged]}).table().fastest == ("masks",)


def test_a_point_is_measured_on_equal_and_on_ragged_rows() -> None:
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
    ("rows", "columns", "vector", "expected"),
    [
        (200, 1024, 4, list(CANDIDATES)),
        (200, 64, 4, [name for name in CANDIDATES if name not in ("2x1/32/256", "2x5/32/128")]),
        (200, 16, 4, ["1x3m/16/256", "1x5m/16/128", "1x5m/16/256", "1x3/32/256", "4x2/32/128"]),
        (200, 75, 1, ["1x3m/16/256", "1x5m/16/128"]),
        (2**30, 64, 4, ["1x3m/16/256"]),
    ],
)
def test_equal_candidates_are_measured_once(rows: int, columns: int, vector: int, expected: list[str]) -> None:
    assert tune.candidates(rows, columns, vector) == expected
    for name in CANDIDATES:
        other = tune.served_as(name, rows, columns, vector)
        assert other in expected
        assert CANDIDATES[other].plan(rows, columns, vector) == CANDIDATES[name].plan(rows, columns, vector)


def test_the_grid_covers_the_papers_figures() -> None:
    for shape in problems.FIGURES.values():
        for points, (low, high) in zip(tune.GRID[:2], (shape.dim, shape.per_row), strict=True):
            assert points[0] / 2 <= low
            assert high <= 2 * points[-1]
        assert tune.GRID[3][0] <= shape.batch <= tune.GRID[3][-1]
