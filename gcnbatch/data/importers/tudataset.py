"""``data import tudataset``: text folders of the TUDataset collection (benchmark sets for graph kernels)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64
from gcnbatch.data.importers.common import (
    DEGREE_NAMES,
    MAX_CHANNELS,
    ImportSummary,
    compact,
    degree_features,
    folder_source,
    one_hot,
    source_folder,
    with_self_channel,
)
from gcnbatch.data.importers.edges import build_edges
from gcnbatch.data.importers.targets import Targets, number_targets
from gcnbatch.data.outputs import output_path
from gcnbatch.data.schema import Header
from gcnbatch.data.store import write_graphset
from gcnbatch.data.tables.numbers import load_numbers
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.imports import ImportTudatasetOptions
from gcnbatch.text import counted, printable

OPTIONAL = ("graph_labels", "graph_attributes", "node_labels", "node_attributes", "edge_labels")


@arguments(ImportTudatasetOptions)
def import_tudataset(given: ImportTudatasetOptions) -> ImportSummary:
    r"""Convert a folder with ``DS_A.txt`` and its other files; the file names give DS.

    Notes
    -----
    Graph labels become classes; without them, graph attributes become regression targets. Node labels (one-hot) and
    node attributes become features; without both, the one-hot degree is the feature. Each edge label is a channel.
    These files list edges in both directions; repeated edges count once. Edge attributes are ignored.
    Self-loops are in the only channel, or in an extra channel ``self`` after those of the edge labels.

    Raises
    ------
    InputError
        When a file is missing, or contradicts another one.

    Examples
    --------
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> files = {"A": "1, 2\n2, 1", "graph_indicator": "1\n1\n2", "graph_labels": "1\n-1"}
    >>> for part, text in files.items():
    ...     _ = Path(f"DS_{part}.txt").write_text(text)
    >>> gcnbatch.import_tudataset(".", "ds.h5").graphs
    2
    >>> gcnbatch.read("ds.h5").header.class_names
    ('-1', '1')
    """
    target = output_path(given.out)
    folder = source_folder(given.source)
    name = _find_name(folder)
    files = {part: folder / f"{name}_{part}.txt" for part in ("A", "graph_indicator", *OPTIONAL)}
    present = {part: file for part, file in files.items() if part not in OPTIONAL or file.exists()}
    node_ptr = _node_pointer(files["graph_indicator"])
    nodes, count = int(node_ptr[-1]), len(node_ptr) - 1
    pairs = _edges(files["A"], node_ptr)
    channel, channel_names = _channels(present.get("edge_labels"), len(pairs))
    channel_names, loop_channel = with_self_channel(channel_names, given.self_loops)
    edges = build_edges(node_ptr, pairs[:, 0], pairs[:, 1], channel=channel, loop_channel=loop_channel)
    x, feature_names = _features(present, nodes)
    if x is None:
        x, feature_names = degree_features(edges, node_ptr), DEGREE_NAMES
    targets = _targets(folder, name, present, count)
    header = Header(
        name=printable(name),
        level="graph",
        **targets.in_header(),
        n_features=x.shape[1],
        feature_names=feature_names,
        channel_names=channel_names,
        source=folder_source(folder, present.values()),
    )
    ids = np.arange(1, count + 1).astype(np.str_)
    graphs = GraphSet(header=header, node_ptr=node_ptr, **vars(edges), x=x, y=targets.y, ids=ids)
    write_graphset(target, graphs)
    summary = ImportSummary(target.path, header)
    summary.add(graphs)
    return summary


def _find_name(folder: Path) -> str:
    found = sorted(file.name.removesuffix("_A.txt") for file in folder.glob("*_A.txt"))
    if len(found) != 1:
        got = f"{len(found)} data sets ({', '.join(found)})" if found else "no file 'DS_A.txt'"
        raise InputError(str(folder), got, "the files of one TUDataset: DS_A.txt, DS_graph_indicator.txt, …")
    return found[0]


def _node_pointer(path: Path) -> Int64:
    graph = _column(path)
    falling = np.flatnonzero(graph[1:] < graph[:-1])
    if graph[0] < 1 or len(falling):
        row = 0 if graph[0] < 1 else int(falling[0]) + 1
        raise InputError(f"{path}, row {row + 1}", f"graph {graph[row]}", "graphs from 1 on, in rising order")
    if graph[-1] > len(graph) * 2 + 1024:
        raise InputError(f"{path}, row {len(graph)}", f"graph {graph[-1]}", "consecutive graph numbers")
    return np.searchsorted(graph, np.arange(1, int(graph[-1]) + 2)).astype(np.int64)


def _column(path: Path, rows: int | None = None) -> Int64:
    values = load_numbers(path, np.int64, rows=rows)
    if values.shape[1] != 1:
        raise InputError(str(path), f"{counted(values.shape[1], 'number')} per row", "1")
    return values[:, 0]


def _edges(path: Path, node_ptr: Int64) -> Int64:
    """Return the edges (E, 2) counted from 0 in the whole set."""
    pairs = load_numbers(path, np.int64) - 1
    if pairs.shape[1] != 2:
        raise InputError(str(path), f"{counted(pairs.shape[1], 'number')} per row", "2: the ends of an edge")
    outside = np.flatnonzero(((pairs < 0) | (pairs >= node_ptr[-1])).any(axis=1))
    if len(outside):
        ends = pairs[outside[0]] + 1
        raise InputError(f"{path}, row {outside[0] + 1}", f"edge {ends[0]}, {ends[1]}", f"nodes 1 to {node_ptr[-1]}")
    graph = np.searchsorted(node_ptr, pairs, side="right")
    across = np.flatnonzero(graph[:, 0] != graph[:, 1])
    if len(across):
        ends, owners = pairs[across[0]] + 1, graph[across[0]]
        got = f"edge {ends[0]}, {ends[1]} joins graphs {owners[0]} and {owners[1]}"
        raise InputError(f"{path}, row {across[0] + 1}", got, "both ends in one graph")
    return pairs


def _channels(path: Path | None, edges: int) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    if path is None:
        return np.zeros(edges, np.uint8), ("edge",)
    labels = load_numbers(path, np.int64, rows=edges)
    values, channel = np.unique(labels, axis=0, return_inverse=True)
    if len(values) >= MAX_CHANNELS:
        raise InputError(str(path), f"{len(values)} different edge labels", f"fewer than {MAX_CHANNELS}")
    names = tuple("label " + ",".join(str(part) for part in value) for value in values)
    return channel.reshape(-1).astype(np.uint8), names


def _features(files: dict[str, Path], nodes: int) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    blocks: list[NDArray[Any]] = []
    names: list[str] = []
    if "node_labels" in files:
        labels = load_numbers(files["node_labels"], np.int64, rows=nodes)
        for column in range(labels.shape[1]):
            values, codes = np.unique(labels[:, column], return_inverse=True)
            blocks.append(one_hot(codes, len(values)))
            names += [f"label{column or ''}={value}" for value in values]
    if "node_attributes" in files:
        attributes = load_numbers(files["node_attributes"], np.float64, rows=nodes)
        blocks.append(compact(attributes))
        names += [f"attribute{column}" for column in range(attributes.shape[1])]
    if not blocks:
        return None, ()
    kinds = {block.dtype for block in blocks}
    joined = np.concatenate(blocks, axis=1, dtype=None if len(kinds) == 1 else np.float32)
    return joined, tuple(names)


def _targets(folder: Path, name: str, files: dict[str, Path], graphs: int) -> Targets:
    if "graph_labels" in files:
        path = files["graph_labels"]
        labels = _column(path, graphs)
        classes, y = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(str(path), f"only class {classes[0]}", "at least 2 classes")
        names = tuple(str(label) for label in classes)
        return Targets(y.reshape(-1, 1).astype(np.int32), "multiclass", ("class",), names)
    if "graph_attributes" in files:
        path = files["graph_attributes"]
        values = load_numbers(path, np.float64, rows=graphs)
        return number_targets(path, [f"attribute{column}" for column in range(values.shape[1])], values, "regression")
    raise InputError(str(folder), f"neither '{name}_graph_labels.txt' nor '{name}_graph_attributes.txt'", "one of them")
