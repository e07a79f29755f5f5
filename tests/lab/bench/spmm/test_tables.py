"""Tables and figures of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcnbatch.lab.bench.spmm import plots, records, tables
from tests.lab.bench.spmm.rows import record


def test_times_have_a_line_per_point() -> None:
    ours, cold = record(us=2.0, choice="1x3/32/256"), record(us=9.0, cache="cold")
    shown = tables.times([ours, record("swa-coo", us=5.0), record("scipy", us=50.0), cold])
    assert shown.header == ["figure", "columns", "scipy", "swa-coo", "fastest", "GFLOPS", "GB/s", "kernel"]
    assert shown.rows == [["8a", 64, 50.0, 5.0, 2.0, 320.0, 665.0, "1x3/32/256"]]
    alone = tables.times([record("scipy", us=50.0)])
    assert (alone.header, alone.rows) == (["figure", "columns", "scipy"], [["8a", 64, 50.0]])


def test_the_caption_names_machine_and_conditions() -> None:
    alone, both = [record("scipy")], [record("scipy"), record()]
    assert tables.caption(alone) == "Some CPU: median microseconds"
    found = tables.caption(both)
    assert found.startswith("Some GPU: median microseconds, operands in L2, no launch cost")
    assert found.endswith("; copy 4,000 GB/s")


def test_ratios_over_ours() -> None:
    found = [
        *(record(us=2.0, columns=columns) for columns in (2, 64, 128)),
        *(record("swa-coo", us=us, columns=columns) for columns, us in ((2, 2.0), (64, 4.0), (128, 16.0))),
        record("cublas", us=9.0, columns=256),
    ]
    assert tables.ratios(found).rows == [
        ["swa-coo", "warm", 1, 3, 2.52, 1.0, "8a/2", 8.0, "8a/128"],
        ["swa-coo", "warm", 64, 2, 4.0, 2.0, "8a/64", 8.0, "8a/128"],
    ]


def test_slower_lists_only_what_became_slower() -> None:
    old = [record(us=10.0, columns=columns) for columns in (2, 4)]
    new = [record(us=us, columns=columns) for columns, us in ((2, 20.0), (4, 10.0))]
    assert tables.slower(records.compare(old, new)).rows == [["8a/2", "fastest", "warm", "graph", 10.0, 20.0, 2.0]]


def test_a_comparison_is_summarised_in_one_line() -> None:
    old = [record(us=10.0, columns=columns) for columns in (2, 4)]
    new = [record(us=us, columns=columns) for columns, us in ((2, 20.0), (4, 5.0))]
    found = tables.changed(records.compare(old, new))
    assert found == "compared: 2 figures, 1 slower; new over old 1.00 in the geometric mean"


def test_absent_methods_are_grouped_by_reason() -> None:
    found = tables.absent({"tf-loop": "no GPU", "cublas": "one size only", "swa-csr": "no GPU"})
    assert found == ["no GPU; left out: tf-loop, swa-csr", "one size only; left out: cublas"]


def test_a_panel_per_figure_and_a_roofline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    found = [
        record(method, us=us * columns, columns=columns, figure=figure)
        for method, us in (("fastest", 1.0), ("swa-coo", 3.0), ("scipy", 70.0))
        for columns in (2, 64)
        for figure in ("8a", "10")
    ]
    found += [record(us=5.0, cache="cold"), record(us=5.0, launch="host")]
    plots.draw(tmp_path / "spmm.png", found)
    panels = [ax for ax in drawn[0].axes if ax.get_visible()]
    assert [ax.get_title(loc="left").partition(":")[0] for ax in panels] == ["8a", "10", "roofline"]
    (ours,) = [line for line in panels[0].get_lines() if line.get_label() == "ours"]
    assert ours.get_xydata().tolist() == [[2, 320.0], [64, 10.0]]
    assert panels[0].get_xscale() == panels[0].get_yscale() == "log"


def test_a_figure_of_records_without_a_gpu(tmp_path: Path) -> None:
    plots.draw(tmp_path / "spmm.png", [record("scipy", figure="set $x$", data="set")])
    assert (tmp_path / "spmm.png").stat().st_size > 5000
