"""Predictions from CSV: the featuriser of training, bad rows, files in parts."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import gcnbatch
from gcnbatch.api.datasets import read
from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.schema import Header
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.table import Block
from gcnbatch.errors import InputError
from gcnbatch.inference import inputs, models
from gcnbatch.inference.columns import BARE, BOUND, UNKNOWN, Cells, LabelColumns
from gcnbatch.inference.ensemble import infer
from gcnbatch.inference.molecules import CsvOptions
from tests.inference.runs import SMILES, numbers, read_rows, train_on

CLOSE = {"rtol": 1e-5, "atol": 1e-6}

NO_SETS = "no sets at level 0.9 for even, third: too few validation rows"


def test_molecules_from_csv_predict_like_their_data_set(tmp_path, chemistry) -> None:
    run, table, data = chemistry
    infer([run], table, str(tmp_path / "table.csv"), quiet=True)
    infer([run], data, str(tmp_path / "data.csv"), quiet=True)
    rows, expected = read_rows(tmp_path / "table.csv"), read_rows(tmp_path / "data.csv")
    assert list(rows) == list(expected)
    assert list(rows["M0"]) == ["id", "even", "third", "error"]
    assert {row["error"] for row in rows.values()} == {""}
    np.testing.assert_allclose(numbers(rows), numbers(expected), **CLOSE)


@pytest.mark.usefixtures("rows_in_forks")
def test_bad_rows_keep_their_position_and_give_the_reason(tmp_path, chemistry) -> None:
    run = chemistry[0]
    table = tmp_path / "new.csv"
    table.write_text(f"mol_id,structure\na,CCO\nb,C(C\nc,\nd,{'C' * 15}\ne,CCO\n")
    said: list[str] = []
    summary = infer([run], table, str(tmp_path / "out.csv"), quiet=True, say=said.append)
    rows = read_rows(tmp_path / "out.csv")
    assert [row["error"] for row in rows.values()] == [
        "",
        "not valid SMILES",
        "blank SMILES",
        "15 atoms, more than 14",
        "",
    ]
    assert (summary.rows, summary.unreadable) == (5, 3)
    assert said == [NO_SETS, "3 of 5 rows have no prediction; see column error"]
    assert np.isnan(numbers(rows)).all(axis=1).tolist() == [False, True, True, True, False]
    first, *_, last = numbers(rows)
    np.testing.assert_allclose(first, last, **CLOSE)  # one molecule; sums round as its place in the batch has it


def test_a_table_of_bad_rows_only_keeps_them_all(tmp_path, chemistry) -> None:
    table = tmp_path / "new.csv"
    table.write_text("structure\nxx\nyy\n")
    assert infer([chemistry[0]], table, str(tmp_path / "out.csv"), quiet=True).unreadable == 2
    assert list(read_rows(tmp_path / "out.csv")) == ["1", "2"]


def test_parts_keep_order_ids_and_numbers(tmp_path, chemistry, monkeypatch) -> None:
    run, table, _ = chemistry
    lines = table.read_text().splitlines()
    body = [f"r{i},{line.split(',')[1] if i % 9 else 'xx'}" for i, line in enumerate(lines[1:] * 20)]
    long = tmp_path / "long.csv.gz"
    long.write_bytes(gzip.compress("\n".join(["mol_id,structure", *body]).encode()))
    monkeypatch.setattr(inputs, "PART_ROWS", 256)
    infer([run], long, str(tmp_path / "parts.csv"), batch_size=64, quiet=True, csv=CsvOptions(processes=2))
    monkeypatch.setattr(inputs, "PART_ROWS", 4096)
    infer([run], long, str(tmp_path / "whole.csv"), batch_size=64, quiet=True, csv=CsvOptions(processes=1))
    parts, whole = read_rows(tmp_path / "parts.csv"), read_rows(tmp_path / "whole.csv")
    assert list(parts) == [f"r{i}" for i in range(800)]
    assert [row["error"] for row in parts.values()] == [row["error"] for row in whole.values()]
    names = ["even", "third"]
    np.testing.assert_allclose(numbers(parts, names), numbers(whole, names), **CLOSE)
    assert np.isnan(numbers(parts, names)).any(axis=1).tolist() == [i % 9 == 0 for i in range(800)]


def ids(path: Path, run: Path, options: CsvOptions) -> list[str]:
    out = path.with_name("ids.csv")
    infer([run], path, str(out), quiet=True, csv=options)
    return list(read_rows(out))


def test_csv_columns_are_those_of_training_or_of_the_options(tmp_path, chemistry) -> None:
    run = chemistry[0]
    table = tmp_path / "new.csv"
    table.write_text("structure,mol_id,code,smiles\nC,a,x,not SMILES\nCC,b,y,not SMILES\n")
    assert ids(table, run, CsvOptions()) == ["a", "b"]
    assert ids(table, run, CsvOptions(id_column="code")) == ["x", "y"]
    table.write_text("drawing,SMILES\nCC,C\nCCC,CC\n")
    assert ids(table, run, CsvOptions()) == ["1", "2"]
    _, ethane = numbers(read_rows(tmp_path / "ids.csv"))
    assert ids(table, run, CsvOptions(smiles_column="drawing")) == ["1", "2"]
    also_ethane, propane = numbers(read_rows(tmp_path / "ids.csv"))
    np.testing.assert_allclose(also_ethane, ethane, **CLOSE)
    assert not np.allclose(propane, ethane, **CLOSE)


def test_extensions_of_cxsmiles_and_blank_ids_are_said(tmp_path, chemistry) -> None:
    run = chemistry[0]
    table = tmp_path / "new.csv"
    table.write_text('drug,mol_id\n"C[C@H](N)O |&1:1|",a\nCC,\nCCO,c\n')
    said: list[str] = []
    infer([run], table, str(tmp_path / "out.csv"), quiet=True, say=said.append)
    rows = read_rows(tmp_path / "out.csv")
    assert list(rows) == ["a", "2", "c"]
    assert {row["error"] for row in rows.values()} == {""}
    assert said[:3] == [
        "SMILES are read from column 'drug', by its values",
        "1 SMILES has an extension of CXSMILES (|…|), which is left out: the SMILES alone is read",
        "1 of 3 rows has no id: the number of the row stands for it",
    ]


def test_ids_come_out_as_they_went_in(tmp_path, chemistry) -> None:
    h5py, parquet = pytest.importorskip("h5py"), pytest.importorskip("pyarrow.parquet")
    ids = ["a\nb", " c ", 'd\re, "f"', "=1+1", "\u00adg\u200b", "017"]
    with (tmp_path / "new.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([("mol_id", "structure"), *((one, "CCO") for one in ids)])
    for ending in ("csv", "jsonl", "parquet", "h5"):
        infer([chemistry[0]], tmp_path / "new.csv", str(tmp_path / f"out.{ending}"), quiet=True)
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == ids
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["id"] for line in lines] == ids
    assert parquet.read_table(tmp_path / "out.parquet").column("id").to_pylist() == ids
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["id"].asstr()[:].tolist() == ids


def test_a_folder_says_what_was_detected_in_any_of_its_files(tmp_path, chemistry) -> None:
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "a.smi").write_text("CCO\n")
    (folder / "b.smi").write_text("CC |$x;y$|\nC\n")
    said: list[str] = []
    infer([chemistry[0]], folder, str(tmp_path / "out.csv"), quiet=True, say=said.append)
    assert list(read_rows(tmp_path / "out.csv")) == ["1", "2", "3"]
    assert said[0].startswith("1 SMILES has an extension of CXSMILES")


def test_an_ensemble_of_molecules_ends_with_the_error(tmp_path, chemistry) -> None:
    run, table, data = chemistry
    other = train_on(data, tmp_path / "other", seed=4)
    infer([run, other], table, str(tmp_path / "out.csv"), quiet=True)
    rows = read_rows(tmp_path / "out.csv")
    assert list(rows["M0"]) == ["id", "even", "even_std", "third", "third_std", "error"]


def test_labels_in_the_table_give_metrics_with_a_caution_for_training_data(tmp_path, chemistry) -> None:
    run, table, data = chemistry
    said: list[str] = []
    of_data = infer([run], data, str(tmp_path / "data.csv"), quiet=True, say=said.append)
    of_table = infer([run], table, str(tmp_path / "table.csv"), quiet=True, say=said.append)
    assert [line.split(":")[0] for line in said if line != NO_SETS] == ["caution", "caution"]
    assert of_table.metrics is not None
    assert of_data.metrics is not None
    assert of_table.metrics["accuracy"] == of_data.metrics["accuracy"]
    other = tmp_path / "other.csv"
    other.write_text("structure,even\nCCO,1\nxx,1\nCC,unknown\nCN,0\n")
    found = infer([run], other, str(tmp_path / "other_out.csv"), quiet=True, say=said.append).metrics
    assert found is not None
    assert said[4:] == [
        NO_SETS,
        "metrics from 2 of 4 rows; row 3: 'unknown' is none of the model's labels 0, 1 of 'even'",
        "1 of 4 rows has no prediction; see column error",
    ]


@pytest.mark.parametrize(
    ("columns", "said", "labelled"),
    [
        ("even,third\nCCO,1,0\nCC,0,1\n", [], 2),
        ("even,third\nCCO,,\nCC,NA,-\n", [], 0),
        ("even,third\nCCO,1,\nCC,,\n", ["metrics from 1 of 2 rows"], 1),
        ("even\nCCO,active\nCC,0\nC,\nCN,inactive\n", ["metrics from 1 of 4 rows; row 1: 'active' is none of"], 1),
        ("even\nCCO,yes\nCC,no\n", ["no metrics; row 1: 'yes' is none of the model's labels 0, 1 of 'even' (2 "], 0),
        ("Even\nCCO,1\nCC,0\n", ["labels of tasks from columns in another case: 'Even' for 'even'"], 2),
        ("Even,EVEN,third\nCCO,1,1,0\n", ["no labels from columns in another case: 'Even' and 'EVEN' for 'even'"], 1),
    ],
)
def test_rows_without_a_label_that_the_model_knows_are_told(tmp_path, chemistry, columns, said, labelled) -> None:
    table, lines = tmp_path / "new.csv", list[str]()
    table.write_text("structure," + columns)
    found = infer([chemistry[0]], table, str(tmp_path / "out.csv"), quiet=True, say=lines.append)
    lines.remove(NO_SETS)
    assert [line.startswith(start) for line, start in zip(lines, said, strict=True)] == [True] * len(said), lines
    assert found.labelled == labelled
    assert (found.metrics is None) == (labelled == 0)


def test_labels_are_counted_over_all_parts_and_processes(tmp_path, chemistry, monkeypatch) -> None:
    lines = [f"{'C' * (row % 9 + 1)},{'x' if row in (700, 900) else row % 2}" for row in range(1000)]
    (tmp_path / "long.csv").write_text("\n".join(["structure,even", *lines]) + "\n")
    monkeypatch.setattr(inputs, "PART_ROWS", 256)
    for processes in (1, 2):
        said: list[str] = []
        options = {"csv": CsvOptions(processes=processes), "quiet": True, "say": said.append}
        found = infer([chemistry[0]], tmp_path / "long.csv", str(tmp_path / "out.csv"), **options)
        message = (
            "metrics from 998 of 1,000 rows; row 701: 'x' is none of the model's labels 0, 1 of 'even' (2 such cells)"
        )
        assert said[1:] == [message]
        assert found.labelled == 998


def test_a_data_set_with_other_tasks_gives_no_metrics_and_says_so(tmp_path, chemistry) -> None:
    run, table, _ = chemistry
    options = FeaturizerOptions(bond_channels=True, max_nodes=14)
    for columns, message in (
        (["even"], "tasks 1 (even) in place of 2 (even, third)"),
        (None, ""),
    ):
        about = {"smiles_column": "structure", "target_columns": columns, "no_targets": columns is None}
        import_smiles(table, tmp_path / "other.h5", options, processes=1, **about)
        said: list[str] = []
        found = infer([run], tmp_path / "other.h5", str(tmp_path / "out.csv"), quiet=True, say=said.append)
        assert found.metrics is None
        expected = [f"no metrics: {tmp_path / 'other.h5'} has {message} of the model"] if message else []
        assert [line for line in said if line != NO_SETS] == expected


def test_labels_with_decimal_commas_are_detected_or_named(tmp_path: Path) -> None:
    values = [f"{row / 8:.3f}" for row in range(16)]
    table = tmp_path / "points.csv"
    table.write_text(
        "".join(f"{row}\n" for row in ["smiles,y", *(f"{'C' * (i + 1)},{v}" for i, v in enumerate(values))])
    )
    import_smiles(table, tmp_path / "m.h5", FeaturizerOptions(), target_columns=["y"], processes=1)
    run = train_on(tmp_path / "m.h5", tmp_path / "run")

    def r2(decimal: str, rows: slice = slice(None)) -> float:
        lines = [f"{'C' * (i + 1)};{value.replace('.', ',')}" for i, value in enumerate(values)]
        (tmp_path / "commas.csv").write_text("\n".join(["smiles;y", *lines[rows]]) + "\n")
        options = CsvOptions(format=TableFormat(decimal=decimal))
        said: list[str] = []
        out = str(tmp_path / "out.csv")
        found = infer([run], tmp_path / "commas.csv", out, quiet=True, csv=options, say=said.append).metrics
        assert said == [
            "fields are separated by a semicolon",
            *(["numbers have a decimal comma"] if not decimal else []),
            "no intervals at level 0.9 for y: too few validation rows",
        ]
        assert found is not None
        return float(found["r2"])

    of_points = infer([run], table, str(tmp_path / "out.csv"), quiet=True).metrics
    assert of_points is not None
    assert r2("", slice(0, 7)) == r2(",", slice(0, 7))
    assert r2(",") == of_points["r2"]
    with pytest.raises(InputError, match=r"column 'y': '1,000' is a fraction or a number above 1,000.*Give --decimal"):
        r2("", slice(8, 9))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5 uM", 1.5),
        ("250 nM", 0.25),
        (">2 mM", np.nan),
        ("1.5", 1.5),
        ("1,500.5 nM", 1.5005),
        ("3 mg/L", np.nan),
        ("n.d.", np.nan),
        ("high", np.nan),
        ("fail", np.nan),
    ],
)
def test_measured_labels_are_read_in_the_unit_of_the_model(text: str, expected: float) -> None:
    header = Header(
        name="",
        level="graph",
        target="regression",
        task_names=("ic50",),
        units={"ic50": "uM"},
        n_features=1,
        channel_names=("bond",),
    )
    columns = LabelColumns.of(["smiles", "ic50"], header)
    assert columns is not None
    table, sample = TableFormat(missing=("Fail",)), {"smiles": ["C"], "ic50": [text]}
    found, remarks = columns.with_format(Path("t.csv"), table, sample).read(Block(0, {"ic50": [text]}))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [[expected]])
    kinds = {"3 mg/L": UNKNOWN, "high": UNKNOWN, ">2 mM": BOUND, "1.5": BARE}
    assert remarks == ({kinds[text]: Cells(1, 0, "ic50", text)} if text in kinds else {})


def test_labels_are_read_as_training_stored_them() -> None:
    header = Header(
        name="",
        level="graph",
        target="binary",
        task_names=("hit", "score", "plain"),
        n_features=1,
        channel_names=("c",),
        label_names={"hit": ("no", "yes"), "score": ("-1", "1")},
    )
    names = ("plain", "x", "hit", "score")
    labels = LabelColumns.of(names, header)
    assert labels is not None
    records = [["1", "", "Yes", "1.0"], ["0.5", "", "maybe", "-1"], ["NA", "", "1", "2"]]
    y, remarks = labels.read(Block.of(0, names, records))
    np.testing.assert_array_equal(y, [[1, 1, 1], [np.nan, 0, np.nan], [np.nan, np.nan, np.nan]])
    assert remarks == {UNKNOWN: Cells(4, 1, "hit", "maybe")}
    classes = header.model_copy(
        update={"target": "multiclass", "task_names": ("kind",), "class_names": ("a", "b"), "label_names": {}}
    )
    labels = LabelColumns.of(("kind",), classes)
    assert labels is not None
    y, remarks = labels.read(Block(0, {"kind": ["B", "c", ""]}))
    np.testing.assert_array_equal(y, [[1], [-1], [-1]])
    assert remarks == {UNKNOWN: Cells(1, 1, "kind", "c")}
    assert LabelColumns.of(("smiles",), header) is None


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Path, Path]:
    """Return a run whose targets are in uM, and the folder of its data set."""
    folder = tmp_path_factory.mktemp("measured")
    return train_on(_measured(folder, [f"{row / 8 + 0.5} uM" for row in range(16)]), folder / "run"), folder


def _measured(folder: Path, values: list[str], ending: str = ".h5") -> Path:
    """Write these values of chains of carbon as a table, and as the data set of it; return one of them."""
    table = folder / "m.csv"
    rows = [f"{'C' * (row + 1)},{value}" for row, value in enumerate(values)]
    table.write_text("\n".join(["smiles,y", *rows]) + "\n")
    import_smiles(table, folder / "m.h5", FeaturizerOptions(), target_columns=["y"], processes=1)
    return folder / f"m{ending}"


@pytest.mark.parametrize("kind", [".csv", ".h5", "graphs"])
@pytest.mark.parametrize(
    ("values", "kept", "line"),
    [
        (
            ["1 uM", ">50 uM", "2 uM", "<0.5 uM", "4 uM"],
            [0, 2, 4],
            "metrics from 3 of 5 rows; row 2: '>50 uM' is a bound, not a measured value (2 such cells)",
        ),
        ([">50 uM", ">60 uM"], [], "no metrics; row 1: '>50 uM' is a bound, not a measured value (2 such cells)"),
        (
            ["1", "2", "4.5"],
            [0, 1, 2],
            "row 1: '1' has no unit and counts in uM, as the targets of the model do (3 such cells)",
        ),
        (["1000 nM", "2000 nM", "4000 nM"], [0, 1, 2], ""),
        (["1 mg", "2 mg"], [], "no metrics; row 1: '1 mg' is no number in uM, the unit of the model (2 such cells)"),
    ],
)
def test_bounds_and_other_units_are_never_scored_in_silence(tmp_path, measured, values, kept, line, kind) -> None:
    run, _ = measured
    data: Path | GraphSet = _measured(tmp_path, values, ".csv" if kind == ".csv" else ".h5")
    data = read(data) if kind == "graphs" else data
    said: list[str] = []
    found = infer([run], data, str(tmp_path / "out.csv"), quiet=True, say=said.append)
    assert [one for one in said if not one.startswith("no intervals")] == [line] * bool(line)
    assert found.labelled == len(kept)
    if kept:
        numbers = [float(value.split()[0].strip("<>")) / (1000 if "nM" in value else 1) for value in values]
        rows = read_rows(tmp_path / "out.csv").values()
        errors = np.array([float(row["y"]) for row in rows])[kept] - np.array(numbers)[kept]
        assert found.metrics is not None
        assert found.metrics["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)


def test_numbers_below_a_name_with_the_unit_of_the_model_need_no_remark(tmp_path: Path) -> None:
    table = tmp_path / "m.csv"
    table.write_text("\n".join(["smiles,Ki (nM)", *(f"{'C' * (row + 1)},{row / 8 + 0.5}" for row in range(16))]) + "\n")
    import_smiles(table, tmp_path / "m.h5", FeaturizerOptions(), target_columns=["Ki (nM)"], processes=1)
    run, said = train_on(tmp_path / "m.h5", tmp_path / "run"), list[str]()
    found = infer([run], table, str(tmp_path / "out.csv"), quiet=True, say=said.append)
    assert found.metrics is not None
    assert found.metrics["tasks"]["Ki (nM)"]["unit"] == "nM"
    assert not any("unit" in line for line in said)


def test_labels_with_a_unit_are_no_numbers_for_a_model_without(tmp_path, measured) -> None:
    run = train_on(_measured(tmp_path, [f"{row / 8 + 0.5}" for row in range(16)]), tmp_path / "run")
    for ending in (".csv", ".h5"):
        said: list[str] = []
        infer(
            [run], _measured(tmp_path, ["1 uM", "2 uM"], ending), str(tmp_path / "out.csv"), quiet=True, say=said.append
        )
        assert said[-1] == "no metrics; row 1: '1 uM' has a unit, which the model does not know (2 such cells)"


@pytest.mark.numerical
def test_a_part_is_combined_while_the_networks_predict_the_next(
    chemistry: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, texts = gcnbatch.load(chemistry[0]), [*SMILES] * 64
    expected = run.predict(texts).outputs
    monkeypatch.setattr(inputs, "PART_ROWS", 256)
    calls, second = iter(range(99)), Event()
    predict, combine = models.outputs_of, models.Whole.outputs

    def predict_and_tell(*about):
        if next(calls) == 1:
            second.set()
        return predict(*about)

    def combine_later(*about):
        assert second.wait(60)
        return combine(*about)

    monkeypatch.setattr(models, "outputs_of", predict_and_tell)
    monkeypatch.setattr(models.Whole, "outputs", combine_later)
    np.testing.assert_allclose(run.predict(texts).outputs, expected, **CLOSE)
