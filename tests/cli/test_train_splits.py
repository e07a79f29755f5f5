"""Splits by cluster and by time from a table to the run: train, data import, data split, [split], and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcnbatch.data.molecule_groups import clusters_of, scaffolds_of
from gcnbatch.data.store import Dataset
from tests.builders import small_molecules

pytest.importorskip("rdkit", reason="rdkit is not installed (the extra 'chem')")
pytestmark = pytest.mark.usefixtures("light")

Call = Callable[..., tuple[int, str, str]]
GCN = ("--recipe", "gcn", "--epochs", 1, "--set", "model.widths=[4]", "--set", "model.head=[4]", "--backend", "cpu")
PARTS = ("--set", "split.cross_fit=3")
YEAR = [2000 + 7 * row % 20 for row in range(40)]  # each twice
NEWEST = [row for row in range(40) if YEAR[row] > 2017]


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 40 molecules with a date, a number, and a published split."""
    rows = small_molecules(8)
    cells = [
        f"{text},{YEAR[row]}-03-0{1 + row % 2},{len(text)}.5,{'test' if row % 4 else 'train'}"
        for row, text in enumerate(rows)
    ]
    path = tmp_path_factory.mktemp("tables") / "assay.csv"
    path.write_text("\n".join(["smiles,measured,y,part", *cells]) + "\n")
    return path


def rows_of(run: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = json.loads((run / "splits.json").read_text())
    return found


def parts_of(run: Path, count: int) -> list[list[int]]:
    return [rows_of(run / f"part{number + 1}")["valid"] for number in range(count)]


def split_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text())["split"]
    return found


def test_a_column_of_dates_is_all_that_a_split_by_time_needs(call: Call, tmp_path: Path, dated: Path) -> None:
    code, out, err = call("train", dated, "--time-column", "measured", "-o", tmp_path / "run", *GCN, *PARTS)
    assert code == 0, err
    assert "'measured': time (dates, 2000-03-01 to 2019-03-02)" in err.splitlines()
    line = "split by time: networks leave out random training rows, so out-of-fold figures describe known times"
    assert f"{line}; the test rows are newer" in err.splitlines()
    assert "cpu, time split, seed 0: 36 training and 4 test rows" in out
    assert rows_of(tmp_path / "run")["test"] == NEWEST
    assert sorted(chain(*parts_of(tmp_path / "run", 3))) == [row for row in range(40) if row not in NEWEST]
    code, out, err = call(
        "train", dated, "--time-column", "measured", "--split-column", "part", "-o", tmp_path / "part", *GCN, *PARTS
    )
    assert code == 0, err
    assert split_of(tmp_path / "part")["kind"] == "predefined"
    keys = ("--time-column", "measured", "--use-all", "--set", "split.kind=time")
    code, out, err = call("train", dated, *keys, "-o", tmp_path / "all", *GCN, *PARTS)
    assert code == 0, err
    assert line in err.splitlines()
    assert split_of(tmp_path / "all") == {"kind": "time", "seed": 0, "sizes": [40, 0, 0]}


@pytest.mark.parametrize("other", [("--folds", 3), ("--repeats", 2), ("--set", "split.kind=random")])
def test_a_column_of_times_is_refused_with_another_split(
    call: Call, tmp_path: Path, dated: Path, other: tuple[Any, ...]
) -> None:
    code, _, err = call("train", dated, "--time-column", "measured", *other, "-o", tmp_path / "run", *GCN, *PARTS)
    assert code == 2
    got = "given with folds, repeats or a split.kind that does not split by time"
    assert err.strip() == f"error: --time-column: {got}; expected one of them"
    assert not (tmp_path / "run").exists()


def test_an_imported_set_is_split_by_time_in_a_configuration_and_for_good(
    call: Call, tmp_path: Path, dated: Path
) -> None:
    data, targets = tmp_path / "set.h5", ("--target-columns", "y")
    code, _, err = call("data", "import", "smiles", dated, "-o", data, "--time-column", "measured", *targets)
    assert code == 0, err
    toml = f'[data]\npath = "{data}"\n[split]\nkind = "time"\n[model]\nwidths = [4]\n[train]\nepochs = 1\n'
    (tmp_path / "mine.toml").write_text(toml)
    code, _, err = call("train", tmp_path / "mine.toml", "-o", tmp_path / "run", "--backend", "cpu")
    assert code == 0, err
    found = rows_of(tmp_path / "run")
    assert found["test"] == NEWEST
    assert found["valid"] == [row for row in range(40) if YEAR[row] in (2016, 2017)]
    code, out, err = call("data", "split", data, "--kind", "time")
    assert (code, out) == (0, f"time: train 32, valid 4, test 4\n{data}\n"), err
    with Dataset(data) as dataset:
        assert {part: rows.tolist() for part, rows in dataset.splits["time"].parts().items()} == found


@pytest.mark.parametrize("kind", ["cluster", "scaffold"])
def test_groups_are_whole_in_the_test_part_and_in_what_networks_leave_out(
    call: Call, tmp_path: Path, dated: Path, kind: str
) -> None:
    run, keys = tmp_path / "run", ("--target-columns", "y", "--set", f"split.kind={kind}", "--set", "split.test=0.2")
    code, out, err = call("train", dated, "-o", run, *keys, *GCN, *PARTS, "--set", "split.seed=3")
    assert code == 0, err
    assert f"{kind} split, seed 3: 32 training and 8 test rows" in out
    with Dataset(run / "data.h5") as dataset:
        groups = scaffolds_of(dataset) if kind == "scaffold" else clusters_of(dataset, 0.4)
    assert groups is not None
    owners = [set(groups[rows].tolist()) for rows in (*parts_of(run, 3), rows_of(run)["test"])]
    assert sum(map(len, owners)) == len(np.unique(groups)) > 4
    again = ("data", "split", run / "data.h5", "-o", tmp_path / "set.h5", "--kind", kind, "--set", "split.valid=0")
    code, out, err = call(*again, "--set", "split.test=0.2", "--set", "split.seed=3")
    assert (code, out.splitlines()[0]) == (0, f"{kind}: train 32, valid 0, test 8"), err
    with Dataset(tmp_path / "set.h5") as dataset:
        assert dataset.splits[kind].test.tolist() == rows_of(run)["test"]


def test_clusters_are_smaller_where_similarity_is_higher(call: Call, tmp_path: Path, dated: Path) -> None:
    data = tmp_path / "set.h5"
    assert call("data", "import", "smiles", dated, "-o", data, "--target-columns", "y")[0] == 0
    keys = ("--set", "split.folds=20", "--set", "split.valid=0")
    code, out, err = call("data", "split", data, "--kind", "cluster", *keys)
    assert (code, out) == (2, "")
    assert "groups (clusters) for 20 parts; expected a group per part." in err
    code, out, err = call("data", "split", data, "--kind", "cluster", *keys, "--set", "split.similarity=0.9")
    assert (code, out.splitlines()[-2]) == (0, "cluster-19: train 38, valid 0, test 2"), err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["assay.csv", "--time-column", "date"],
            "assay.csv: no column 'date'. Did you mean 'part'? See --time-column.",
        ),
        (
            ["assay.csv", "--time-column", "smiles"],
            "--time-column: 'smiles' is the column of SMILES; expected another column",
        ),
        (
            ["bad.csv", "--time-column", "measured"],
            "bad.csv, column 'measured', row 2: 'soon'; expected dates in one form",
        ),
        (
            ["assay.csv", "--time-column", "y", "--target-columns", "y"],
            "--time-column: 'y' is a target; expected another column",
        ),
        (
            ["assay.csv", "--time-column", "measured", "--feature-columns", "measured", "--target-columns", "y"],
            "--feature-columns: 'measured' is the time; expected another column",
        ),
        (
            ["assay.csv", "--target-columns", "y", "--set", "split.kind=time"],
            "assay.csv: the file has no times; expected a time per row for split.kind = time. Name the column of "
            "dates with --time-column, at import or train.",
        ),
        (["--time-column", "measured"], "--time-column: given with quickstart; expected a table of molecules."),
        (
            ["--set", "split.kind=cluster"],
            "run/data.h5: the file has no molecules; expected a cluster per row for split",
        ),
        (
            ["assay.csv", "--set", "split.kind=time", "--folds", "3"],
            "configuration: split: folds need other test rows in each; a split by time has one test part, the newest",
        ),
    ],
)
def test_what_cannot_be_split_is_one_line_and_leaves_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dated: Path, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "assay.csv").write_bytes(dated.read_bytes())
    (tmp_path / "bad.csv").write_text("smiles,measured,y\nCCO,2020-01-01,1.5\nCCN,soon,2.5\n")
    before = sorted(tmp_path.iterdir())
    code, out, err = call("train", *words, "-o", "run", "--backend", "cpu", "-q")
    assert (code, out) == (2, "")
    assert err.replace(f"{tmp_path}/", "").startswith(f"error: {message}"), err
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before
