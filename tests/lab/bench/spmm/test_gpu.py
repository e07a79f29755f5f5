"""`bench spmm` and `bench tune` on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.backends.cuda.spmm import table as spmm_table
from gcnbatch.backends.cuda.spmm.kernels import CANDIDATES
from gcnbatch.lab.bench.spmm import problems, runs, tune

pytestmark = pytest.mark.gpu


def test_every_method_is_checked_and_timed_in_every_state() -> None:
    shape = problems.BatchShape("small", 7, (20, 20), (2, 4), (2, 64))
    found = runs.run([(lambda: problems.random_batch(shape, 1), shape.columns)], runs.NAMES, repeats=3)
    assert found.wrong == []
    states = {(record["cache"], record["launch"]) for record in found.records}
    assert states == {*runs.STATES, ("host", "none")}
    measured = {record["method"] for record in found.records}
    assert measured | found.absent.keys() == set(runs.NAMES)
    assert {"fastest", "naive", "csr", "swa-coo", "swa-csr", "tf-loop"} <= measured
    assert all(0 < record["us_p20"] <= record["us"] <= record["us_p80"] for record in found.records)


def test_mixed_sizes_skip_methods_that_need_equal_sizes() -> None:
    shape = problems.BatchShape("mixed", 5, (8, 40), (1, 5), (16,))
    found = runs.run([(lambda: problems.random_batch(shape, 2), shape.columns)], ["fastest", "cublas"], repeats=1)
    assert {record["method"] for record in found.records} == {"fastest"}
    assert "cublas" in found.absent


def test_auto_uses_a_tuned_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCNBATCH_CACHE_DIR", str(tmp_path))
    spmm_table.load.cache_clear()
    axes = ((20,), (2, 3), (4, 64), (5, 50))
    found = tune.tune(axes=axes, repeats=2)
    path = found.save()
    table = spmm_table.load(found.measured["gpu"], frozenset(CANDIDATES))
    assert path.is_relative_to(tmp_path)
    assert (table.axes, table.fastest) == (found.table().axes, found.table().fastest)
    spmm_table.load.cache_clear()
