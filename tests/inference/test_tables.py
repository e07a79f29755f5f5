"""Tables of predictions: all formats have the same rows, and numbers read back to the bit."""

from __future__ import annotations

import csv
import json
import re
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gcnbatch import predictions
from gcnbatch.data.schema import Header
from gcnbatch.errors import InputError
from gcnbatch.predictions import Predictions, check_target, open_sink, read_outputs, write_table

FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def header(*tasks: str, classes: tuple[str, ...] = ()) -> Header:
    return Header(
        name="t",
        level="graph",
        target="multiclass" if classes else "regression",
        task_names=tasks,
        class_names=classes,
        n_features=1,
        channel_names=("edge",),
    )


def written(path: Path, *parts: Predictions) -> Path:
    with open_sink(path) as sink:
        for part in parts:
            sink.append(part)
    return path


def cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


@FEW
@given(arrays(np.float64, st.tuples(st.integers(0, 5), st.just(2)), elements=st.floats()))
def test_csv_reads_back_to_the_bit(tmp_path, values) -> None:
    names = np.array([f"row {i}" for i in range(len(values))], dtype=np.str_)
    path, of_values = tmp_path / "out.csv", header("a", "b")
    of_probabilities = of_values.model_copy(update={"target": "binary"})
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    for kind, outputs in ((of_values, values), (of_probabilities, narrow)):
        write_table(path, Predictions(kind, names, outputs))
        found = read_outputs(path, kind, len(values))
        assert found.dtype == outputs.dtype
        np.testing.assert_array_equal(found, outputs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes; expected predictions of 2 rows with 2 numbers each"),
        (b"id,a,b\nx,1,2\n", "1 row; expected predictions of 2 rows"),
        (b"id,a,b\n" + b"x,1,2\n" * 9, "more than 2 rows"),
        (b"id,a,b\nx,\xff,2\ny,1,2\n", "row 1: 'utf-8' codec can't decode"),
        (b'id,a,b\n"x\n' + b'","\n' * 9, r"row 1: could not convert string to float: '\n'"),
        (b'id,a,b\n"x"\n' + b'","\n' * 9, "row 1: 0 numbers in place of 2"),
        (b'id,a,b\n"x\n' + b"y\n" * 60_000, "row 1: a line of more than 100,000 bytes"),
        (b"id,a,b\n" + b"," * 200_000 + b"\n", "row 1: a line of more than 100,000 bytes"),
    ],
)
def test_a_table_of_a_stranger_is_refused_in_one_line(tmp_path, content, message, monkeypatch) -> None:
    monkeypatch.setattr(predictions, "_LINE_BYTES", 100_000)
    path = tmp_path / "out.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"out.csv(, )?(: )?{re.escape(message)}") as caught:
        read_outputs(path, header("a", "b"), 2)
    assert "\n" not in str(caught.value)


def test_an_id_with_line_breaks_is_one_row(tmp_path) -> None:
    values = np.array([[1.5, 2.5], [3.5, 4.5]])
    write_table(tmp_path / "out.csv", Predictions(header("a", "b"), np.array(["x\ny", "z\r\n,"]), values))
    np.testing.assert_array_equal(read_outputs(tmp_path / "out.csv", header("a", "b"), 2), values)


def test_a_sparse_table_of_gigabytes_takes_a_line_of_memory(tmp_path) -> None:
    path = tmp_path / "out.csv"
    with path.open("wb") as stream:
        stream.write(b"id,a,b\n")
        stream.truncate(3 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="row 1: a line of more than 4,194,304 bytes"):
            read_outputs(path, header("a", "b"), 2)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_all_formats_have_the_same_rows(tmp_path) -> None:
    kind = header("a", "b")
    rng = np.random.default_rng(0)
    outputs, std = rng.normal(size=(2, 3, 2)).astype(np.float32)
    outputs[1] = std[1] = np.nan
    names, errors = np.array(["first", 'comma, "quote"', "µ→"]), np.array(["", "broken\nbond", ""])
    parts = [
        Predictions(kind, names[rows], outputs[rows], std[rows], errors[rows]) for rows in (slice(0, 2), slice(2, 3))
    ]
    table = cells(written(tmp_path / "out.csv", *parts))
    assert table[0] == ["id", "a", "a_std", "b", "b_std", "error"]
    assert table[2] == [names[1], "", "", "", "", "broken\nbond"]
    from_csv = np.array([[float(cell or "nan") for cell in row[1:5]] for row in table[1:]], dtype=np.float32)
    np.testing.assert_array_equal(from_csv, np.stack([outputs, std], axis=2).reshape(3, 4))

    lines = (tmp_path / "out.jsonl", *parts)
    rows = [json.loads(line) for line in written(*lines).read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in rows] == names.tolist()
    assert rows[1] == {"id": names[1], "a": None, "a_std": None, "b": None, "b_std": None, "error": "broken\nbond"}
    assert rows[0] == {
        name: cell if name == "id" else float(cell) if cell else None
        for name, cell in zip(table[0], table[1], strict=True)
    }

    with h5py.File(written(tmp_path / "out.h5", *parts)) as file:
        assert file.attrs["target"] == "regression"
        assert set(file) == {"id", "names", "outputs", "std", "error"}
        assert file["id"].asstr()[:].tolist() == names.tolist()
        assert file["names"].asstr()[:].tolist() == ["a", "b"]
        assert file["error"].asstr()[:].tolist() == errors.tolist()
        np.testing.assert_array_equal(file["outputs"][:], outputs)
        np.testing.assert_array_equal(file["std"][:], std)
        assert file["outputs"].dtype == file["std"].dtype == np.float32


def test_the_predicted_class_precedes_the_probabilities(tmp_path) -> None:
    outputs = np.array([[0.25, 0.75], [0.5, 0.5], [np.nan, np.nan]], dtype=np.float32)
    kind = header("kind", classes=("no", "yes"))
    path = written(tmp_path / "out.csv", Predictions(kind, np.array(["a", "b", "c"]), outputs))
    assert cells(path) == [
        ["id", "kind", "p(no)", "p(yes)"],
        ["a", "yes", "0.25", "0.75"],
        ["b", "no", "0.5", "0.5"],
        ["c", "", "", ""],
    ]
    np.testing.assert_array_equal(read_outputs(path, kind, len(outputs)), outputs)


def test_tasks_whose_names_are_taken_keep_their_columns(tmp_path) -> None:
    values = np.array([[1, 2, 3]], dtype=np.float32)
    table = Predictions(header("id", "x", "error"), np.array(["a"]), values, values + 3, np.array(["why"]))
    assert cells(written(tmp_path / "out.csv", table)) == [
        ["id", "id_", "id_std", "x", "x_std", "error", "error_std", "error_"],
        ["a", "1.0", "4.0", "2.0", "5.0", "3.0", "6.0", "why"],
    ]


def test_nan_and_infinity_are_null_in_json(tmp_path) -> None:
    values = np.array([[np.inf]], dtype=np.float32)
    path = written(tmp_path / "out.jsonl", Predictions(header("x"), np.array(["a"]), values))
    assert json.loads(path.read_text()) == {"id": "a", "x": None}


def test_a_table_that_fails_half_way_leaves_no_file(tmp_path) -> None:
    part = Predictions(header("x"), np.array(["a"]), np.zeros((1, 1), np.float32))

    def fail(path: Path) -> None:
        with open_sink(path) as sink:
            sink.append(part)
            raise InputError("half way")

    for ending in ("csv", "jsonl", "h5"):
        with pytest.raises(InputError, match="half way"):
            fail(tmp_path / f"out.{ending}")
    assert list(tmp_path.iterdir()) == []


def test_standard_output_is_csv(capsys) -> None:
    with open_sink(None) as sink:
        sink.append(Predictions(header("x"), np.array(["a"]), np.full((1, 1), 0.1, np.float32)))
    assert capsys.readouterr().out == "id,x\na,0.1\n"


def test_hdf5_refuses_a_nul_in_text(tmp_path) -> None:
    table = Predictions(header("x"), np.array(["a", "b\0c"]), np.zeros((2, 1), np.float32))
    with pytest.raises(InputError) as refused:
        written(tmp_path / "out.h5", table)
    assert str(refused.value) == (r"id 'b\x00c': a NUL character, which HDF5 cannot hold. Write .csv or .jsonl.")
    assert list(tmp_path.iterdir()) == []
    assert json.loads(written(tmp_path / "out.jsonl", table).read_text().splitlines()[1])["id"] == "b\0c"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "h5"])
@pytest.mark.parametrize("tasks", [("x",), ("a,b", "=c", 'say "d"', "e\n", "id")], ids=["plain", "odd names"])
def test_predictions_of_the_same_outputs_may_be_replaced(tmp_path, ending: str, tasks: tuple[str, ...]) -> None:
    about, other = header(*tasks), header("another")
    numbers = np.zeros((1, len(tasks)), np.float64)
    plain = Predictions(about, np.array(["a"]), numbers)
    kept = {"two\nlines": np.array(["mine"])}
    from_table = Predictions(
        about, np.array(["a"]), numbers, numbers, np.array([""]), kept, {f"{tasks[0]}_low": numbers[:, 0]}
    )
    for table in (plain, from_table):
        path = written(tmp_path / f"p.{ending}", table)
        assert check_target(str(path), about, []) is not None
        if ending != "h5":
            with pytest.raises(InputError, match="something else is there"):
                check_target(str(path), other, [])


@pytest.mark.parametrize(
    "text", ["id,smiles,x\n", "smiles,x\n", "x,id\n", "id\n", "id,y\n", "row,id,x,error\n", '{"id": 1}\n', "\0" * 9]
)
def test_other_tables_are_no_predictions(tmp_path, text: str) -> None:
    for ending in ("csv", "jsonl"):
        path = tmp_path / f"p.{ending}"
        path.write_text(text)
        with pytest.raises(
            InputError, match="something else is there; expected a new file, or predictions of these outp"
        ):
            check_target(str(path), header("x"), [])
