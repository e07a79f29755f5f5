"""``gcnbatch train`` of tables with few rows: it answers, and says what can be trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import CORES, TAILS

pytest.importorskip("rdkit", reason="rdkit is not installed (the extra 'chem')")
pytestmark = pytest.mark.usefixtures("light")

Call = Callable[..., tuple[int, str, str]]
MOLECULES = [core.format(tail) for tail in TAILS for core in CORES]
QUICK = ("--epochs", 1, "--set", "model.widths=[4]", "--set", "model.head=[4]", "--backend", "cpu")
CELLS: dict[str, Callable[[int, str], str]] = {
    "y": lambda row, text: f"{0.3 * len(text) + row % 3}",
    "active": lambda row, text: str(int("c" in text)),
    "tox": lambda row, text: ("low", "mid", "high")[row % 3],
    "rare": lambda row, text: str(int(row == 3)),
    "one": lambda row, text: "1",
    "same": lambda row, text: "3.5",
    "named": lambda row, text: "toxic",
}


def table(folder: Path, name: str, rows: int) -> Path:
    path = folder / "assay.csv"
    cells = (f"{text},{CELLS[name](row, text)}" for row, text in enumerate(MOLECULES[:rows]))
    path.write_text("\n".join([f"smiles,{name}", *cells]) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "rows", "parts"),
    [("y", 3, 2), ("y", 12, 2), ("y", 30, 5), ("y", 49, 8), ("active", 12, 2), ("active", 49, 8), ("tox", 30, 5)],
)
def test_few_rows_are_trained_and_what_they_show_is_said(
    call: Call, tmp_path: Path, name: str, rows: int, parts: int
) -> None:
    run, source = tmp_path / "run", table(tmp_path, name, rows)
    code, out, err = call("train", source, "-o", run, *QUICK)
    assert code == 0, err
    tested = -(-rows // 10)
    test = "1 test row" if tested == 1 else f"{tested} test rows"
    line = (
        f"{rows - tested} training rows in {parts} parts: scores are uncertain; "
        f"trust the ranking of molecules more than their values; scores of {test} say least: --use-all trains on all "
        "rows"
    )
    assert line in err.splitlines()
    assert f": {rows - tested} training and {test}\n" in out
    assert [len(part) for part in json.loads((run / "splits.json").read_text()).values()] == [rows - tested, 0, tested]
    code, _, err = call("infer", run, source, "-o", tmp_path / "out.csv", "--backend", "cpu", "-q")
    assert (code, len((tmp_path / "out.csv").read_text().splitlines())) == (0, rows + 1), err


def test_texts_numbers_and_identifiers_beside_the_target_are_no_features(call: Call, tmp_path: Path) -> None:
    source = tmp_path / "assay.csv"
    rows = [
        f"CPD-{row:04},{text},series {row % 2},{100 + row}.1,{len(text)}.5" for row, text in enumerate(MOLECULES[:12])
    ]
    source.write_text("\n".join(["Compound ID,SMILES,Series,MW,IC50 (nM)", *rows]) + "\n")
    code, out, err = call("train", source, "-o", tmp_path / "run", *QUICK)
    assert (code, out) == (2, "")
    assert err.endswith(
        "not clear which of the columns are targets ('MW', 'IC50 (nM)'). Name them with --target-columns.\n"
    )
    code, out, err = call("train", source, "-o", tmp_path / "run", "--target-columns", "IC50 (nM)", *QUICK)
    assert code == 0, err
    assert err.splitlines()[:4] == [
        "'Compound ID': id",
        "'SMILES': smiles",
        "'Series', 'MW': ignored (not in --target-columns)",
        "'IC50 (nM)': target, regression, 12 labels (in nM)",
    ]
    assert "RMSE, nM" in out


def test_all_rows_train_where_none_is_left_to_test(call: Call, tmp_path: Path) -> None:
    code, out, err = call("train", table(tmp_path, "y", 12), "--use-all", "-o", tmp_path / "run", *QUICK)
    assert code == 0, err
    assert "12 training rows in 2 parts: " in err
    assert "--use-all" not in err
    assert ": 12 training rows\n" in out


def test_a_label_of_one_row_is_said_once(call: Call, tmp_path: Path) -> None:
    code, _, err = call("train", table(tmp_path, "rare", 30), "-o", tmp_path / "run", *QUICK)
    assert code == 0, err
    said = [line for line in err.splitlines() if "rare" in line and "target" not in line]
    assert said == [
        "fewer rows of a label than parts, so that scores of it say little: rare (1 row of its rarest label)",
        'test rows: a task without labels of two classes, so without ROC-AUC there: rare; split.kind = "stratified" '
        "gives each part its share of rare labels",
    ]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("one", 12, "assay.csv: no task has labels of two classes; expected labels of two classes. Use other rows or"),
        (
            "named",
            49,
            "assay.csv: no task has labels of two classes; expected labels of two classes. Use other rows or",
        ),
        (
            "same",
            30,
            "train.mixture: no task has two different values in two parts; expected labels that vary. Use other",
        ),
        (
            "rare",
            12,
            "assay.csv: no task has labels of two classes in the training rows; expected labels of two classes.",
        ),
        (
            "y",
            1,
            "assay.csv: the train part of the split has no row (train 0, valid 0, test 1); expected at least one row",
        ),
        ("y", 2, "training rows: 1 different molecule; expected at least 2. Add molecules."),
    ],
)
def test_what_cannot_be_learned_is_one_line_and_leaves_nothing(
    call: Call, tmp_path: Path, name: str, rows: int, message: str
) -> None:
    source = table(tmp_path, name, rows)
    code, out, err = call("train", source, "-o", tmp_path / "run", "-q", *QUICK)
    assert (code, out) == (2, "")
    assert err.replace(f"{tmp_path}/", "").startswith(f"error: {message}"), err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
