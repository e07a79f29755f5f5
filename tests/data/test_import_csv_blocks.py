"""Large CSV tables: results do not depend on block boundaries, nor memory on the number of edges."""

from __future__ import annotations

import errno
import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from gcnbatch.data import writer
from gcnbatch.data.importers import common, edges, graph_tables, names, plain_csv
from gcnbatch.data.importers.plain_csv import import_csv
from gcnbatch.data.importers.scratch import RowFile
from gcnbatch.data.tables import delimited, files
from gcnbatch.errors import InputError, MachineError
from gcnbatch.progress import counter

SIZES = {
    delimited: {"BLOCK_FIELDS": 12, "RECORDS": 2},
    files: {"BLOCK_CHARS": 20},
    names: {"_BLOCK": 3},
    edges: {"BUCKETS": 4, "RUN": 5, "BLOCK": 6},
    graph_tables: {"BLOCK_BYTES": 30, "ID_BLOCK": 3},
    common: {"NODE_BLOCK": 3},
}
NAMES = {
    "row numbers": str,
    "large numbers": lambda number: str(number * 10**15 + 7),
    "numbers too long": lambda number: str(number + 10**18),
    "texts": lambda number: f'"ä, ""{number}"""' if number % 5 == 0 else f" atom{number}",
    "numbers, then texts": lambda number: str(number) if number < 7 else f"{number:03}",
}


def make_blocks_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce all block sizes to a few rows."""
    for module, constants in SIZES.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)


def write(path: Path, header: str, rows: list[tuple[str, ...]], end: str = "\n") -> Path:
    """Write a table without its columns of blanks."""
    columns = [column for column in zip(header.split(","), *rows, strict=True) if any(column[1:])]
    text = "".join(",".join(row) + end for row in zip(*columns, strict=True))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def random_tables(folder: Path, kind: str, graphs: int, level: str, extra: str, seed: int) -> dict[str, Any]:
    """Write 9 nodes a graph in any order, and edges; some are listed twice, some both ways, some are self-loops."""
    rng, name = np.random.default_rng(seed), NAMES[kind]
    owners = [f"g{graph}" if graphs > 1 else "" for graph in range(graphs)]
    nodes = [(owner, name(number)) for owner in owners for number in range(9)]
    links = [(owners[g], name(a), name(b)) for g, a, b in rng.integers(0, (graphs, 9, 9), (60, 3))]
    more = {"": [""], "channel": ["10", "9", "b"], "weight": ["1", "-0.5", "2e3"]}[extra]
    edge_rows = [(*link, *rng.choice(more, 1)) for link in links]
    labels = ["0.5", "nan", "3"] if level == "node" else [""]
    node_rows = [
        (*nodes[row], *rng.choice(["300", "7"], 1), *rng.choice(labels, 1)) for row in rng.permutation(len(nodes))
    ]
    paths: dict[str, Any] = {
        "edges": write(folder / ("e.csv.gz" if seed % 2 else "e.csv"), f"graph,src,dst,{extra}", edge_rows),
        "nodes": write(folder / "n.csv", "graph,node,size,y", node_rows, "\r\n"),
    }
    if level == "node":
        return paths | {"node_targets": ["y"]}
    return paths | {"graphs": write(folder / "g.csv", "graph,y", [(owner, str(len(owner))) for owner in owners[::-1]])}


def content(path: Path) -> dict[str, Any]:
    """Return every array of a data set file."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        for folder in ("graphs", "nodes", "edges"):
            found |= {
                f"{folder}/{name}": (array.dtype, array.shape, array[()].tobytes())
                for name, array in file[folder].items()
            }
        return found | {"header": file["header"][()]}


@pytest.mark.parametrize(
    ("kind", "graphs", "level", "extra"),
    [(kind, 1, "node", "") for kind in NAMES]
    + [
        ("row numbers", 3, "graph", ""),
        ("row numbers", 3, "node", "weight"),
        ("large numbers", 3, "graph", "channel"),
        ("texts", 3, "node", ""),
        ("texts", 1, "node", "channel"),
        ("numbers, then texts", 3, "graph", "weight"),
    ],
)
def test_the_file_does_not_depend_on_the_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, graphs: int, level: str, extra: str
) -> None:
    for seed in range(4):
        options = random_tables(tmp_path, kind, graphs, level, extra, seed)
        options |= {"undirected": seed != 2, "self_loops": seed != 3, "name": "same"}
        import_csv(tmp_path / "whole.h5", **options)
        with monkeypatch.context() as patched:
            make_blocks_tiny(patched)
            import_csv(tmp_path / "blocks.h5", **options)
        assert content(tmp_path / "blocks.h5") == content(tmp_path / "whole.h5")


# ------------------------------------------------------------------------------------------------ what is refused

NODES = "graph,node,size,y\n" + "".join(
    f"{7 * graph},{node},1.5,{node % 2}\n" for graph in range(3) for node in range(9)
)
EDGES = "graph,src,dst\n" + "".join(f"{7 * graph},{node},{node + 1}\n" for graph in range(3) for node in range(8))
GRAPHS = "graph,y\n" + "".join(f"{7 * graph},{graph}\n" for graph in range(3))
LATE = {  # the file, a line's number, its new text, the message
    "unknown node": ("edges", 20, "14,3,99", "edges.csv, row 20: unknown node '99' of graph '14'"),
    "node in words": ("edges", 20, "14,x,3", "edges.csv, row 20: unknown node 'x' of graph '14'"),
    "zeros before": ("edges", 20, "14,3,03", "edges.csv, row 20: unknown node '03' of graph '14'"),
    "unknown graph": ("edges", 20, "15,3,99", "edges.csv, row 20: unknown graph '15'"),
    "fields of an edge": ("edges", 20, "14,3", "edges.csv, row 20: 2 fields; expected 3, as in the header line"),
    "quotes": ("edges", 20, '14,"3"4,5', "edges.csv, line 21: ',' expected after '\"'"),
    "node twice": ("nodes", 22, "14,2,1.5,0", "nodes.csv, row 22: node '2' again"),
    "feature": ("nodes", 22, "14,3,big,0", "nodes.csv, row 22, column 'size': 'big'; expected a finite number"),
    "feature with _": ("nodes", 22, "14,3,1_0,0", "nodes.csv, row 22, column 'size': '1_0'; expected a finite number"),
    "large feature": ("nodes", 22, "14,3,1e39,0", "nodes.csv, row 22, column 'size': '1e39'; expected a 32-bit"),
    "target": ("nodes", 22, "14,3,1,no", "nodes.csv, row 22, column 'y': 'no'; expected a finite number"),
    "binary target": ("nodes", 22, "14,3,1,2", "nodes.csv, row 22, column 'y': 2; expected 0, 1 or blank"),
    "large target": ("nodes", 22, "14,3,1,1e39", "nodes.csv, row 22, column 'y': 1e+39; expected 0, 1 or blank"),
    "fields of a node": ("nodes", 22, "14,3,1,1,1", "nodes.csv, row 22: 5 fields; expected 4, as in the header line"),
}


@pytest.mark.parametrize("case", LATE)
def test_messages_count_rows_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    make_blocks_tiny(monkeypatch)
    file, line, text, message = LATE[case]
    paths = {"edges": tmp_path / "edges.csv", "nodes": tmp_path / "nodes.csv"}
    for path, good in zip(paths.values(), (EDGES, NODES), strict=True):
        path.write_text(good)
    lines = paths[file].read_text().split("\n")
    lines[line] = text
    paths[file].write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        import_csv(tmp_path / "out.h5", **paths, node_targets=["y"], task="binary")
    assert message in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["edges.csv", "nodes.csv"]


def test_graphs_are_counted_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_blocks_tiny(monkeypatch)
    paths = {name: tmp_path / f"{name}.csv" for name in ("edges", "nodes", "graphs")}
    for path, text in zip(
        paths.values(), (EDGES, NODES, "graph,y\n" + "".join(f"{n},1\n" for n in range(13))), strict=True
    ):
        path.write_text(text)
    with pytest.raises(InputError, match=r"nodes.csv, row 19: unknown graph '14'; expected a graph of the graph table"):
        import_csv(tmp_path / "out.h5", **paths)
    with paths["graphs"].open("a") as stream:
        stream.write("14,0\n7,1\n")
    with pytest.raises(InputError, match=r"graphs.csv, row 15: graph '7' again"):
        import_csv(tmp_path / "out.h5", **paths)


def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RowFile, "append", full)
    paths = {"edges": tmp_path / "edges.csv", "nodes": tmp_path / "nodes.csv"}
    for path, text in zip(paths.values(), (EDGES, NODES), strict=True):
        path.write_text(text)
    with pytest.raises(
        MachineError, match=r"out.h5: could not be written .No space left on device.. Free some disk space"
    ):
        import_csv(tmp_path / "out.h5", **paths, node_targets=["y"])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["edges.csv", "nodes.csv"]


# ------------------------------------------------------------------------------------------------ memory and progress


def peak_of(folder: Path, nodes: int, links: int, n_features: int) -> int:
    """Return the peak memory of the import of a random graph, in bytes."""
    rng = np.random.default_rng(0)
    pairs, x = rng.integers(0, nodes, (links, 2)), rng.integers(0, 99, (nodes, n_features))
    (folder / "e.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in pairs.tolist()))
    header = ",".join(["node", "y", *(f"f{column}" for column in range(n_features))])
    rows = (f"{node},{node % 2},{','.join(map(str, row))}\n" for node, row in enumerate(x.tolist()))
    (folder / "n.csv").write_text(header + "\n" + "".join(rows))
    tracemalloc.start()
    import_csv(folder / "out.h5", edges=folder / "e.csv", nodes=folder / "n.csv", node_targets=["y"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_edges_and_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (delimited, "BLOCK_FIELDS", 1 << 12),
        (files, "BLOCK_CHARS", 1 << 14),
        (edges, "BUCKETS", 256),
        (edges, "RUN", 1 << 14),
        (edges, "BLOCK", 1 << 13),
        (graph_tables, "BLOCK_BYTES", 1 << 14),
        (writer, "WAITING_BYTES", 1 << 14),
    ):
        monkeypatch.setattr(module, name, value)
    peak_of(tmp_path, 10, 10, 2)  # imports modules
    small = peak_of(tmp_path, 3_000, 30_000, 2)
    assert peak_of(tmp_path, 3_000, 150_000, 2) - small < 120_000  # bytes for edges
    # A block of rows of 102 columns costs about 300 kB and varies by 15 kB; all numbers as float32 are 1.2 MB.
    assert peak_of(tmp_path, 3_000, 30_000, 102) - small < 100 * 3_000 * np.dtype(np.float32).itemsize / 2


def test_progress_bars_end_at_their_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []

    def kept(*about: Any, **options: Any) -> Any:
        bars.append(counter(*about, **options))
        return bars[-1]

    monkeypatch.setattr(plain_csv, "counter", kept)
    make_blocks_tiny(monkeypatch)
    options = random_tables(tmp_path, "row numbers", 3, "graph", "", seed=1)
    import_csv(tmp_path / "out.h5", **options, progress=True)
    size = sum(path.stat().st_size for path in (options["edges"], options["nodes"], options["graphs"]))
    assert [(bar.desc, bar.unit, bar.total, bar.n) for bar in bars] == [
        ("reading: ", "B", size, size),
        ("writing: ", " rows", 2 * 60 + 27, 2 * 60 + 27),
    ]
