"""Splits of a table added to a data set: by id, by row, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcnbatch
from gcnbatch.config_sections import SplitConfig
from gcnbatch.data import audit
from gcnbatch.data.add_splits import SplitTable, add_splits
from gcnbatch.data.chunks import ChunkFile, StoredArray
from gcnbatch.data.graphs import Split
from gcnbatch.data.splits import SplitRows, make_folds, make_split
from gcnbatch.data.store import Dataset, write_graphset
from gcnbatch.errors import InputError
from tests.builders import assert_graphsets_equal, build_graphset


@pytest.fixture
def data(tmp_path: Path) -> Path:
    graphs = build_graphset(5, splits=True)
    write_graphset(tmp_path / "set.h5", replace(graphs, ids=np.array(list("abcde"))))
    return tmp_path / "set.h5"


def add(data: Path, text: str, out: Path | None = None, **options: str) -> tuple[dict[str, Split], list[str]]:
    table = data.with_name("split.csv")
    table.write_text(text)
    with Dataset(data) as dataset:
        return add_splits(dataset, out or data, SplitTable(table, **options))


def parts(split: Split) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in split.parts().items()}


def test_a_table_with_ids_in_any_order_adds_its_split(data: Path) -> None:
    with Dataset(data) as dataset:
        before = dataset.load()
    _, notes = add(data, "id;split\nc;test\na;train\nz;valid\nb;train\ne;valid\n", name="mine")
    assert notes == [
        f"1 of 5 ids of {data.with_name('split.csv')} is not in the data set",
        f"1 of 5 rows of {data} is in no part",
    ]
    with Dataset(data) as dataset:
        assert parts(dataset.splits["mine"]) == {"train": [0, 1], "valid": [4], "test": [2]}
        assert_graphsets_equal(replace(dataset.load(), splits=before.splits), before)


def test_blanks_around_ids_do_not_matter_for_splits(data: Path) -> None:
    with Dataset(data) as dataset:
        graphs = replace(dataset.load(), ids=np.array(["a ", "b", "c\nc", "4", " e"]))
    write_graphset(data, graphs)
    added, notes = add(data, 'id,split\na,train\n"b ",train\n"c\nc",test\n,valid\ne,test\n')
    assert (parts(added["split"]), notes) == ({"train": [0, 1], "valid": [3], "test": [2, 4]}, [])


def test_a_table_without_ids_counts_rows_and_folds_give_a_split_each(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.h5"
    add(data, "fold\n0\n1\n2\n0\n1\n", out)
    with Dataset(out) as dataset:
        assert list(dataset.splits) == ["first", "fold-0", "fold-1", "fold-2"]
        assert parts(dataset.splits["fold-0"]) == {"train": [2], "valid": [1, 4], "test": [0, 3]}
    with Dataset(data) as dataset:
        assert list(dataset.splits) == ["first"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("split\ntrain\n", {}, "1 row and no column of ids; expected 5 rows, as in the data set"),
        ("id,split\na,train\na,test\n", {}, "id 'a' stands there more than once; expected each id once"),
        ("id,split\nx,train\ny,test\n", {}, "none of its ids is in the data set; expected ids such as 'a'"),
        ("id,set\na,1.5\n", {}, "no column looks like a split. Did you mean"),
        ("id,split,fold\na,train,1\n", {}, "2 columns look like a split"),
        ("id,split\na,train\n", {"split_column": "parts"}, "no column 'parts'"),
        ("id,split\na,train\n", {"id_column": "key"}, "no column 'key'"),
        ("id,split\na,train\n", {"name": "first"}, "there is a split 'first'; expected a new name"),
    ],
)
def test_other_tables_are_refused(data: Path, text: str, options: dict[str, str], message: str) -> None:
    before = data.read_bytes()
    with pytest.raises(InputError) as caught:
        add(data, text, **options)
    assert message in str(caught.value)
    assert data.read_bytes() == before


def test_new_splits_are_those_that_a_run_makes(data: Path, tmp_path: Path) -> None:
    added = gcnbatch.add_splits(data, kind="random", settings={"split.seed": 3, "split.valid": 0.2, "split.test": 0.2})
    folds = gcnbatch.add_splits(data, kind="stratified", settings={"split.folds": 2, "split.valid": 0}, name="cv")
    with Dataset(data) as dataset:
        rows, chosen = SplitRows.of(dataset, "random"), SplitConfig(seed=3, valid=0.2, test=0.2)
        assert parts(added["random"]) == parts(dataset.splits["random"]) == parts(make_split(chosen, 0, rows))
        expected = make_folds(SplitConfig(kind="stratified", folds=2, valid=0.0), 0, rows)
        assert list(folds) == ["cv-0", "cv-1"]
        assert [parts(dataset.splits[name]) for name in folds] == [parts(split) for split in expected]


def test_a_stored_scaffold_split_needs_no_rdkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rdkit")
    smiles = ["c1ccccc1O", "c1ccccc1C", "C1CCCC1", "CCO", "c1ccncc1", "C1CCCC1C", "c1ccccc1F", "CC", "C1CCC1", "CN"]
    gcnbatch.write(tmp_path / "set.h5", gcnbatch.from_smiles(smiles, range(10)))
    with Dataset(tmp_path / "set.h5") as dataset:
        expected = make_split(SplitConfig(kind="scaffold"), 0, SplitRows.of(dataset, "scaffold"))
    gcnbatch.add_splits(tmp_path / "set.h5", kind="scaffold")
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with Dataset(tmp_path / "set.h5") as dataset:
        found = make_split(SplitConfig(kind="predefined"), 0, SplitRows.of(dataset, "predefined"))
    assert parts(found) == parts(expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "--kind: missing; expected random, stratified, scaffold, cluster, time; or a table with --from"),
        (
            {"kind": "murcko"},
            "--kind: murcko; expected random, stratified, scaffold, cluster, time; or a table with --from",
        ),
        ({"table": "a.csv", "kind": "random"}, "--from: given with --kind or --set; expected a table, or a new split"),
        ({"kind": "random", "id_column": "a"}, "--id-column: given with --kind or --set"),
        ({"kind": "random", "settings": {"train.epochs": 1}}, "--set train.epochs: not a key of [split]"),
        (
            {"kind": "random", "settings": {"split.repeats": 2}},
            "split.repeats: 2; expected 1. Give each split",
        ),
        ({"kind": "random", "name": "first"}, "there is a split 'first'; expected a new name"),
    ],
)
def test_other_new_splits_are_refused(data: Path, given: dict[str, Any], message: str) -> None:
    before = data.read_bytes()
    with pytest.raises(InputError) as caught:
        gcnbatch.add_splits(data, **given)
    assert message in str(caught.value)
    assert data.read_bytes() == before


def test_a_set_that_another_process_has_written_since_is_refused(data: Path) -> None:
    table = data.with_name("other.csv")
    table.write_text("other\ntrain\ntest\ntrain\ntest\nvalid\n")
    with Dataset(data) as dataset:
        add(data, "one\ntrain\ntest\ntrain\ntest\nvalid\n")
        with pytest.raises(InputError, match=r"set\.h5: another process has written it meanwhile\. Run again\."):
            add_splits(dataset, data, SplitTable(table))
        add_splits(dataset, data.with_name("new.h5"), SplitTable(table))
    with Dataset(data) as dataset:
        assert list(dataset.splits) == ["first", "one"]


def test_a_set_that_is_replaced_while_it_is_opened_is_read_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = build_graphset(2, splits=True)
    real = audit._stored_arrays

    def late(file: ChunkFile) -> dict[str, StoredArray]:
        monkeypatch.setattr(audit, "_stored_arrays", real)
        write_graphset(data, small)
        return real(file)

    monkeypatch.setattr(audit, "_stored_arrays", late)
    with Dataset(data) as dataset:
        assert_graphsets_equal(dataset.load(), small)
