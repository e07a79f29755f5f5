"""TUDataset folders: labels, attributes, channels, and files that contradict each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.common import MAX_DEGREE
from gcnbatch.data.importers.tudataset import import_tudataset
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError

# Graph 1: a path of three nodes; graph 2: none; graph 3: a pair.
BASE = {"A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n", "graph_indicator": "1\n1\n1\n3\n3\n", "graph_labels": "1\n-1\n1\n"}


def folder_of(folder: Path, **more: str) -> Path:
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for part, text in (BASE | more).items():
        if text:
            (source / f"DS_{part}.txt").write_text(text)
    return source


def converted(folder: Path, self_loops: bool = True, **more: str) -> GraphSet:
    import_tudataset(folder_of(folder, **more), folder / "out.h5", self_loops=self_loops)
    with Dataset(folder / "out.h5") as dataset:
        return dataset.load()


def test_graphs_labels_and_degrees_of_a_bare_set(tmp_path: Path) -> None:
    graphs = converted(tmp_path)
    assert graphs.node_ptr.tolist() == [0, 3, 3, 5]
    assert graphs.edge_ptr.tolist() == [0, 7, 7, 11]
    assert graphs.header.name == "DS"
    assert graphs.header.class_names == ("-1", "1")
    assert graphs.y[:, 0].tolist() == [1, 0, 1]
    assert graphs.ids.tolist() == ["1", "2", "3"]
    assert graphs.x.argmax(axis=1).tolist() == [1, 2, 1, 1, 1]
    assert graphs.header.feature_names[-1] == f"degree>={MAX_DEGREE}"
    assert list(zip(graphs.src[7:].tolist(), graphs.dst[7:].tolist(), strict=True)) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_degrees_beyond_the_cap_share_a_column(tmp_path: Path) -> None:
    leaves = MAX_DEGREE + 5
    star = "".join(f"1, {leaf}\n{leaf}, 1\n" for leaf in range(2, leaves + 2))
    indicator = "1\n" * (leaves + 1) + "2\n"
    graphs = converted(tmp_path, A=star, graph_indicator=indicator, graph_labels="0\n1\n")
    assert graphs.x[0].argmax() == MAX_DEGREE
    assert graphs.x[1].argmax() == 1
    assert graphs.x[-1].argmax() == 0


def test_node_labels_and_attributes_become_features(tmp_path: Path) -> None:
    attributes = "0.5, 1\n1.5, 2\n0, 0\n0, 0\n0, -7\n"
    graphs = converted(tmp_path, node_labels="7\n5\n7\n7\n5\n", node_attributes=attributes)
    assert graphs.header.feature_names == ("label=5", "label=7", "attribute0", "attribute1")
    expected = [[0, 1, 0.5, 1], [1, 0, 1.5, 2], [0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, -7]]
    np.testing.assert_array_equal(graphs.x, expected)
    assert graphs.x.dtype == np.float32
    mixed = converted(
        tmp_path, node_labels="7\n5\n7\n7\n5\n", node_attributes=attributes.replace("0.5", "1").replace("1.5", "1")
    )
    assert mixed.x.dtype == np.float32


def test_node_labels_alone_stay_compact(tmp_path: Path) -> None:
    graphs = converted(tmp_path, node_labels="7, 0\n5, 0\n7, 1\n7, 0\n5, 1\n")
    assert graphs.x.dtype == np.uint8
    assert graphs.header.feature_names == ("label=5", "label=7", "label1=0", "label1=1")
    assert graphs.x[2].tolist() == [0, 1, 0, 1]


def test_edge_labels_become_channels(tmp_path: Path) -> None:
    graphs = converted(tmp_path, edge_labels="3\n3\n1\n1\n3\n3\n")
    assert graphs.header.channel_names == ("label 1", "label 3", "self")
    assert np.bincount(graphs.channel).tolist() == [2, 4, 5]
    bare = converted(tmp_path, self_loops=False, edge_labels="3\n3\n1\n1\n3\n3\n")
    assert bare.header.channel_names == ("label 1", "label 3")
    assert bare.n_edges == 6


def test_repeated_edges_and_self_loops_count_once(tmp_path: Path) -> None:
    graphs = converted(tmp_path, A=BASE["A"] + "1, 2\n1, 1\n")
    assert graphs.n_edges == 11


def test_graph_attributes_are_regression_targets(tmp_path: Path) -> None:
    graphs = converted(tmp_path, graph_labels="", graph_attributes="1.5, 0\n2, 0\n0, 1\n")
    assert graphs.header.target == "regression"
    assert graphs.header.task_names == ("attribute0", "attribute1")
    np.testing.assert_array_equal(graphs.y, [[1.5, 0], [2, 0], [0, 1]])


WRONG = {
    "edge outside": ({"A": "1, 2\n2, 6\n"}, "DS_A.txt, row 2: edge 2, 6; expected nodes 1 to 5"),
    "edge across": (
        {"A": "1, 2\n3, 4\n"},
        "DS_A.txt, row 2: edge 3, 4 joins graphs 1 and 3; expected both ends in one",
    ),
    "edge of three": ({"A": "1, 2, 3\n"}, "3 numbers per row; expected 2"),
    "edge of text": ({"A": "1, 2\n2, x\n"}, "DS_A.txt, row 2, column 2: 'x'; expected a whole number"),
    "ragged edges": ({"A": "1, 2\n2\n"}, "DS_A.txt, row 2: 1 numbers; expected 2"),
    "no edges": ({"A": "\n"}, "DS_A.txt: empty file"),
    "indicator falls": ({"graph_indicator": "1\n2\n1\n3\n3\n"}, "row 3: graph 1; expected graphs from 1 on, in rising"),
    "indicator zero": ({"graph_indicator": "0\n1\n1\n3\n3\n"}, "row 1: graph 0; expected graphs from 1 on"),
    "indicator jumps": ({"graph_indicator": "1\n1\n1\n3\n99999\n"}, "row 5: graph 99999; expected consecutive graph"),
    "indicator wide": ({"graph_indicator": "1,1\n1,1\n"}, "2 numbers per row; expected 1"),
    "few graph labels": ({"graph_labels": "1\n-1\n"}, "DS_graph_labels.txt: 2 rows; expected 3"),
    "one class": ({"graph_labels": "1\n1\n1\n"}, "only class 1; expected at least 2 classes"),
    "no targets": ({"graph_labels": ""}, "neither 'DS_graph_labels.txt' nor 'DS_graph_attributes.txt'"),
    "few node labels": ({"node_labels": "1\n2\n"}, "DS_node_labels.txt: 2 rows; expected 5"),
    "few edge labels": ({"edge_labels": "1\n2\n"}, "DS_edge_labels.txt: 2 rows; expected 6"),
    "attribute nan": (
        {"node_attributes": "1\n2\nnan\n4\n5\n"},
        "DS_node_attributes.txt, row 3, column 1: nan; expected a",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_inconsistent_files_get_one_clear_line(tmp_path: Path, case: str) -> None:
    files, message = WRONG[case]
    with pytest.raises(InputError) as caught:
        converted(tmp_path, **files)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


def test_too_many_edge_labels(tmp_path: Path) -> None:
    edges = "".join(f"{n}, {n + 1}\n" for n in range(1, 301))
    labels = "".join(f"{n}\n" for n in range(300))
    with pytest.raises(InputError, match="300 different edge labels; expected fewer than 256"):
        converted(tmp_path, A=edges, graph_indicator="1\n" * 301, edge_labels=labels)


def test_the_folder_must_hold_one_set(tmp_path: Path) -> None:
    source = folder_of(tmp_path)
    (source / "OTHER_A.txt").write_text("1, 1\n")
    with pytest.raises(InputError, match=r"2 data sets \(DS, OTHER\)"):
        import_tudataset(source, tmp_path / "out.h5")
    with pytest.raises(InputError, match=r"no file 'DS_A\.txt'"):
        import_tudataset(tmp_path, tmp_path / "out.h5")
    with pytest.raises(InputError, match="is a file; expected the data set's folder"):
        import_tudataset(source / "DS_A.txt", tmp_path / "out.h5")
    (source / "OTHER_A.txt").unlink()
    (source / "DS_graph_indicator.txt").unlink()
    with pytest.raises(InputError, match=r"DS_graph_indicator\.txt: no such file"):
        import_tudataset(source, tmp_path / "out.h5")
