"""OGB node-property folders: edges, features, labels, ids, splits, blocks, notes, and contradictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers import edges, ogb
from gcnbatch.data.importers.common import ImportSummary
from gcnbatch.data.importers.ogb import import_ogb
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from tests.data.ogb_folders import write_folder

# A path 0-1-2, listed twice in part, a loop at 2, and a node 3 alone.
BASE = {
    "raw/num-node-list": "4\n",
    "raw/num-edge-list": "4\n",
    "raw/edge": "0,1\n1,2\n1,0\n2,2\n",
    "raw/node-feat": "0.5,1\n7,2\n5,-3\n1e-3,4\n",
    "raw/node-label": "0\n2\n1\nnan\n",
    "raw/node_year": "2001\n2002\n2003\n2004\n",
    "mapping/nodeidx2asin": "node idx,asin\n1,B1\n0,B0\n2,B2\n3,B3\n",
    "split/time/train": "0\n2\n",
    "split/time/valid": "1\n",
    "split/time/test": "3\n",
}


def folder_of(folder: Path, files: dict[str, str | None]) -> Path:
    return write_folder(folder / "ogbn_mini", BASE | files)


def converted(
    folder: Path, files: dict[str, str | None] | None = None, **options: bool
) -> tuple[GraphSet, ImportSummary]:
    summary = import_ogb(folder_of(folder, files or {}), folder / "out.h5", **options)
    with Dataset(folder / "out.h5") as dataset:
        return dataset.load(), summary


def pairs(graphs: GraphSet) -> list[tuple[int, int]]:
    return list(zip(graphs.src.tolist(), graphs.dst.tolist(), strict=True))


def test_a_node_set_is_one_graph_with_ids_labels_and_splits(tmp_path: Path) -> None:
    graphs, summary = converted(tmp_path)
    assert pairs(graphs) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 3)]
    assert (graphs.header.level, graphs.header.target, graphs.header.class_names) == (
        "node",
        "multiclass",
        ("0", "1", "2"),
    )
    np.testing.assert_array_equal(graphs.x, np.array([[0.5, 1], [7, 2], [5, -3], [1e-3, 4]], np.float32))
    assert graphs.y[:, 0].tolist() == [0, 2, 1, -1]
    assert graphs.ids.tolist() == ["B0", "B1", "B2", "B3"]
    assert {name: rows.tolist() for name, rows in graphs.splits["time"].parts().items()} == {
        "train": [0, 2],
        "valid": [1],
        "test": [3],
    }
    assert "raw/edge.csv.gz" in graphs.header.source
    source = tmp_path / "ogbn_mini"
    assert summary.notes == (
        "each listed edge counts both ways, once; I is added",
        f"ids: column 'asin' of {source}/mapping/nodeidx2asin.csv.gz",
        "1 listed edge joins a node to itself",
        f"not read: node_year.csv.gz in {source}/raw",
    )
    assert (summary.nodes, summary.edges, summary.labelled) == (4, 8, 3)


def test_directed_edges_and_no_loops(tmp_path: Path) -> None:
    files: dict[str, str | None] = {"mapping/nodeidx2asin": None, "raw/node_year": None, "split/time/test": ""}
    with pytest.raises(InputError, match="empty file"):
        converted(tmp_path, files)
    graphs, summary = converted(tmp_path, files | {"split/time/test": "3\n"}, undirected=False, self_loops=False)
    assert pairs(graphs) == [(1, 0), (0, 1), (1, 2), (2, 2)]
    assert graphs.ids.tolist() == ["0", "1", "2", "3"]
    assert summary.notes[:2] == (
        "each listed edge counts from its first node to its second, once; no self-loops are added",
        "ids: the nodes' numbers",
    )


def test_blocks_of_any_size_give_the_same_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = converted(tmp_path)
    monkeypatch.setattr(ogb, "EDGE_BLOCK", 3)
    monkeypatch.setattr(ogb, "FEATURE_BLOCK", 4)
    for name in ("RUN", "BLOCK"):
        monkeypatch.setattr(edges, name, 2)
    parts, _ = converted(tmp_path)
    for name in ("node_ptr", "edge_ptr", "src", "dst", "x", "y", "ids"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"raw/num-node-list": "2\n2\n"}, "num-node-list.csv.gz: 2 graphs; expected one graph, as nodes have labels"),
        ({"raw/num-node-list": "5\n"}, "node-label.csv.gz: ends after row 4; expected row 5"),
        ({"raw/node-label": "0\n1\n2\n1\n0\n"}, "node-label.csv.gz: goes on after row 4; expected 4 rows"),
        ({"raw/edge": "0,1\n1,2\n1,4\n2,2\n"}, "edge.csv.gz, row 3: edge 1,4; expected nodes 0 to 3"),
        ({"raw/edge": "0,1,2\n" * 4}, "edge.csv.gz: 3 numbers per row; expected 2: the ends of an edge"),
        ({"raw/num-edge-list": "3\n"}, "edge.csv.gz: goes on after row 3; expected 3 rows"),
        ({"raw/node-feat": "1\n2\n3\ninf\n"}, "node-feat.csv.gz, row 4, column 1: inf; expected a finite number"),
        ({"raw/node-feat": "1\n2\n3\n4\n5\n"}, "node-feat.csv.gz: goes on after row 4; expected 4 rows"),
        ({"raw/node-feat": None}, "node-feat.csv.gz: no such file; expected features of the nodes. A set of other"),
        ({"split/time/test": "4\n"}, "a node twice or out of range; expected nodes 0 to 3, each at most once"),
        (
            {"mapping/nodeidx2asin": "node idx,asin\n0,a\n"},
            "nodeidx2asin.csv.gz: 1 row; expected each node from 0",
        ),
        ({"mapping/nodeidx2asin": "node idx,asin\nx,a\n"}, "nodeidx2asin.csv.gz, column 'node idx': invalid literal"),
        ({"mapping/nodeidx2asin": "n,a,b\n0,a,b\n"}, "nodeidx2asin.csv.gz: 3 columns; expected 2: a node's number"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, files: dict[str, str | None], message: str) -> None:
    with pytest.raises(InputError) as refused:
        converted(tmp_path, files)
    assert message in str(refused.value)
    assert not (tmp_path / "out.h5").exists()


def test_channels_of_edges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--edge-channels: given for .*ogbn_mini, a node set\. Leave it out\."):
        converted(tmp_path, edge_channels=True)
