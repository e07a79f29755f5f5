"""Plain CSV tables: graph-level and node-level sets, channels, weights, refused tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.plain_csv import import_csv
from gcnbatch.data.store import Dataset
from gcnbatch.errors import InputError
from tests.data.test_molecule_files import write_workbook

EDGES = "graph,src,dst\ng1,a,b\ng1,b,c\ng2,x,y\n"
NODES = "graph,node,charge,ring\ng2,x,0.5,1\ng1,c,0,1\ng1,a,-1,0\ng1,b,2,0\ng2,y,0,0\n"
GRAPHS = "graph,toxic,soluble\ng1,1,0\nempty,0,\ng2,,1\n"


def converted(
    folder: Path, edges: str = EDGES, nodes: str = NODES, graphs: str | None = GRAPHS, **options: object
) -> GraphSet:
    files = {"edges": edges, "nodes": nodes} | ({} if graphs is None else {"graphs": graphs})
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    paths = {name: folder / f"{name}.csv" for name in files}
    import_csv(folder / "out.h5", **paths, **options)  # type: ignore[arg-type]
    with Dataset(folder / "out.h5") as dataset:
        return dataset.load()


def pairs(graphs: GraphSet) -> list[tuple[int, int]]:
    return list(zip(graphs.src.tolist(), graphs.dst.tolist(), strict=True))


def test_graph_targets_keep_the_order_of_the_graph_table(tmp_path: Path) -> None:
    graphs = converted(tmp_path, self_loops=False)
    assert graphs.ids.tolist() == ["g1", "empty", "g2"]
    assert graphs.node_ptr.tolist() == [0, 3, 3, 5]
    np.testing.assert_array_equal(graphs.x, [[0, 1], [-1, 0], [2, 0], [0.5, 1], [0, 0]])
    assert graphs.header.feature_names == ("charge", "ring")
    assert graphs.header.task_names == ("toxic", "soluble")
    np.testing.assert_array_equal(graphs.y, [[1, 0], [0, np.nan], [np.nan, 1]])
    assert graphs.edge_ptr.tolist() == [0, 4, 4, 6]
    assert set(pairs(graphs)[:4]) == {(1, 2), (2, 1), (2, 0), (0, 2)}


def test_directed_edges_and_self_loops(tmp_path: Path) -> None:
    graphs = converted(tmp_path, undirected=False)
    assert sorted(pairs(graphs)[:5]) == [(0, 0), (1, 1), (1, 2), (2, 0), (2, 2)]


def test_channels_and_weights(tmp_path: Path) -> None:
    edges = "src,dst,weight,channel\na,b,0.5,strong\nb,c,2,weak\na,b,9,strong\nc,c,3,weak\n"
    graphs = converted(tmp_path, edges, "node,y\na,1\nb,0\nc,\n", None, node_targets=["y"])
    assert graphs.header.channel_names == ("strong", "weak", "self")
    assert graphs.weight is not None
    found = {
        (s, d, int(c)): float(w) for (s, d), c, w in zip(pairs(graphs), graphs.channel, graphs.weight, strict=True)
    }
    edges_expected = {(0, 1, 0): 0.5, (1, 0, 0): 0.5, (1, 2, 1): 2.0, (2, 1, 1): 2.0, (2, 2, 1): 3.0}
    assert found == edges_expected | {(n, n, 2): 1.0 for n in range(3)}


def test_a_self_loop_of_the_user_is_kept(tmp_path: Path) -> None:
    graphs = converted(tmp_path, "src,dst,weight\na,a,5\n", "node,y\na,1\nb,0\n", None, node_targets=["y"])
    assert graphs.weight is not None
    assert dict(zip(pairs(graphs), graphs.weight.tolist(), strict=True)) == {(0, 0): 5.0, (1, 1): 1.0}


def test_node_targets_of_one_graph_and_of_several(tmp_path: Path) -> None:
    nodes = "node,age,label\np1,34,A\np2,51,\np3,7,B\n"
    graphs = converted(tmp_path, "src,dst\np1,p2\n", nodes, None, node_targets=["label"], task="multiclass")
    assert graphs.header.level == "node"
    assert graphs.ids.tolist() == ["p1", "p2", "p3"]
    assert graphs.y[:, 0].tolist() == [0, -1, 1]
    assert graphs.x.dtype == np.uint8
    several = converted(tmp_path, graphs=None, node_targets=["ring"])
    assert several.ids.tolist() == ["g2/x", "g2/y", "g1/c", "g1/a", "g1/b"]
    assert several.y[:, 0].tolist() == [1, 0, 1, 0, 0]
    assert several.header.feature_names == ("charge",)


def test_without_features_the_degree_is_used(tmp_path: Path) -> None:
    graphs = converted(tmp_path, nodes="graph,node\ng1,a\ng1,b\ng1,c\ng2,x\ng2,y\n")
    assert graphs.x.argmax(axis=1).tolist() == [1, 2, 1, 1, 1]


def test_target_columns_pick_and_order(tmp_path: Path) -> None:
    graphs = converted(tmp_path, target_columns=["soluble", "toxic"], name="mine")
    assert graphs.header.task_names == ("soluble", "toxic")
    assert graphs.header.name == "mine"


def test_a_target_named_twice_counts_once(tmp_path: Path) -> None:
    assert converted(tmp_path, target_columns=["soluble", "soluble"]).header.task_names == ("soluble",)


def test_names_are_texts(tmp_path: Path) -> None:
    nodes = 'graph,node,y\n1,7,1\n1,07,0\n1, +7 ,1\n01,"7",0\n01,"a, ""b""",1\n'
    edges = 'graph,src,dst\n1,7,07\n1,+7,7\n01, 7,"a, ""b"""\n'
    graphs = converted(tmp_path, edges, nodes, None, node_targets=["y"], undirected=False, self_loops=False)
    assert graphs.ids.tolist() == ["1/7", "1/07", "1/+7", "01/7", '01/a, "b"']
    assert graphs.edge_ptr.tolist() == [0, 2, 3]
    assert sorted(pairs(graphs)[:2]) == [(0, 1), (2, 0)]
    assert pairs(graphs)[2] == (0, 1)


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "both targets": ({"node_targets": ["ring"]}, "both --graphs and --node-targets"),
    "no targets": ({"graphs": None}, "neither --graphs nor --node-targets"),
    "unknown node": ({"edges": "graph,src,dst\ng1,a,z\n"}, "row 1: unknown node 'z' of graph 'g1'; expected a node of"),
    "unknown graph": ({"edges": "graph,src,dst\ng9,a,b\n"}, "row 1: unknown graph 'g9'; expected a graph of the node"),
    "node in no graph": ({"nodes": "graph,node\ng9,a\n"}, "row 1: unknown graph 'g9'; expected a graph of the graph"),
    "edge column": ({"edges": "graph,src,dst,color\ng1,a,b,1\n"}, "unknown column 'color'; expected only graph, src"),
    "no dst": ({"edges": "graph,src\ng1,a\n"}, "no column 'dst'"),
    "edges without graph": ({"edges": "src,dst\na,b\n"}, "edges.csv: no column 'graph'"),
    "nodes without graph": ({"nodes": "node\na\n"}, "nodes.csv: no column 'graph'"),
    "no node column": ({"nodes": "graph,name\ng1,a\n"}, "no column 'node'"),
    "no nodes": ({"nodes": "graph,node\n"}, "no row below the header line; expected at least one node"),
    "node twice": (
        {"nodes": "graph,node\ng1,a\ng1,a\n"},
        "row 2: node 'a' again; expected each node once in its graph",
    ),
    "graph twice": ({"graphs": "graph,y\ng1,1\ng1,0\n"}, "row 2: graph 'g1' again; expected each graph once"),
    "no target column": ({"graphs": "graph\ng1\ng2\n"}, "graphs.csv: no target column"),
    "wrong target": ({"target_columns": ["toxi"]}, "no column 'toxi'. Did you mean 'toxic'?"),
    "target with a mark of direction": (
        {"graphs": "graph,t\u202e\ng1,1\n"},
        r"graphs.csv, column 't\u202e': invisible characters in its name",
    ),
    "class with an invisible character": (
        {"graphs": "graph,y\ng1,a\u200b\ng2,b\n", "task": "multiclass"},
        r"graphs.csv, column 'y': invisible characters in label 'a\u200b'",
    ),
    "feature with a line end": (
        {"nodes": 'graph,node,"a\nb"\ng1,a,1\n'},
        r"nodes.csv, column 'a\nb': invisible characters in its name",
    ),
    "wrong node target": ({"graphs": None, "node_targets": ["rin"]}, "no column 'rin'. Did you mean 'ring'?"),
    "node target node": ({"graphs": None, "node_targets": ["node"]}, "--node-targets: node; expected target columns"),
    "feature text": (
        {"nodes": NODES.replace("-1", "minus")},
        "row 3, column 'charge': 'minus'; expected a finite number",
    ),
    "feature blank": ({"nodes": NODES.replace("-1", "")}, "row 3, column 'charge': ''; expected a 32-bit"),
    "weight text": ({"edges": "graph,src,dst,weight\ng1,a,b,x\n"}, "row 1, column 'weight': 'x'"),
    "target text": ({"graphs": "graph,y\ng1,high\ng2,1\n"}, "graphs.csv, row 1, column 'y': 'high'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_tables_get_one_clear_line(tmp_path: Path, case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(InputError) as caught:
        converted(tmp_path, **changes)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


def test_a_wrong_path_is_reported_before_a_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("node,y\na,1\na,1\n")
    with pytest.raises(InputError, match=r"edges\.csv: no such file"):
        import_csv(tmp_path / "out.h5", edges=tmp_path / "edges.csv", nodes=tmp_path / "nodes.csv", node_targets=["y"])


@pytest.mark.parametrize("numbered", [True, False])
def test_parquet_gives_the_graphs_of_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbered: bool) -> None:
    """Numbers keep their type in Parquet; a batch after the first may have a name that is no number."""
    csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    rows = [(str(n), str((n * 7 + 1) % 30), str(n % 3)) for n in range(30)]
    if not numbered:
        rows[25] = ("x", "5", "")
    texts = {
        "edges": "src,dst\n" + "".join(f"{a},{b}\n" for a, b, _ in rows),
        "nodes": "node,y,f\n"
        + "".join(f"{a},{y},{int(b) / 4}\n" for a, b, y in rows)
        + ("" if numbered else "25,1,0\n"),
    }
    expected = converted(tmp_path, **texts, graphs=None, node_targets=["y"])
    for name in texts:
        parquet.write_table(csv.read_csv(tmp_path / f"{name}.csv"), tmp_path / f"{name}.parquet", row_group_size=10)
    paths = {name: tmp_path / f"{name}.parquet" for name in texts}
    import_csv(tmp_path / "parquet.h5", **paths, node_targets=["y"])  # type: ignore[arg-type]
    with Dataset(tmp_path / "parquet.h5") as dataset:
        found = dataset.load()
    for name in ("x", "y", "src", "dst", "edge_ptr", "node_ptr", "ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    with pytest.raises(InputError, match=r"no\.parquet: no such file"):
        import_csv(tmp_path / "o.h5", edges=tmp_path / "no.parquet", nodes=paths["nodes"], node_targets=["y"])


def test_too_many_channels(tmp_path: Path) -> None:
    edges = "graph,src,dst,channel\n" + "".join(f"g1,a,b,{n}\n" for n in range(256))
    with pytest.raises(InputError, match="256 different values; expected fewer than 256"):
        converted(tmp_path, edges)


def test_tables_as_other_tools_write_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_text("# made by a robot\nsrc\tdst\t\na\tb\t\n")
    (tmp_path / "n.csv").write_bytes("node;größe\na;1\nb;2\n".encode("cp1252"))
    tables = {"edges": tmp_path / "e.tsv", "nodes": tmp_path / "n.csv", "node_targets": ["größe"]}
    with pytest.raises(InputError, match=r"n\.csv: byte 0xf6 is not UTF-8.*--encoding cp1252"):
        import_csv(tmp_path / "out.h5", **tables)
    summary = import_csv(tmp_path / "out.h5", encoding="cp1252", **tables)
    assert summary.notes == (
        "n.csv: fields are separated by a semicolon",
        "e.tsv: fields are separated by a tab",
        "e.tsv: 1 line above the header line left out",
        "e.tsv: 1 blank column without a name left out",
    )
    with Dataset(tmp_path / "out.h5") as dataset:
        assert (dataset.header.task_names, dataset.ids.tolist()) == (("größe",), ["a", "b"])
    with pytest.raises(InputError, match=r"n\.csv: no column 'node'. Did you mean 'node;größe'"):
        import_csv(tmp_path / "out.h5", delimiter="comma", encoding="cp1252", **tables)


def test_a_first_column_without_a_name_is_no_feature(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nodes\.csv, row 1: column 1 has no name, but the value '0'"):
        converted(tmp_path, "src,dst\na,a\n", ",node,y\n0,a,1\n", None, node_targets=["y"])


def test_a_workbook_of_plain_tables_is_read(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    write_workbook(tmp_path / "n.xlsx", [["node", "y"], ["a", 1], ["b", 0]])
    (tmp_path / "e.csv").write_text("src,dst\na,b\n")
    assert (
        import_csv(tmp_path / "o.h5", edges=tmp_path / "e.csv", nodes=tmp_path / "n.xlsx", node_targets=["y"]).nodes
        == 2
    )
