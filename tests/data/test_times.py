"""Columns of times: forms of dates, numbers, what cannot be read; and how a data set keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcnbatch
from gcnbatch.data.graphs import concatenate
from gcnbatch.data.importers.times import read_times
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.data.writer import check_graphset
from gcnbatch.errors import InputError
from tests.builders import build_graphset

DAY = date(2020, 1, 31).toordinal() - date(1970, 1, 1).toordinal()


@pytest.mark.parametrize(
    "text",
    [
        "2020-01-31",
        "2020-01-31T00:00:00+00:00",
        "20200131T000000",
        "2020/01/31",
        "31.01.2020",
        "31/01/2020",
        "01/31/2020",
        "1/31/20",
        "31-01-2020",
        "31 Jan 2020",
        "31-jan-2020",
        "31-Jan-20",
        "31 January 2020",
        "Jan 31, 2020",
        "January 31, 2020",
    ],
)
def test_dates_of_the_usual_forms_are_days(text: str) -> None:
    found, said = read_times("t.csv", [text, "", text, "n.d."])
    np.testing.assert_array_equal(found, [DAY, np.nan, DAY, np.nan])
    assert said == "dates, 2020-01-31 to 2020-01-31"


@pytest.mark.parametrize(
    ("texts", "hours"),
    [
        (["2020-01-31 06:00:00", "2020-01-31", "2020-01-31T07:00+01:00"], [6, 0, 6]),
        (["31.01.2020 18:30", "31.01.2020", "31.01.2020 00:00:36"], [18.5, 0, 0.01]),
        (["1/31/2020 6:30 PM", "1/31/2020 12:00 am", "1/31/2020 12:00 PM"], [18.5, 0, 12]),
    ],
)
def test_the_time_of_day_is_a_share_of_a_day(texts: Sequence[str], hours: Sequence[float]) -> None:
    np.testing.assert_allclose(read_times("t.csv", texts)[0], DAY + np.array(hours) / 24, atol=1e-9)


def test_months_and_numbers_are_times_too() -> None:
    assert read_times("t.csv", ["2020-02", "2020-01"])[0].tolist() == [DAY + 1, DAY - 30]
    assert read_times("t.csv", ["Feb 2020"])[0].tolist() == [DAY + 1]
    found, said = read_times("t.csv", ["2019", "2003.5", "?", "-1e3"])
    np.testing.assert_array_equal(found, [2019, 2003.5, np.nan, -1000])
    assert said == "numbers, larger is newer"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["", "NA"], "t.csv: no value in any row; expected dates in one form, such as 2020-01-31, or numbers"),
        (
            ["2020-01-31", "", "soon"],
            "t.csv, row 3: 'soon'; expected dates in one form, such as 2020-01-31, or numbers",
        ),
        (["2020-01-31", "2020-02-30"], "t.csv, row 2: '2020-02-30'; expected dates"),
        (["2020-01-31", "2020-02-01", "1.3.2020"], "t.csv, row 3: '1.3.2020'; expected dates"),
        (["31/01/2020", "30/01/2020", "01/31/2020"], "t.csv, row 3: '01/31/2020'; expected dates"),
        (["2019", "2020", "2021-05-01"], "t.csv, row 3: '2021-05-01'; expected dates"),
        (["5", "inf"], "t.csv, row 2: 'inf'; expected dates"),
        (
            ["03/04/2020", "05/06/2020"],
            "t.csv: dates such as '03/04/2020': 31/01/2020 or 01/31/2020 fits all rows; expected days and months that "
            "can be told apart. Write dates as 2020-01-31.",
        ),
    ],
)
def test_what_is_no_time_is_one_clear_line(texts: Sequence[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_times("t.csv", texts)
    assert str(caught.value).startswith(message)


def test_dates_that_both_forms_read_alike_are_clear() -> None:
    assert read_times("t.csv", ["03/03/2020", "04/04/2020"])[1] == "dates, 2020-03-03 to 2020-04-04"


# ------------------------------------------------------------------------------------------------ data sets


def test_a_data_set_keeps_times(tmp_path: Path) -> None:
    times = np.array([3.0, np.nan, 1.0])
    graphs = replace(build_graphset(3), times=times)
    write_graphset(tmp_path / "set.h5", graphs)
    with Dataset(tmp_path / "set.h5") as dataset:
        assert dataset.times is not None
        np.testing.assert_array_equal(dataset.times, times)
        np.testing.assert_array_equal(dataset.read([2, 0]).times, times[[2, 0]])
        np.testing.assert_array_equal(dataset.load().times, times)
    np.testing.assert_array_equal(concatenate([graphs, graphs.take([0])]).times, [*times, 3.0])
    assert gcnbatch.shard(tmp_path / "set.h5", tmp_path / "shards", max_graphs=2) == 2
    np.testing.assert_array_equal(gcnbatch.read(tmp_path / "shards").times, times)


def test_times_that_break_a_rule_are_refused() -> None:
    graphs = build_graphset(3)
    with pytest.raises(InputError, match=r"graphs/time\[1\]: inf; expected a finite number, or NaN where missing"):
        check_graphset("set", replace(graphs, times=np.array([0, np.inf, 1])))
    with pytest.raises(InputError, match=r"graphs/time: shape \(2,\); expected shape \(3,\)"):
        check_graphset("set", replace(graphs, times=np.zeros(2)))
    nodes = build_graphset(1, level="node")
    with pytest.raises(InputError, match="graphs/time: present in a node-level set; expected times of graphs"):
        check_graphset("set", replace(nodes, times=np.zeros(1)))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([3, None, 1.5], [3, np.nan, 1.5]),
        (["2020-01-31", "", "2020-02-01"], [DAY, np.nan, DAY + 1]),
        (["31.01.2020", None, "n.d."], [DAY, np.nan, np.nan]),
        (np.array(["2020-01-31T12", "NaT", "1970-01-01"], "datetime64[h]"), [DAY + 0.5, np.nan, 0]),
        ([date(2020, 1, 31), date(2020, 2, 1), date(1970, 1, 2)], [DAY, DAY + 1, 1]),
    ],
)
def test_python_gives_times_as_numbers_dates_and_texts(times: Any, expected: Sequence[float]) -> None:
    pytest.importorskip("rdkit")
    graphs = gcnbatch.from_smiles(["CCO", "CCN", "CCC"], [1, 2, 3], times=times)
    np.testing.assert_array_equal(graphs.times, expected)
    loops, pointer = np.arange(3) * 0, np.arange(4)
    made = gcnbatch.graph_set(np.ones((3, 1)), loops, loops, [1, 2, 3], node_ptr=pointer, edge_ptr=pointer, times=times)
    np.testing.assert_array_equal(made.times, expected)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1, 2], r"times: \(2,\); expected \(3,\), one per graph"),
        ([[1], [2], [3]], r"times: \(3, 1\); expected \(3,\)"),
        (["2020-01-31", "x", "y"], "times, row 2: 'x'; expected dates in one form"),
        ([1j, 2, 3], "times: complex128; expected numbers, dates, or texts of dates"),
        ([1, 2, np.inf], r"graphs/time\[2\]: inf; expected a finite number"),
    ],
)
def test_other_times_are_refused(times: Any, message: str) -> None:
    loops, pointer = np.arange(3) * 0, np.arange(4)
    with pytest.raises(InputError, match=message):
        gcnbatch.graph_set(np.ones((3, 1)), loops, loops, [1, 2, 3], node_ptr=pointer, edge_ptr=pointer, times=times)


def test_a_set_with_times_says_so_and_is_split_by_them(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    graphs = gcnbatch.from_smiles(["CCO", "CCN", "CCC", "CCCC"], range(4), times=[2003, 2001, None, 2002])
    gcnbatch.write(tmp_path / "set.h5", graphs)
    assert gcnbatch.describe(tmp_path / "set.h5").timed == 3
    run = gcnbatch.train(
        data=graphs,
        epochs=1,
        settings={"split.kind": "time", "split.test": 0.3, "split.valid": 0.3, "model.widths": [4]},
        backend="cpu",
        out=tmp_path / "run",
    )
    assert run.metrics["split"]["sizes"] == [1, 1, 1]
    with Dataset(tmp_path / "run" / "data.h5") as dataset:
        assert dataset.times is not None
        assert dataset.times[0] == 2003
