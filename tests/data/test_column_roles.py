"""Which columns of a table become targets, how labels become classes, and which splits a column gives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.checks import check_header
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.importers.column_roles import assign_roles
from gcnbatch.data.importers.labels import read_labels
from gcnbatch.data.importers.molecule_tables import read_molecules
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.importers.split_columns import read_splits
from gcnbatch.data.schema import Header
from gcnbatch.data.store import Dataset
from gcnbatch.data.tables.delimited import ROW_INDEX
from gcnbatch.errors import InputError
from gcnbatch.options.imports import ColumnOptions

MOLECULES = ("C", "CC", "CCC", "CCO", "CO", "CN", "CCN", "N", "O", "c1ccccc1")


def table(folder: Path, **columns: list[object]) -> Path:
    path = folder / "table.csv"
    rows = len(next(iter(columns.values())))
    head = ["smiles", *columns]
    lines = [[MOLECULES[row], *(column[row] for column in columns.values())] for row in range(rows)]
    path.write_text("\n".join(",".join(map(str, line)) for line in [head, *lines]) + "\n")
    return path


def roles(
    folder: Path, named: ColumnOptions | None = None, *, no_targets: bool = False, **columns: list[object]
) -> dict[str, tuple]:
    found = assign_roles(read_molecules(table(folder, **columns)), named or ColumnOptions(), no_targets)
    return {role.name: role.cells()[1:] for role in found}


def imported(folder: Path, path: Path, **options: object) -> Dataset:
    import_smiles(path, folder / "out.h5", FeaturizerOptions(), processes=1, **options)  # type: ignore[arg-type]
    return Dataset(folder / "out.h5")


# ------------------------------------------------------------------------------------------------ roles


def test_a_number_of_a_database_is_the_id_and_labels_are_the_target(tmp_path: Path) -> None:
    found = roles(tmp_path, CID=[1042, 1043, 1044], label=["active", "inactive", "active"])
    assert found["CID"] == ("id", None, None, "")
    assert found["label"] == ("target", "binary", 3, "inactive = 0, active = 1")


@pytest.mark.parametrize("word", ["NA", "N/A", "null", "nan", "-", "", "#N/A", "<NA>"])
def test_words_for_missing_values_do_not_hide_a_target(tmp_path: Path, word: str) -> None:
    assert roles(tmp_path, a=[1, 0, 1], b=[word, 0, 1])["b"] == ("target", "binary", 2, "")


def test_whole_numbers_that_all_differ_are_no_target_unless_named(tmp_path: Path) -> None:
    codes, y = list(range(5000, 5010)), [0.5 * row for row in range(10)]
    found = roles(tmp_path, code=codes, y=y)
    assert found["code"][0] == "ignored"
    assert "identifier" in found["code"][-1]
    assert found["y"] == ("target", "regression", 10, "")
    assert roles(tmp_path, ColumnOptions(target_columns=["code"]), code=codes, y=y)["code"][:2] == (
        "target",
        "regression",
    )


def test_names_of_identifiers_row_weights_and_splits_are_no_targets(tmp_path: Path) -> None:
    found = roles(tmp_path, batch_no=[7, 7, 9], weight=[1.0, 0.5, 2.0], fold=[0, 1, 2], y=[0.1, 0.2, 0.3])
    assert [name for name, cells in found.items() if cells[0] == "target"] == ["y"]
    assert found["batch_no"][-1] == "named like an identifier"
    assert "--split-column" in found["fold"][-1]
    assert found["weight"][-1] == "looks like weights of rows; --weight-column takes it"


@pytest.mark.parametrize("name", ["w", "Sample_Weight", "row weights"])
@pytest.mark.parametrize(("targets", "no_targets"), [(None, False), (["y"], False), (None, True)])
def test_columns_named_like_weights_are_pointed_out(
    tmp_path: Path, name: str, targets: list[str] | None, no_targets: bool
) -> None:
    named = ColumnOptions(target_columns=targets)
    found = roles(tmp_path, named, no_targets=no_targets, y=[0.1, 0.2, 0.3], **{name: [1.0, 0.5, 2.0]})
    assert found[name] == ("ignored", None, None, "looks like weights of rows; --weight-column takes it")
    targets_of = roles(tmp_path, ColumnOptions(target_columns=[name]), y=[0.1, 0.2, 0.3], **{name: [1.0, 0.5, 2.0]})
    assert targets_of[name][0] == "target"
    weights = roles(tmp_path, ColumnOptions(weight_column=name), y=[0.1, 0.2, 0.3], **{name: [1.0, 0.5, 2.0]})
    assert weights[name] == ("weight", None, None, "")


def test_weights_of_rows_are_stored_without_the_rows_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("smiles,y,trust\nCC,1.5,2\nnone,2.5,9\nCO,0.5,0\n")
    with imported(tmp_path, path, target_columns=["y"], weight_column="trust", skip_bad_rows=True) as dataset:
        assert dataset.sample_weight is not None
        assert dataset.sample_weight.tolist() == [2, 0]
    path.write_text("smiles,y\nCC,1.5\nCO,0.5\n")
    with imported(tmp_path, path) as dataset:
        assert dataset.sample_weight is None


@pytest.mark.parametrize("text", ["-1", "", "1e39"])
def test_a_weight_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = table(tmp_path, y=[0.5, 1.5], w=[1, text])
    message = rf"table.csv, row 2, column 'w': '{text}'; expected a weight: a number that is not negative"
    with pytest.raises(InputError, match=message):
        imported(tmp_path, path, weight_column="w")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ColumnOptions(weight_column="u"), "no column 'u'. Known: w, y. See --weight-column."),
        (
            ColumnOptions(weight_column="y", target_columns=["y"]),
            "--weight-column: 'y' is a target; expected another column",
        ),
        (
            ColumnOptions(weight_column="w", split_column="w"),
            "--weight-column: 'w' is the split; expected another column",
        ),
        (
            ColumnOptions(weight_column="w", feature_columns=["w"]),
            "--feature-columns: 'w' is the weight; expected another column",
        ),
    ],
)
def test_a_weight_column_with_another_use_is_refused(tmp_path: Path, options: ColumnOptions, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        roles(tmp_path, options, y=[0.1, 0.2], w=[1, 2])


def test_names_of_unknown_meaning_are_classes_only_where_nothing_else_is_a_target(tmp_path: Path) -> None:
    series = ["red", "blue", "red", "blue"]
    assert roles(tmp_path, series=series)["series"] == ("target", "multiclass", 4, "blue = 0, red = 1")
    assert roles(tmp_path, series=series, y=[0.5, 1, 2, 3])["series"][0] == "ignored"


def test_a_first_column_without_a_name_is_a_row_index(tmp_path: Path) -> None:
    path = tmp_path / "pandas.csv"
    path.write_text(",smiles,y\n0,C,1.5\n1,CC,2.5\n")
    found = {role.name: role.cells() for role in assign_roles(read_molecules(path), ColumnOptions())}
    assert found[ROW_INDEX][1] == "ignored"
    assert found["y"][1] == "target"


# ------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("texts", "kind", "classes"),
    [
        (["True", "False", "True"], "binary", ("False", "True")),
        (["Active", "inactive", ""], "binary", ("inactive", "Active")),
        (["+", "-", "+"], "binary", ("-", "+")),
        (["-1", "1", "-1"], "binary", ("-1", "1")),
        (["1", "2", "1.0"], "binary", ("1", "2")),
        (["0", "1", "2"], "multiclass", ("0", "1", "2")),
        (["1", "2", "3"], "multiclass", ("1", "2", "3")),
        (["0", "1", ""], "binary", ()),
        (["0", "5", "2"], "regression", ()),
        (["low", "mid", "high", "low", "mid", "high"], "multiclass", ("high", "low", "mid")),
    ],
)
def test_labels_become_classes(texts: list[str], kind: str, classes: tuple[str, ...]) -> None:
    reading = read_labels(texts)
    assert (reading.kind, reading.classes) == (kind, classes)


def test_the_mapping_of_labels_is_stored(tmp_path: Path) -> None:
    with imported(tmp_path, table(tmp_path, hit=["yes", "no", "NA"], score=["-1", "1", "1"])) as dataset:
        assert dataset.header.label_names == {"hit": ("no", "yes"), "score": ("-1", "1")}
        np.testing.assert_array_equal(dataset.y, [[1, 0], [0, 1], [np.nan, 1]])
    with imported(tmp_path, table(tmp_path, grade=[0, 2, 1])) as dataset:
        assert (dataset.header.target, dataset.header.class_names) == ("multiclass", ("0", "1", "2"))
        np.testing.assert_array_equal(dataset.y, [[0], [2], [1]])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"other": ("no", "yes")}, "label_names of 'other'; expected binary tasks of the set"),
        ({"hit": ("yes", "yes")}, "label_names: ('yes', 'yes'); expected two different printable names"),
        ({"hit": ("", "yes")}, "label_names: ('', 'yes'); expected two different printable names"),
    ],
)
def test_wrong_label_names_are_refused(labels: dict[str, tuple[str, str]], message: str) -> None:
    header = Header(
        name="",
        level="graph",
        target="binary",
        task_names=("hit",),
        n_features=1,
        channel_names=("c",),
        label_names=labels,
    )
    with pytest.raises(InputError) as caught:
        check_header("set.h5", header)
    assert message in str(caught.value)


def test_numbers_of_classes_stay_numbers_beside_a_regression_target(tmp_path: Path) -> None:
    path = table(tmp_path, a=[1, 2, 1], b=[0.5, 1.5, 2.5])
    with imported(tmp_path, path, target_columns=["a", "b"]) as dataset:
        assert dataset.header.target == "regression"
        np.testing.assert_array_equal(dataset.y[:, 0], [1, 2, 1])


def test_a_library_has_no_labels(tmp_path: Path) -> None:
    with imported(tmp_path, table(tmp_path, id=["a", "b"])) as dataset:
        assert dataset.header.task_names == ("unlabelled",)
        assert np.isnan(dataset.y).all()
    with imported(tmp_path, table(tmp_path, y=[1, 2]), no_targets=True) as dataset:
        assert np.isnan(dataset.y).all()


# ------------------------------------------------------------------------------------------------ splits


def test_a_split_column_is_stored_without_the_rows_left_out(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_text("smiles,y,my set\nC,1,Train\nxx,0,train\nCC,0,val\nCCC,1,TEST\nN,1,\n")
    with imported(tmp_path, path, split_column="my set", skip_bad_rows=True) as dataset:
        parts = {name: rows.tolist() for name, rows in dataset.splits["my_set"].parts().items()}
    assert parts == {"train": [0], "valid": [1], "test": [2]}


def test_a_split_column_beside_named_targets_is_pointed_out(tmp_path: Path) -> None:
    columns = {"y": [0.5, 1.5, 2.5], "part": ["train", "train", "test"]}
    for targets, no_targets in ((["y"], False), (None, True), (None, False)):
        named = ColumnOptions(target_columns=targets)
        assert (
            roles(tmp_path, named, no_targets=no_targets, **columns)["part"][-1]
            == "looks like a split; --split-column keeps it"
        )


def test_numbers_of_folds_give_a_split_each() -> None:
    splits = read_splits("t.csv", "fold", ["1", "2", "3", "1"])
    assert list(splits) == ["fold-1", "fold-2", "fold-3"]
    assert {part: rows.tolist() for part, rows in splits["fold-1"].parts().items()} == {
        "train": [2],
        "valid": [1],
        "test": [0, 3],
    }
    two = read_splits("t.csv", "fold", ["0", "1"])
    assert (two["fold-0"].train.tolist(), two["fold-0"].valid.tolist()) == ([1], [])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["", "NA"], "t.csv: no value in any row; expected train, valid and test"),
        (["2", "train"], "row 2: 'train'; expected train, valid or test, or the number of a fold"),
        (["test", "valid"], "t.csv: no training row"),
        (["3", "3"], "t.csv: 1 fold; expected 2 to 1000"),
    ],
)
def test_other_split_columns_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_splits("t.csv", "fold", texts)
    assert message in str(caught.value)
