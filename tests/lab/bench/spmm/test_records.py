"""Files of records, and the comparison of two of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gcnbatch.errors import InputError
from gcnbatch.lab.bench.spmm import records
from tests.lab.bench.spmm.rows import FIGURE, record

POINT = {**FIGURE, "columns": 2, "flops": 1, "bytes": 1, "method": "cublas"}


def test_records_read_back_equal(tmp_path: Path) -> None:
    rows = [record(), record("scipy", columns=2)]
    records.write(tmp_path / "rows.jsonl", rows)
    assert records.read(tmp_path / "rows.jsonl") == rows


def test_common_values_are_written_once(tmp_path: Path) -> None:
    rows = [record(), record(cache="cold"), record("cublas"), record("cublas"), record(columns=128)]
    path = tmp_path / "rows.jsonl"
    records.write(path, rows)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [list(line.get("us", ())) for line in lines] == [
        [],
        ["warm graph", "cold graph"],
        ["warm graph"],
        ["warm graph"],
        [],
        ["warm graph"],
    ]
    assert (lines[0]["columns"], lines[4]["columns"]) == (64, 128)
    assert list(lines[1]) == ["method", "choice", "error", "us"]
    path.write_text(path.read_text() + json.dumps(record("scipy")) + "\n")
    assert records.read(path) == [*rows, record("scipy")], "a record that says all itself"


def test_a_tenth_more_beyond_the_spread_is_slower() -> None:
    old = [record(columns=columns) for columns in (2, 4, 8, 16)]
    new = [
        record(us=12.0, columns=2),
        record(us=10.9, columns=4),
        record(us=5.0, columns=8),
        record(us=12.0, us_p20=10.4, columns=16),
        record(us=99.0, columns=32),
    ]
    changes = records.compare(json.loads(json.dumps(old)), new)
    assert [(change.new["columns"], change.ratio, change.slower) for change in changes] == [
        (2, 1.2, True),
        (16, 1.2, False),
        (4, 1.09, False),
        (8, 0.5, False),
    ]


def test_times_that_include_the_host_may_vary_more() -> None:
    host = {"launch": "host"}
    old = [record(**host), record(columns=2, **host), record("scipy")]
    new = [record(us=14.0, **host), record(us=16.0, columns=2, **host), record("scipy", us=14.0)]
    assert [change.slower for change in records.compare(old, new)] == [True, False, False]


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"dim": [32, 256]}, {"cache": "cold"}, {"launch": "host"}, {"method": "cublas"}]
)
def test_only_the_same_figure_is_compared(other: dict) -> None:
    with pytest.raises(InputError) as caught:
        records.compare([record()], [record(**other)])
    assert str(caught.value) == (
        "--compare: no figure of the old record was measured now; expected the same figures and columns"
    )


def test_times_of_two_machines_are_not_compared() -> None:
    with pytest.raises(InputError) as caught:
        records.compare([record()], [record(gpu="Other GPU")])
    assert str(caught.value) == (
        "--compare: measured on Some GPU; expected Other GPU. Times of two machines say nothing."
    )
    with pytest.raises(InputError, match="measured on Some CPU; expected Other CPU"):
        records.compare([record("scipy")], [record("scipy", cpu="Other CPU")])
    assert len(records.compare([record()], [record(cpu="Other CPU")])) == 1


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"bench": "matmul"}',
        '{"bench": "spmm", "us": 1}',
        json.dumps({**record(), "us": 0}),
        json.dumps({**record(), "us_p80": "9"}),
        json.dumps({**POINT, "us": {"warm graph": [1.0, 1.0]}}),
        json.dumps({**POINT, "us": {"warm": [1.0, 1.0, 1.0]}}),
        json.dumps({**POINT, "us": {"warm graph": 3.0}}),
        json.dumps({**FIGURE, "columns": 2, "method": "cublas", "us": {"warm graph": [1.0, 1.0, 1.0]}}),
    ],
)
def test_a_line_that_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(record()) + "\n\n" + line + "\n")
    with pytest.raises(InputError) as caught:
        records.read(path)
    assert str(caught.value) == (
        f"{path}, line 3: no record of 'bench spmm'; expected JSON with bench, figure, columns, method, cache, launch, "
        "us, us_p20, us_p80"
    )


def test_a_file_of_records_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; expected rows\.jsonl of an earlier 'bench spmm'"):
        records.read(tmp_path / "none.jsonl")
