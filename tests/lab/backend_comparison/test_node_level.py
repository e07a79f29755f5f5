"""Additions of compare-backends for node-level sets and for fast-math."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.config import resolve
from gcnbatch.data import synthetic
from gcnbatch.lab.backend_comparison import comparison
from gcnbatch.lab.backend_comparison import report as reports
from gcnbatch.lab.backend_comparison.workload import QUICK
from tests.lab.backend_comparison.backends import Another, DeviceLike


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("networks") / "citation.h5"
    synthetic.write("citation", path, scale=0.1)
    return path


@pytest.fixture
def run(network: Path, tmp_path: Path):
    def compare(**sections):
        tree = {
            "name": "cora",
            "data": {"path": str(network)},
            "split": {"kind": "predefined"},
            "model": {"kind": "kipf", "widths": [8]},
            "train": {"epochs": 3, "learning_rate": 0.01},
            **sections,
        }
        return comparison.compare(resolve(tree), (), tmp_path / "report", effort=QUICK)

    return compare


def test_a_node_level_set_has_the_table_of_functions(install, run) -> None:
    install(cpu=Another("cpu"), batched=DeviceLike())
    _, report = run()
    table = next(table for table in reports.build(report) if table.title == "Functions")
    assert table.header == ["ms per epoch", "cpu", "batched", "batched over cpu"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == [
        "Matmul forward",
        "Matmul backward",
        "SparseMatmul forward",
        "SparseMatmul backward",
        "GraphSum forward",
        "GraphSum backward",
        "ReLU forward",
        "ReLU backward",
        "Dropout forward",
        "Dropout backward",
        "CrossEntropyLoss forward",
        "sum",
        "total training time",
    ]
    operations = report["operations"]
    expected = operations["cpu"]["SpMM forward"]["microseconds"] / operations["batched"]["SpMM forward"]["microseconds"]
    assert rows["GraphSum forward"][2] == reports.ratio(expected)
    assert rows["GraphSum forward"][0] == reports.number(operations["cpu"]["SpMM forward"]["microseconds"] / 1e3)


def test_a_graph_level_set_has_no_table_of_functions(install, small, tmp_path: Path) -> None:
    install(cpu=Another("cpu"))
    _, report = comparison.compare(resolve({"data": {"path": str(small)}}), (), tmp_path / "report", effort=QUICK)
    assert "Functions" not in [table.title for table in reports.build(report)]


def test_fast_math_is_compared_with_exact_kernels(install, run) -> None:
    install(cpu=Another("cpu"), batched=DeviceLike())
    folder, report = run(cuda={"fast_math": True})
    assert list(report["fast_math"]) == ["batched"]
    found = report["fast_math"]["batched"]
    assert found["agrees"]
    assert found["figure"] == "accuracy"
    assert found["exact"] == found["fast"] > 1 / 7  # the same operations here
    assert "Fast-math" in (folder / "report.md").read_text()


def test_without_the_option_the_report_has_no_fast_math(install, run) -> None:
    install(cpu=Another("cpu"), batched=DeviceLike())
    folder, report = run()
    assert report["fast_math"] == {}
    assert "Fast-math" not in (folder / "report.md").read_text()
