"""``data import csv``: an edge table, a node table and, for graph-level targets, a graph table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64
from gcnbatch.data.importers.common import (
    MAX_CHANNELS,
    StrPath,
    Summary,
    build_edges,
    compact,
    degree_features,
    output_path,
    sha256,
    with_self_channel,
)
from gcnbatch.data.importers.tables import Targets, make_targets, numbers, read_columns, sorted_labels
from gcnbatch.data.schema import Header, Target
from gcnbatch.data.store import write_graphset
from gcnbatch.errors import InputError, nearest

EDGE_COLUMNS = ("graph", "src", "dst", "channel", "weight")


def import_csv(
    out: StrPath,
    *,
    edges: StrPath,
    nodes: StrPath,
    graphs: StrPath | None = None,
    target_columns: list[str] | None = None,
    node_targets: list[str] | None = None,
    task: Target | None = None,
    undirected: bool = True,
    self_loops: bool = True,
    name: str = "",
) -> Summary:
    """Convert plain CSV tables; names of graphs and nodes are any texts, and blanks in targets are missing labels.

    Parameters
    ----------
    out : path
        HDF5 file.
    edges : path
        Columns ``graph, src, dst`` and optionally ``channel`` (any text) and ``weight`` (a number).
    nodes : path
        Columns ``graph, node``; every other column is a feature (a number) or a node target. Every node is listed here.
    graphs : path
        Columns ``graph`` and the targets: a graph-level set. Its order is the order of the graphs.
    target_columns : list of str
        Targets in `graphs`; None: all columns but ``graph``.
    node_targets : list of str
        Targets in `nodes`: a node-level set. Give either this or `graphs`.
    task : str
        Kind of the targets; None: binary if all values are 0, 1 or blank, else regression.
    undirected, self_loops : bool
        Count each edge both ways; store A + I (a node that lists its own self-loop keeps that one).

    Notes
    -----
    Without a ``graph`` column everything is one graph. Of an edge listed twice the first weight counts. Without feature
    columns the one-hot degree is used.
    """
    path = output_path(out)
    if (graphs is None) == (node_targets is None):
        got = "both --graphs and --node-targets" if graphs is not None else "neither --graphs nor --node-targets"
        raise InputError("targets", got, "a table of graphs with targets, or names of target columns in the node table")
    node_table, edge_table = read_columns(Path(nodes)), read_columns(Path(edges))
    known = _graph_numbers(Path(graphs), graph_table := read_columns(Path(graphs))) if graphs is not None else None
    layout = _layout(Path(nodes), node_table, known)
    channel, channel_names = _channels(Path(edges), edge_table)
    channel_names, loop_channel = with_self_channel(channel_names, self_loops)
    src, dst = _ends(Path(edges), edge_table, layout)
    weight = _weights(Path(edges), edge_table)
    joined = build_edges(
        layout.node_ptr, src, dst, channel=channel, weight=weight, undirected=undirected, loop_channel=loop_channel
    )
    if known is not None:
        targets = _graph_targets(Path(str(graphs)), graph_table, target_columns, task)
        ids = np.array(list(known), dtype=np.str_)
    else:
        targets = _node_targets(Path(nodes), node_table, node_targets or [], task)
        targets = Targets(targets.y[layout.order], targets.kind, targets.task_names, targets.class_names)
        ids = layout.node_names()
    x, feature_names = _features(Path(nodes), node_table, set(node_targets or ()) | {"graph", "node"}, layout.order)
    if x is None:
        x, feature_names = degree_features(joined, layout.node_ptr)
    header = Header(
        name=name or path.stem,
        level="graph" if known is not None else "node",
        target=targets.kind,
        task_names=targets.task_names,
        class_names=targets.class_names,
        n_features=x.shape[1],
        feature_names=feature_names,
        channel_names=channel_names,
        source={Path(file).name: f"sha256 {sha256(Path(file))}" for file in (edges, nodes, graphs) if file is not None},
    )
    result = GraphSet(header=header, node_ptr=layout.node_ptr, **vars(joined), x=x, y=targets.y, ids=ids)
    write_graphset(path, result)
    summary = Summary(path, header)
    summary.add(result)
    return summary


@dataclass(frozen=True)
class _Layout:
    """Where each node of the table goes: sorted by graph, else in the table's order.

    `order (N,)` are table rows by node number; `number` finds a node by (graph number, name); `graphs` a graph by name.
    """

    node_ptr: Int64
    order: Int64
    graphs: dict[str, int]
    number: dict[tuple[int, str], int]

    def node_names(self) -> NDArray[np.str_]:
        """Return ``node``, or ``graph/node`` where there are several graphs."""
        graph_names = list(self.graphs)
        several = len(graph_names) > 1
        names = [f"{graph_names[graph]}/{node}" if several else node for graph, node in self.number]
        return np.array(names, dtype=np.str_)


def _column(path: Path, table: dict[str, list[str]], name: str) -> list[str]:
    if name not in table:
        raise InputError(str(path), f"no column '{name}'", hint=nearest(name, table))
    return table[name]


def _graph_column(path: Path, table: dict[str, list[str]], rows: int) -> list[str]:
    return table.get("graph", [""] * rows)


def _graph_numbers(path: Path, table: dict[str, list[str]]) -> dict[str, int]:
    known: dict[str, int] = {}
    for row, graph in enumerate(_column(path, table, "graph")):
        if graph in known:
            raise InputError(f"{path}, row {row + 1}", f"graph '{graph}' again", "each graph once")
        known[graph] = row
    return known


def _layout(path: Path, table: dict[str, list[str]], known: dict[str, int] | None) -> _Layout:
    nodes = _column(path, table, "node")
    if not nodes:
        raise InputError(str(path), "no row below the header line", "at least one node")
    if known is not None:
        _column(path, table, "graph")
    found = {} if known is None else known
    numbers_of = np.empty(len(nodes), dtype=np.int64)
    for row, graph in enumerate(_graph_column(path, table, len(nodes))):
        if known is not None and graph not in known:
            raise InputError(f"{path}, row {row + 1}", f"unknown graph '{graph}'", "a graph of the graph table")
        numbers_of[row] = found.setdefault(graph, len(found))
    order = np.argsort(numbers_of, kind="stable")
    number: dict[tuple[int, str], int] = {}
    for place, row in enumerate(order):
        key = (int(numbers_of[row]), nodes[row])
        if key in number:
            raise InputError(f"{path}, row {row + 1}", f"node '{nodes[row]}' again", "each node once in its graph")
        number[key] = place
    node_ptr = np.searchsorted(numbers_of[order], np.arange(len(found) + 1)).astype(np.int64)
    return _Layout(node_ptr, order, found, number)


def _ends(path: Path, table: dict[str, list[str]], layout: _Layout) -> tuple[Int64, Int64]:
    """Return both ends of every edge as node numbers of the whole set."""
    for name in table:
        if name not in EDGE_COLUMNS:
            raise InputError(str(path), f"unknown column '{name}'", f"only {', '.join(EDGE_COLUMNS)}")
    ends = [_column(path, table, name) for name in ("src", "dst")]
    if "graph" not in table and list(layout.graphs) != [""]:
        _column(path, table, "graph")
    pairs = np.empty((2, len(ends[0])), dtype=np.int64)
    for row, graph in enumerate(_graph_column(path, table, len(ends[0]))):
        if graph not in layout.graphs:
            raise InputError(f"{path}, row {row + 1}", f"unknown graph '{graph}'", "a graph of the node table")
        for side, names in enumerate(ends):
            node = layout.number.get((layout.graphs[graph], names[row]))
            if node is None:
                where = f" of graph '{graph}'" if "graph" in table else ""
                got = f"unknown node '{names[row]}'{where}"
                raise InputError(f"{path}, row {row + 1}", got, "a node of the node table")
            pairs[side, row] = node
    return pairs[0], pairs[1]


def _channels(path: Path, table: dict[str, list[str]]) -> tuple[NDArray[np.uint8] | None, tuple[str, ...]]:
    if "channel" not in table or not table["channel"]:
        return None, ("edge",)
    names = sorted_labels(set(table["channel"]))
    if len(names) >= MAX_CHANNELS:
        raise InputError(f"{path}, column 'channel'", f"{len(names)} different values", f"fewer than {MAX_CHANNELS}")
    number = {name: place for place, name in enumerate(names)}
    return np.array([number[name] for name in table["channel"]], dtype=np.uint8), tuple(names)


def _weights(path: Path, table: dict[str, list[str]]) -> NDArray[np.float32] | None:
    if "weight" not in table:
        return None
    return _finite(path, "weight", table["weight"]).astype(np.float32)


def _finite(path: Path, name: str, column: list[str]) -> NDArray[np.float64]:
    values = numbers(path, name, column)
    wrong = np.flatnonzero(~(np.abs(values) <= float(np.finfo(np.float32).max)))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(f"{path}, row {row + 1}, column '{name}'", repr(column[row]), "a 32-bit floating-point number")
    return values


def _features(
    path: Path, table: dict[str, list[str]], others: set[str], order: Int64
) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    names = tuple(name for name in table if name not in others)
    if not names:
        return None, ()
    return compact(np.stack([_finite(path, name, table[name]) for name in names], axis=1)[order]), names


def _graph_targets(path: Path, table: dict[str, list[str]], names: list[str] | None, task: Target | None) -> Targets:
    chosen = [name for name in table if name != "graph"] if names is None else names
    if not chosen:
        raise InputError(str(path), "no target column", "columns of targets beside 'graph'")
    return make_targets(path, {name: _column(path, table, name) for name in chosen}, task)


def _node_targets(path: Path, table: dict[str, list[str]], names: list[str], task: Target | None) -> Targets:
    if not names or {"graph", "node"} & set(names):
        raise InputError("--node-targets", ",".join(names) or "no name", "target columns of the node table")
    return make_targets(path, {name: _column(path, table, name) for name in names}, task)
