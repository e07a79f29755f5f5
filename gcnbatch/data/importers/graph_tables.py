"""Readers of the three tables of ``data import csv``, in blocks: graphs, nodes, edges.

Memory holds the names, the graph of each node, and targets. Features and edges go to disk as numbers, in the order of
the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64
from gcnbatch.data.importers.cells import check_stored_names, finite_numbers, sorted_labels
from gcnbatch.data.importers.common import MAX_CHANNELS, compact_type
from gcnbatch.data.importers.edges import EdgeFile
from gcnbatch.data.importers.names import Finder, NameList, Names, finder, number_type
from gcnbatch.data.importers.scratch import Scratch
from gcnbatch.data.importers.targets import TargetColumns
from gcnbatch.data.sparse import row_pointer
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.data.tables.table import Block, Column, Table
from gcnbatch.errors import InputError, nearest
from gcnbatch.options.imports import ImportCsvOptions
from gcnbatch.text import counted, quoted

EDGE_COLUMNS = ("graph", "src", "dst", "channel", "weight")
ID_BLOCK = 1 << 16  # nodes per block of ids
BLOCK_BYTES = 1 << 22  # of features returned at a time


def _require(table: Table, name: str) -> None:
    if name not in table.names:
        raise InputError(str(table.path), f"no column {quoted(name)}", hint=nearest(name, table.names))


# ------------------------------------------------------------------------------------------------ graphs


def read_graphs(table: Table, given: ImportCsvOptions) -> tuple[dict[str, int], TargetColumns]:
    """Return the graphs' numbers by name, and their targets."""
    _require(table, "graph")
    names = given.target_columns
    chosen = [name for name in table.names if name != "graph"] if names is None else names
    if not chosen:
        raise InputError(str(table.path), "no target column", "columns of targets beside 'graph'")
    targets = _targets(table, chosen, given)
    known: dict[str, int] = {}
    for block in table.blocks():
        for row, graph in enumerate(block["graph"], block.before + 1):
            if graph in known:
                raise InputError(f"{table.path}, row {row}", f"graph {quoted(graph)} again", "each graph once")
            known[graph] = len(known)
        targets.add([block[name] for name in targets.names], block.before)
    return known, targets


def _targets(table: Table, names: Sequence[str], given: ImportCsvOptions) -> TargetColumns:
    for name in names:
        _require(table, name)
    return TargetColumns(table.path, list(dict.fromkeys(names)), given.task, TableFormat(missing=tuple(given.missing)))


def _numbers(known: dict[str, int], column: Column) -> Int64:
    """Return the number of each name, -1 for an unknown one."""
    if isinstance(column, list):
        return np.fromiter(map(known.get, column, repeat(-1)), np.int64, len(column))
    starts = np.flatnonzero(np.concatenate([np.ones(1, bool), column[1:] != column[:-1]]))
    number = _numbers(known, list(map(str, column[starts].tolist())))
    return np.repeat(number, np.diff(starts, append=len(column)))


# ------------------------------------------------------------------------------------------------ nodes


@dataclass(frozen=True)
class Nodes:
    """All nodes, sorted by graph and then in the table's order.

    `order (N,)` has the table's row of each node, `names (N,)` its name. `graphs` maps a name to a graph, `finder` a
    graph and a name to a node. `targets` and `features` are in the table's order.
    """

    node_ptr: Int64
    order: Int64
    graphs: dict[str, int]
    names: Names
    finder: Finder
    targets: TargetColumns | None
    features: FeatureFile | None

    def ids(self) -> NDArray[np.str_]:
        """Return the ids: ``node``, or ``graph/node`` if there are several graphs."""
        graphs, parts = list(self.graphs), []
        for first in range(0, len(self.names), ID_BLOCK):
            node = np.arange(first, min(first + ID_BLOCK, len(self.names)))
            names = list(map(str, self.names[node].tolist()))
            if len(graphs) > 1:
                graph = np.searchsorted(self.node_ptr, node, side="right") - 1
                names = [f"{graphs[owner]}/{name}" for owner, name in zip(graph.tolist(), names, strict=True)]
            parts.append(np.array(names, dtype=np.str_))
        return np.concatenate(parts)


def read_nodes(table: Table, scratch: Scratch, known: dict[str, int] | None, given: ImportCsvOptions) -> Nodes:
    """Read the nodes and their targets; each graph must be in `known`, unless that is None."""
    for name in ("node",) if known is None else ("node", "graph"):
        _require(table, name)
    names, targets = given.node_targets, None
    if names is not None:
        if not names or {"graph", "node"} & set(names):
            raise InputError("--node-targets", ",".join(names) or "no name", "target columns of the node table")
        targets = _targets(table, names, given)
    feature_names = tuple(name for name in table.names if name not in {"graph", "node", *(names or ())})
    check_stored_names(table.path, feature_names)
    features = FeatureFile(scratch, table.path, feature_names) if feature_names else None
    graphs = {} if known is None else known
    listed, graph_of = NameList(), list[NDArray[np.int32]]()
    for block in table.blocks():
        column = block["graph"] if "graph" in table.names else [""] * len(block)
        for graph in dict.fromkeys(column) if known is None else ():
            graphs.setdefault(graph, len(graphs))
        graph_of.append(_numbers(graphs, column).astype(np.int32))
        if (graph_of[-1] < 0).any():
            row = int(np.argmax(graph_of[-1] < 0))
            place = f"{table.path}, row {block.before + row + 1}"
            raise InputError(place, f"unknown graph {quoted(column[row])}", "a graph of the graph table")
        listed.append(block.column("node"))
        if targets is not None:
            targets.add([block[name] for name in targets.names], block.before)
        if features is not None:
            features.add(block)
    if not graph_of:
        raise InputError(str(table.path), "no row below the header line", "at least one node")
    return _arranged(table.path, graphs, graph_of, listed, targets, features)


def _arranged(
    path: Path,
    graphs: dict[str, int],
    graph_of: list[NDArray[np.int32]],
    names: NameList,
    targets: TargetColumns | None,
    features: FeatureFile | None,
) -> Nodes:
    """Sort nodes by graph (`graph_of` has their numbers); a name must be unique in its graph."""
    graph = np.concatenate(graph_of)
    graph_of.clear()
    order = np.argsort(graph, kind="stable").astype(number_type(len(graph)))
    node_ptr = row_pointer(np.bincount(graph, minlength=len(graphs)))
    del graph
    ordered = names.names(order)
    found = finder(ordered, node_ptr)
    again = found.repeated()
    if again is not None:
        place = f"{path}, row {order[again] + 1}"
        (name,) = ordered[np.array([again])].tolist()
        raise InputError(place, f"node {quoted(name)} again", "each node once in its graph")
    return Nodes(node_ptr, order, graphs, ordered, found, targets, features)


# ------------------------------------------------------------------------------------------------ edges


@dataclass(frozen=True)
class ListedEdges:
    """All listed edges, the names of their channels, and the final number of each channel in `file`."""

    file: EdgeFile
    channel_names: tuple[str, ...]
    channel_numbers: NDArray[np.uint8]


def read_edges(table: Table, scratch: Scratch, nodes: Nodes, undirected: bool) -> ListedEdges:
    """Read all edges between `nodes`."""
    for name in table.names:
        if name not in EDGE_COLUMNS:
            raise InputError(str(table.path), f"unknown column {quoted(name)}", f"only {', '.join(EDGE_COLUMNS)}")
    one_graph = list(nodes.graphs) == [""]
    for name in ("src", "dst") if one_graph else ("src", "dst", "graph"):
        _require(table, name)
    listed = EdgeFile(scratch, nodes.node_ptr, weighted="weight" in table.names, undirected=undirected)
    channels: dict[str, int] = {}
    for block in table.blocks():
        src, dst = _ends(table.path, block, nodes)
        channel, weight = np.zeros(len(src), np.uint8), None
        if "channel" in table.names:
            texts = block["channel"]
            for channel_name in dict.fromkeys(texts):
                channels.setdefault(channel_name, len(channels))
            channel = _numbers(channels, texts).astype(np.uint8)  # too many are refused below
        if "weight" in table.names:
            weight = finite_numbers(table.path, "weight", block.columns["weight"], block.before).astype(np.float32)
        listed.add(src, dst, channel, weight)
    names = sorted_labels(set(channels))
    if len(names) >= MAX_CHANNELS:
        place = f"{table.path}, column 'channel'"
        raise InputError(place, counted(len(names), "different value"), f"fewer than {MAX_CHANNELS}")
    place_of = {name: place for place, name in enumerate(names)}
    numbers = np.array([place_of[name] for name in channels] or [0], dtype=np.uint8)
    return ListedEdges(listed, tuple(names) or ("edge",), numbers)


def _ends(path: Path, block: Block, nodes: Nodes) -> tuple[Int64, Int64]:
    """Return both ends of every edge as node numbers of the whole set."""
    columns = {name: block.column(name) for name in ("graph", "src", "dst") if name in block.columns}
    graph = np.zeros(len(block), np.int64)
    if "graph" in columns:
        graph = _numbers(nodes.graphs, columns["graph"])
    src, dst = (nodes.finder.find(np.maximum(graph, 0), columns[name]) for name in ("src", "dst"))
    wrong = (graph < 0) | (src < 0) | (dst < 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        place = f"{path}, row {block.before + row + 1}"
        if graph[row] < 0:
            raise InputError(place, f"unknown graph {quoted(columns['graph'][row])}", "a graph of the node table")
        where = f" of graph {quoted(columns['graph'][row])}" if "graph" in columns else ""
        node = columns["src" if src[row] < 0 else "dst"][row]
        raise InputError(place, f"unknown node {quoted(node)}{where}", "a node of the node table")
    return src, dst


class FeatureFile:
    """The feature columns `names` (at least one) of the table `path`; each number takes 4 bytes on disk.

    Attributes
    ----------
    dtype : type
        The type that `compact` would choose for all rows so far.
    """

    def __init__(self, scratch: Scratch, path: Path, names: tuple[str, ...]) -> None:
        self._path, self.names = path, names
        self._rows = scratch.rows(np.float32, len(names))
        self._low, self._high, self._whole = np.inf, -np.inf, True

    @property
    def dtype(self) -> type[np.generic]:
        """Type of the features."""
        return compact_type(self._low, self._high) if self._whole else np.float32

    def add(self, block: Block) -> None:
        """Add the features of the next rows of the table.

        Raises
        ------
        InputError
            For text that is not a finite 32-bit number.
        """
        columns = (finite_numbers(self._path, name, block.columns[name], block.before) for name in self.names)
        x = np.stack(list(columns), axis=1)
        if self._whole:
            self._whole = np.array_equal(x, np.round(x))
            self._low, self._high = min(self._low, x.min()), max(self._high, x.max())
        self._rows.append(x.astype(np.float32))

    def blocks(self, order: NDArray[np.integer[Any]], advance: Callable[[int], object]) -> Iterator[NDArray[Any]]:
        """Yield the rows ``order[0], order[1], …`` of the table in blocks; call `advance` with the size of each."""
        step = max(1, BLOCK_BYTES // (4 * len(self.names)))
        for first in range(0, len(order), step):
            rows = order[first : first + step]
            cuts = np.flatnonzero(np.diff(rows) != 1) + 1
            starts, lasts = rows[np.concatenate([[0], cuts])], rows[np.concatenate([cuts, [len(rows)]]) - 1]
            parts = list(zip(starts.tolist(), (lasts + 1).tolist(), strict=True))
            yield self._rows.read(parts).astype(self.dtype)
            advance(len(rows))
