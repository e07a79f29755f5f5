"""OGB graph-property folders: one-hot features, missing labels, channels, splits, blocks, and contradictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers import ogb
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from tests.data.ogb_folders import write_folder

# A path of three nodes, a graph without edges, a pair.
BASE = {
    "raw/num-node-list": "3\n1\n2\n",
    "raw/num-edge-list": "2\n0\n1\n",
    "raw/edge": "0,1\n1,2\n0,1\n",
    "raw/node-feat": "5,0\n7,0\n5,1\n5,0\n7,0\n7,1\n",
    "raw/edge-feat": "0,9\n2,9\n0,9\n",
    "raw/graph-label": "0,1\n,0\n1,nan\n",
    "split/scaffold/train": "0\n",
    "split/scaffold/valid": "2\n",
    "split/scaffold/test": "1\n",
}


def folder_of(folder: Path, files: dict[str, str | None]) -> Path:
    return write_folder(folder / "ogbg_mini", BASE | files)


def converted(folder: Path, files: dict[str, str | None] | None = None, **options: object) -> GraphSet:
    ogb.import_ogb(folder_of(folder, files or {}), folder / "out.h5", **options)  # type: ignore[arg-type]
    with Dataset(folder / "out.h5") as dataset:
        return dataset.load()


def test_features_labels_edges_and_splits(tmp_path: Path) -> None:
    graphs = converted(tmp_path)
    assert graphs.header.name == "ogbg_mini"
    assert graphs.header.feature_names == ("feature0=5", "feature0=7", "feature1=0", "feature1=1")
    assert graphs.x.dtype == np.uint8
    assert graphs.x[[0, 5]].tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
    assert graphs.header.target == "binary"
    np.testing.assert_array_equal(graphs.y, [[0, 1], [np.nan, 0], [1, np.nan]])
    assert np.diff(graphs.edge_ptr).tolist() == [4 + 3, 1, 2 + 2]
    parts = {name: rows.tolist() for name, rows in graphs.splits["scaffold"].parts().items()}
    assert parts == {"train": [0], "valid": [2], "test": [1]}
    assert graphs.ids.tolist() == ["0", "1", "2"]
    assert "raw/edge.csv.gz" in graphs.header.source


def test_blocks_of_any_size_give_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = converted(tmp_path, edge_channels=True)
    for rows in (1, 4, 7):
        monkeypatch.setattr(ogb, "EDGE_BLOCK", rows)
        monkeypatch.setattr(ogb, "FEATURE_BLOCK", rows)
        parts = converted(tmp_path, edge_channels=True)
        for name in ("node_ptr", "edge_ptr", "src", "dst", "channel", "x", "y", "ids"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_edge_channels_directed_edges_and_no_loops(tmp_path: Path) -> None:
    graphs = converted(tmp_path, edge_channels=True, undirected=False, self_loops=False)
    assert graphs.header.channel_names == ("type 0", "type 2")
    assert graphs.channel.tolist() == [0, 1, 0]
    assert list(zip(graphs.src.tolist(), graphs.dst.tolist(), strict=True)) == [(0, 1), (1, 2), (0, 1)]


def test_fractions_stay_numbers_and_missing_features_become_degrees(tmp_path: Path) -> None:
    values = "0.5\n7\n5\n5\n7\n7\n"
    graphs = converted(tmp_path, {"raw/node-feat": values})
    assert graphs.x[:, 0].tolist() == [0.5, 7, 5, 5, 7, 7]
    (tmp_path / "ogbg_mini" / "raw" / "node-feat.csv.gz").unlink()
    ogb.import_ogb(tmp_path / "ogbg_mini", tmp_path / "out.h5")
    with Dataset(tmp_path / "out.h5") as dataset:
        assert dataset.load().x.argmax(axis=1).tolist() == [1, 2, 1, 0, 1, 1]


def test_target_kinds(tmp_path: Path) -> None:
    classes = converted(tmp_path, {"raw/graph-label": "2\n0\n1\n"})
    assert classes.header.class_names == ("0", "1", "2")
    assert classes.y[:, 0].tolist() == [2, 0, 1]
    assert converted(tmp_path, {"raw/graph-label": "2\n0\n1\n"}, task="regression").header.target == "regression"
    assert converted(tmp_path, {"raw/graph-label": "2.5\n0\n1\n"}).header.target == "regression"
    assert converted(tmp_path, {"raw/graph-label": "1\n\n0\n"}, task="multiclass").y[:, 0].tolist() == [1, -1, 0]


def test_molecule_ids_come_from_the_mapping(tmp_path: Path) -> None:
    graphs = converted(tmp_path, {"mapping/mol": "smiles,mol_id\nC,m1\nCC,m2\nO,m3\n"})
    assert graphs.ids.tolist() == ["m1", "m2", "m3"]


WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "no edges file": ({"raw/edge": None}, "edge.csv.gz: no such file"),
    "no labels": ({"raw/graph-label": None}, "graph-label.csv.gz: no such file"),
    "counts differ": ({"raw/num-edge-list": "2\n1\n"}, "num-edge-list.csv.gz: 2 rows; expected 3"),
    "negative count": ({"raw/num-edge-list": "2\n-1\n2\n"}, "or a negative one; expected one count per graph"),
    "edge outside": ({"raw/edge": "0,1\n1,2\n0,2\n"}, "edge.csv.gz, row 3: edge 0,2 in graph 2; expected nodes 0 to 1"),
    "edges short": ({"raw/edge": "0,1\n1,2\n"}, "edge.csv.gz: ends after row 2; expected row 3"),
    "edges long": ({"raw/edge": "0,1\n1,2\n0,1\n0,1\n"}, "edge.csv.gz: goes on after row 3; expected 3 rows"),
    "edge wide": ({"raw/edge": "0,1,1\n1,2,1\n0,1,1\n"}, "3 numbers per row; expected 2"),
    "features short": ({"raw/node-feat": "5,0\n"}, "node-feat.csv.gz: ends after row 1; expected row 6"),
    "feature nan": (
        {"raw/node-feat": "5\nnan\n5\n5\n5\n5\n"},
        "node-feat.csv.gz, row 2, column 1: nan; expected a finite",
    ),
    "labels short": ({"raw/graph-label": "0\n1\n"}, "graph-label.csv.gz: 2 rows; expected 3, one per graph"),
    "labels ragged": ({"raw/graph-label": "0,1\n1\n0,0\n"}, "graph-label.csv.gz, row 2: 1 label; expected 2"),
    "label text": (
        {"raw/graph-label": "0\nx\n1\n"},
        "graph-label.csv.gz, row 2: could not convert string to float: 'x'",
    ),
    "label infinite": ({"raw/graph-label": "0\ninf\n1\n"}, "graph-label.csv.gz, row 2: an infinite label"),
    "split twice": ({"split/scaffold/test": "0\n"}, "a graph twice or out of range; expected graphs 0 to 2"),
    "split part": ({"split/scaffold/test": None}, "test.csv.gz: no such file"),
    "mapping short": ({"mapping/mol": "mol_id\nm1\n"}, "mol.csv.gz: 1 row; expected 3, one per graph"),
}


@pytest.mark.parametrize("case", WRONG)
def test_inconsistent_folders_get_one_clear_line(tmp_path: Path, case: str) -> None:
    files, message = WRONG[case]
    with pytest.raises(InputError) as caught:
        converted(tmp_path, files)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


def test_classes_need_one_column(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 columns, 2 values; expected one column of at least 2 classes"):
        converted(tmp_path, task="multiclass")


def test_edge_channels_need_few_values_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ogb, "MAX_CHANNELS", 2)
    with pytest.raises(InputError, match="2 values in the first column; expected fewer than 2"):
        converted(tmp_path, edge_channels=True)
    (tmp_path / "ogbg_mini" / "raw" / "edge-feat.csv.gz").unlink()
    with pytest.raises(InputError, match=r"edge-feat\.csv\.gz: no such file"):
        converted(tmp_path, {"raw/edge-feat": None}, edge_channels=True)
