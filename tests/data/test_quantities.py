"""Numbers with units, bounds and thousands separators, and texts of missing values, in tables with targets."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from gcnbatch.data.featurizer import FeaturizerOptions
from gcnbatch.data.importers.cells import MISSING
from gcnbatch.data.importers.plain_csv import import_csv
from gcnbatch.data.importers.quantities import factor, read_quantity, spelled
from gcnbatch.data.importers.smiles import import_smiles
from gcnbatch.data.store import Dataset
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.writer import check_graphset
from gcnbatch.errors import InputError
from gcnbatch.options.common import split_names
from tests.builders import build_graphset

MOLECULES = ("C", "CC", "CCC", "CCO", "CO", "CN", "CCN", "N", "O", "c1ccccc1", "CF", "CCl", "CBr")
MICRO, MU, MINUS, NARROW = "\N{MICRO SIGN}", "\N{GREEK SMALL LETTER MU}", "\N{MINUS SIGN}", "\N{NARROW NO-BREAK SPACE}"


def imported(
    folder: Path, values: list[str], *, sign: str = ",", name: str = "y", **options: object
) -> tuple[Dataset, tuple[str, ...]]:
    """Import these targets of a named column; return the set and the notes."""
    lines = [f"smiles{sign}{name}", *(f'{MOLECULES[row]}{sign}"{text}"' for row, text in enumerate(values))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    named: dict[str, object] = {"target_columns": [name], "processes": 1, **options}
    summary = import_smiles(folder / "t.csv", folder / "t.h5", FeaturizerOptions(), **named)  # type: ignore[arg-type]
    with Dataset(folder / "t.h5") as dataset:
        return dataset, summary.notes


def column(dataset: Dataset) -> list[float]:
    assert dataset.header.target == "regression"
    return dataset.y[:, 0].tolist()


def refusal(folder: Path, values: list[str], **options: object) -> str:
    with pytest.raises(InputError) as caught:
        imported(folder, values, **options)
    assert not (folder / "t.h5").exists()
    return str(caught.value).removeprefix(f"{folder / 't.csv'}, ")


# ------------------------------------------------------------------------------------------------ units


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        (["1.5 uM", "2.5 uM", "2.7 uM", "3.1 uM"], "uM"),
        ([f"1.5 {MICRO}M", f"2.5 {MU}M", "2.7uM", "3.1 uM"], "uM"),
        (["1.5%", "2.5 %", "2.7 %", "3.1 %"], "%"),
        (["1.5 °C", "2.5 °C", "2.7 °C", "3.1 °C"], "°C"),
        (["1.5 mL/min/kg", "2.5 mL/min/kg", "2.7 mL/min/kg", "3.1 mL/min/kg"], "mL/min/kg"),
        (["1.5 stars", "2.5 stars", "2.7 stars", "3.1 stars"], "stars"),
    ],
)
def test_one_unit_in_the_whole_column_is_recorded(tmp_path: Path, values: list[str], unit: str) -> None:
    dataset, notes = imported(tmp_path, values)
    assert column(dataset) == [1.5, 2.5, 2.7, 3.1]
    assert dataset.header.units == {"y": unit}
    assert dataset.censored is None
    unknown = f"column 'y': the unit {unit} is not known and kept as it is"
    assert (unknown in notes) == (unit in ("stars", "mL/min/kg"))


def test_units_of_a_kind_are_converted_exactly_to_the_most_frequent_one(tmp_path: Path) -> None:
    dataset, notes = imported(tmp_path, ["1.1 uM", "250 nM", "0.3 uM", "0.7 mM", "", "2 mM"])
    np.testing.assert_array_equal(column(dataset), [1.1, 0.25, 0.3, 700.0, np.nan, 2000.0])
    assert [note for note in notes if "converted" in note] == [
        "column 'y': 1 value in nM converted to uM, the first of the most frequent units",
        "column 'y': 2 values in mM converted to uM, the first of the most frequent units",
    ]
    assert dataset.header.units == {"y": "uM"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["1.5 uM", "2 uM", "3.5 mg/L"],
            "row 3, column 'y': '3.5 mg/L'; expected a number in uM, or in a unit of its kind, as in 2 rows",
        ),
        (["1.5 uM", "2 uM", "3.5"], "row 3, column 'y': '3.5'; expected a number in uM, or in a unit of its kind"),
        (["1.5", "2", "3.5 uM"], "row 3, column 'y': '3.5 uM'; expected a number without a unit, as in 2 rows"),
        (["20.5 °C", "300 K", "21 °C"], "row 2, column 'y': '300 K'; expected a number in °C"),
        (["1.5 nM", "1 nm", "2 nM"], "row 2, column 'y': '1 nm'; expected a number in nM"),
        (["1.5 mg", "1e308 kg", "2 mg"], "row 2, column 'y': '1e308 kg'; expected a number that is finite in mg"),
    ],
)
def test_units_that_do_not_fit_are_refused_by_row(tmp_path: Path, values: list[str], message: str) -> None:
    assert refusal(tmp_path, values).startswith(message)


@pytest.mark.parametrize(
    ("unit", "other", "times"),
    [
        ("M", "pM", 10**12),
        ("g/L", "mg/mL", 1),
        ("ug/mL", "mg/L", 1),
        ("h", "min", 60),
        ("d", "h", 24),
        ("Da", "g/mol", 1),
    ],
)
def test_factors_between_units(unit: str, other: str, times: int) -> None:
    assert factor(spelled(unit), spelled(other)) == times


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        (["1 uM", "2 nM", "2.5 nM", "3.5 uM"], "uM, the first of the most frequent units"),
        (["1 uM", "2 nM", "2.5 nM"], "nM, the most frequent unit"),
    ],
)
def test_the_unit_that_others_are_converted_to_is_said(tmp_path: Path, values: list[str], rank: str) -> None:
    _, notes = imported(tmp_path, values)
    assert any(note.endswith(f" converted to {rank}") for note in notes)


def test_names_that_begin_with_a_digit_stay_classes(tmp_path: Path) -> None:
    dataset, _ = imported(tmp_path, ["2C9", "3A4", "2D6"] * 3)
    assert dataset.header.class_names == ("2C9", "2D6", "3A4")
    for values in (["2D", "3D"], ["3d", "4d", "2p"]):
        dataset, _ = imported(tmp_path, values * 3)
        assert dataset.header.class_names == tuple(sorted(values))
    dataset, _ = imported(tmp_path, ["1 d", "24 h"] * 3, task="regression")
    assert column(dataset) == [1, 1] * 3
    assert dataset.header.units == {"y": "d"}


def test_a_column_with_units_is_a_target_where_nothing_else_is(tmp_path: Path) -> None:
    dataset, _ = imported(tmp_path, ["1.5 uM", "2.5 uM"], target_columns=None)
    assert column(dataset) == [1.5, 2.5]
    (tmp_path / "t.h5").unlink()
    assert "numbers in the unknown unit 'foo'" in refusal(tmp_path, ["1.5 foo", "2 foo"], target_columns=None)


# ------------------------------------------------------------------------------------------------ signs of numbers


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (["1,500.5", "2.5"], {}, [1500.5, 2.5]),
        (["1,500", "2.5"], {}, [1500, 2.5]),
        (["1,500", "1,234,567"], {}, [1500, 1234567]),
        (["1 500", f"12{NARROW}345.5"], {}, [1500, 12345.5]),
        (["1'500.5", f"{MINUS}2"], {}, [1500.5, -2]),
        (["1.500,5", "2,5"], {"sign": ";"}, [1500.5, 2.5]),
        (["1.500", "2,5"], {"sign": ";"}, [1500, 2.5]),
        (["1,500", "2,250"], {"table_format": TableFormat(decimal=".")}, [1500, 2250]),
        (["1,500", "2,250"], {"table_format": TableFormat(decimal=",")}, [1.5, 2.25]),
        (["1.500", "2.250"], {}, [1.5, 2.25]),
        ([">1,500.5 nM", "2 nM"], {}, [1500.5, 2]),
    ],
)
def test_thousands_separators_are_recognised(
    tmp_path: Path, values: list[str], options: dict[str, object], expected: list[float]
) -> None:
    dataset, _ = imported(tmp_path, values, **options)
    assert column(dataset) == expected


def test_a_number_that_could_be_either_is_asked_for(tmp_path: Path) -> None:
    assert "'1,500' is a fraction or a number above 1,000" in refusal(tmp_path, ["1,500", "20"])
    text = "smiles;y;z\nC;1.500;2,5\nCC;2.250;3,5\n"
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=r"column 'y': '1\.500' is a fraction .* Give --decimal ',' or --decimal"):
        import_smiles(tmp_path / "t.csv", tmp_path / "t.h5", FeaturizerOptions(), target_columns=["y"], processes=1)


def test_both_signs_in_a_column_are_refused_by_row(tmp_path: Path) -> None:
    assert refusal(tmp_path, ["1,5", "2.5", "3.5"]).startswith("row 1, column 'y': '1,5'; expected a finite number")


def test_the_first_separated_number_is_said(tmp_path: Path) -> None:
    _, notes = imported(tmp_path, ["1,500.5", "2.5"])
    assert "thousands are separated: in column 'y', '1,500.5' is 1500.5" in notes


# ------------------------------------------------------------------------------------------------ missing values


@pytest.mark.parametrize("text", ["None", "NULL", "ND", "n.d.", ".", "?", "#DIV/0!", "#N/A", "NaN", "N/A", "-"])
def test_texts_of_missing_values(tmp_path: Path, text: str) -> None:
    assert text.lower() in MISSING
    dataset, notes = imported(tmp_path, ["1.5", text, "2.5", text, ""])
    np.testing.assert_array_equal(column(dataset), [1.5, np.nan, 2.5, np.nan, np.nan])
    assert f"counted as missing: '{text}' in 2 cells" in notes


def test_further_texts_are_named_by_an_option(tmp_path: Path) -> None:
    values = ["1.5", "Fail", "-999", "2.5", "9"]
    assert refusal(tmp_path, values).startswith("row 2, column 'y': 'Fail'; expected a finite number")
    dataset, _ = imported(tmp_path, values, table_format=TableFormat(missing=("fail", "-999")))
    np.testing.assert_array_equal(column(dataset), [1.5, np.nan, np.nan, 2.5, 9])


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        (["1.5", "n/m", "2.5", "3.5"], "If this stands for a missing value, add --missing n/m."),
        (
            ["1.5", "n/m", "2", "pending", "3", "n/m", "7"],
            "If 'n/m' and 'pending' stand for a missing value, add --missing n/m,pending.",
        ),
        (["1 uM", "to do, later", "2 uM"], """If this stands for a missing value, add --missing '"to do, later"'."""),
        (["1.5", "5-10", "2.5", "3.5"], "Correct the cell."),
        (
            ["1.5", "2.5\n3.5", "2.5"],
            "'y' has several values in a cell, a line each, as where an SDF record repeats a property: keep one.",
        ),
    ],
)
def test_a_cell_that_is_no_number_is_refused_with_the_option_that_helps(
    tmp_path: Path, values: list[str], hint: str
) -> None:
    assert f"finite number, or blank where missing. {hint} --target-columns names other targets." in refusal(
        tmp_path, values
    )
    if "--missing" in hint:
        named = tuple(split_names(shlex.split(hint.rpartition("--missing ")[2].removesuffix("."))[0]))
        dataset, _ = imported(tmp_path, values, table_format=TableFormat(missing=named))
        assert np.isnan(column(dataset)).sum() == sum(value in named for value in values)


def test_a_word_does_not_hide_decimal_commas(tmp_path: Path) -> None:
    values = ["1,5", "n/m", "2,5", "3,5"]
    assert refusal(tmp_path, values, sign=";").startswith(
        "row 2, column 'y': 'n/m'; expected a finite number, or blank"
    )
    dataset, _ = imported(tmp_path, values, sign=";", table_format=TableFormat(missing=("n/m",)))
    np.testing.assert_array_equal(column(dataset), [1.5, np.nan, 2.5, 3.5])


def test_a_feature_that_is_no_number_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("smiles,f,y\nC,1,1\nCC,pending,0\n")
    options = {"target_columns": ["y"], "feature_columns": ["f"], "processes": 1}
    with pytest.raises(InputError, match=r"column 'f': 'pending'; .* If this stands .*, add --missing pending\."):
        import_smiles(tmp_path / "t.csv", tmp_path / "t.h5", FeaturizerOptions(), **options)  # type: ignore[arg-type]


def test_a_number_among_classes_is_said(tmp_path: Path) -> None:
    _, notes = imported(tmp_path, ["to do", "2.5", "to do", "to do"])
    assert (
        "column 'y' has the number '2.5' among its classes. If this stands for a missing value, add --missing 'to do'."
    ) in notes


@pytest.mark.parametrize("text", ["inf", "-inf", "1e309", "-Infinity"])
def test_infinite_numbers_are_refused_by_row(tmp_path: Path, text: str) -> None:
    values = ["1.5", "NaN", text, "#N/A", "NULL", "None", "?", "n.d."]
    message = f"row 3, column 'y': '{text}'; expected a finite number, or blank where missing"
    assert refusal(tmp_path, values).startswith(message)
    assert refusal(tmp_path, values, task="regression").startswith(message)


def test_a_class_that_counts_as_missing_is_said(tmp_path: Path) -> None:
    _, notes = imported(tmp_path, ["mild", "none", "severe", "mild", "severe", "none"])
    assert "counted as missing: 'none' in 2 cells; where one is a class, give it another name" in notes


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("IC50 (nM)", "nM"),
        (f"Ki [{MU}M]", "uM"),
        ("IC50_nM", "nM"),
        ("IC50 in uM", "uM"),
        ("IC50 / nM", "nM"),
        ("half-life (h)", "h"),
        ("t1/2 (min)", "min"),
        ("PPB (%)", "%"),
        ("melting point (°C)", "°C"),
        ("solubility_ug/ml", "ug/mL"),
        ("wavelength (nm)", "nm"),
    ],
)
def test_the_unit_in_a_columns_name_is_that_of_its_numbers(tmp_path: Path, name: str, unit: str) -> None:
    dataset, notes = imported(tmp_path, ["1.5", "2.5", "2.7", "n.d."], name=name)
    np.testing.assert_array_equal(column(dataset), [1.5, 2.5, 2.7, np.nan])
    assert dataset.header.units == {name: unit}
    assert not any("unit" in note for note in notes)


@pytest.mark.parametrize(
    "name",
    [
        "y",
        "nM",
        "pIC50 (nM)",
        "log IC50 (nM)",
        "LOG SOLUBILITY PH 6.8 (ug/mL)",
        "-log10(M)",
        "dose_min",
        "T_K",
        "ic50_nm",
        "rate (first)",
        "IC50 (nM) mean",
    ],
)
def test_other_names_state_no_unit(tmp_path: Path, name: str) -> None:
    dataset, _ = imported(tmp_path, ["1.5", "2.5", "2.7"], name=name)
    assert dataset.header.units == {}


def test_units_of_cells_are_converted_to_that_of_the_name_where_numbers_have_none(tmp_path: Path) -> None:
    dataset, notes = imported(tmp_path, ["5", "2 uM", "3 uM", ">1 mM"], name="IC50 (nM)")
    assert column(dataset) == [5, 2000, 3000, 1e6]
    assert "column 'IC50 (nM)': 2 values in uM converted to nM, the unit in the column's name" in notes
    dataset, _ = imported(tmp_path, ["4 uM", "2 uM", "3 uM"], name="IC50 (nM)")
    assert (column(dataset), dataset.header.units) == ([4, 2, 3], {"IC50 (nM)": "uM"})
    (tmp_path / "t.h5").unlink()
    message = "row 2, column 'IC50 (nM)': '2 %'; expected a number in nM, or in a unit of its kind, as in 2 rows"
    assert refusal(tmp_path, ["5", "2 %", "3"], name="IC50 (nM)").startswith(message)


def test_labels_stay_labels_whatever_the_columns_name(tmp_path: Path) -> None:
    dataset, _ = imported(tmp_path, ["1", "0", "1"], name="inhibited (%)")
    assert (dataset.header.target, dataset.header.units) == ("binary", {})


def test_the_line_on_a_column_says_the_unit_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("smiles,Ki (nM),series\nC,5.5,a\nCC,7,b\nCCC,9,c\n")
    summary = import_smiles(tmp_path / "t.csv", tmp_path / "t.h5", FeaturizerOptions(), processes=1)
    assert "'Ki (nM)': target, regression, 3 labels (in nM)" in summary.roles()
    (tmp_path / "E.csv").write_text("graph,src,dst\ng1,a,b\n")
    (tmp_path / "N.csv").write_text("graph,node,f\ng1,a,1\ng1,b,1\n")
    (tmp_path / "G.csv").write_text("graph,Ki (nM),hit (%)\ng1,5.5,1\n")
    import_csv(tmp_path / "g.h5", edges=tmp_path / "E.csv", nodes=tmp_path / "N.csv", graphs=tmp_path / "G.csv")
    with Dataset(tmp_path / "g.h5") as dataset:
        assert dataset.header.units == {"Ki (nM)": "nM"}


# ------------------------------------------------------------------------------------------------ bounds


def test_bounds_are_kept_as_numbers_with_their_direction(tmp_path: Path) -> None:
    dataset, notes = imported(tmp_path, [">10", "<0.1", "5.5", "≥20", "<= 1", "~3", ""])
    np.testing.assert_array_equal(column(dataset), [10, 0.1, 5.5, 20, 1, 3, np.nan])
    assert dataset.censored is not None
    assert dataset.censored[:, 0].tolist() == [1, -1, 0, 1, -1, 0, 0]
    assert notes[-2].startswith("column 'y': bounds (1 with >, 1 with <, 1 with ≥, 1 with <=) are kept as the numbers")
    assert notes[-1] == "column 'y': the sign ~ of 1 value is left out"
    with h5py.File(tmp_path / "t.h5") as file:
        assert file["graphs/censored"].dtype == np.int8
        assert file["graphs/y"].dtype == np.float64


# ------------------------------------------------------------------------------------------------ classes


def test_classes_that_nearly_all_occur_once_are_refused(tmp_path: Path) -> None:
    values = [f"about {number}" for number in range(13)]
    expected = "column 'y': 13 classes in 13 rows, such as 'about 0'; expected classes of several rows each. If they"
    assert refusal(tmp_path, values).startswith(expected)
    assert refusal(tmp_path, [f"{number}.5" for number in range(12)], task="multiclass").startswith(
        "column 'y': 12 classes in 12 rows"
    )


# ------------------------------------------------------------------------------------------------ graphs and nodes


def test_plain_tables_have_units_bounds_and_missing_texts_too(tmp_path: Path) -> None:
    (tmp_path / "E.csv").write_text("graph,src,dst\ng1,a,b\n")
    (tmp_path / "N.csv").write_text("graph,node,f,z\ng2,a,1,>2 h\ng1,a,1,30 min\ng1,b,1,fail\ng2,b,1,0.5 h\n")
    (tmp_path / "G.csv").write_text('graph,y\ng1,"1,500.5 nM"\ng2,<2 uM\ng3,3 nM\n')
    tables = {"edges": tmp_path / "E.csv", "nodes": tmp_path / "N.csv", "missing": ["FAIL"]}
    graphs = import_csv(tmp_path / "n.h5", node_targets=["z"], **tables)  # type: ignore[arg-type]
    assert "column 'z': 1 value in min converted to h, the most frequent unit" in graphs.notes
    with Dataset(tmp_path / "n.h5") as dataset:
        np.testing.assert_array_equal(dataset.y[:, 0], [2, 0.5, 0.5, np.nan])  # g2, then g1
        assert dataset.header.units == {"z": "h"}
        assert dataset.censored is not None
        assert dataset.censored[:, 0].tolist() == [1, 0, 0, 0]
    (tmp_path / "N.csv").write_text("graph,node,f\ng2,a,1\ng1,a,1\ng1,b,1\ng3,b,1\n")
    import_csv(tmp_path / "g.h5", graphs=tmp_path / "G.csv", **tables)  # type: ignore[arg-type]
    with Dataset(tmp_path / "g.h5") as dataset:
        assert dataset.y[:, 0].tolist() == [1500.5, 2000, 3]
        assert dataset.header.units == {"y": "nM"}
        assert dataset.censored is not None
        assert dataset.censored[:, 0].tolist() == [0, -1, 0]


def test_a_lone_comma_in_a_plain_table_is_refused_by_row(tmp_path: Path) -> None:
    (tmp_path / "E.csv").write_text("graph,src,dst\ng1,a,b\n")
    (tmp_path / "N.csv").write_text("graph,node,f\ng1,a,1\ng1,b,1\n")
    (tmp_path / "G.csv").write_text('graph,y\ng1,"1,500"\n')
    message = r"row 1, column 'y': '1,500'; expected a finite number.*without commas between thousands"
    with pytest.raises(InputError, match=message):
        import_csv(tmp_path / "g.h5", edges=tmp_path / "E.csv", nodes=tmp_path / "N.csv", graphs=tmp_path / "G.csv")


@pytest.mark.parametrize("text", ["5-10", "5 ± 1", "1_000", "12:30", "2020-01-05", "", "1e309", "1 50", "5,5,5"])
def test_other_texts_are_no_numbers(text: str) -> None:
    assert read_quantity(text) is None


def test_every_importer_says_that_all_labels_are_equal(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("smiles,y,z\nC,5,0\nCC,5,0\nCCC,5,1\n")
    summary = import_smiles(
        tmp_path / "t.csv", tmp_path / "t.h5", FeaturizerOptions(), target_columns=["y", "z"], processes=1
    )
    assert summary.said()[-1] == "labels are all equal and teach nothing: y (all 5)"


def test_a_unit_or_a_direction_that_fits_nothing_is_refused() -> None:
    graphs = build_graphset(3, target="regression", n_tasks=1, censored=True, missing=0.0)
    check_graphset("set", graphs)
    for units, message in (({"other": "uM"}, "units of 'other'"), ({"task0": "a\nb"}, "units: 'a")):
        header = graphs.header.model_copy(update={"units": units})
        with pytest.raises(InputError, match=message):
            check_graphset("set", replace(graphs, header=header))
    wrong = replace(graphs, censored=np.full(graphs.y.shape, 2, np.int8))
    with pytest.raises(InputError, match=r"graphs/censored\[0, 0\]: 2; expected -1, 0 or 1, 0 without a target"):
        check_graphset("set", wrong)
    binary = build_graphset(3, n_tasks=1)
    message = r"graphs/sample_weight\[1\]: -1.0; expected a finite number that is not negative"
    with pytest.raises(InputError, match=message):
        check_graphset("set", replace(graphs, sample_weight=np.array([1, -1, 1], np.float32)))
    with pytest.raises(InputError, match="graphs/censored: present with a binary target; expected a regression target"):
        check_graphset("set", replace(binary, censored=np.zeros(binary.y.shape, np.int8)))
