"""``data import ogb``: the raw folder of a data set of the Open Graph Benchmark (``raw/*.csv.gz``).

Sets of graphs, and of the nodes of one graph, such as ogbn-products, are read in blocks; edges are sorted on disk. In
memory are ids, labels, splits and blocks of the rest. Temporary files take 9 bytes per stored edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import Int64, Split, outline
from gcnbatch.data.importers.common import (
    DEGREE_NAMES,
    MAX_CHANNELS,
    ImportSummary,
    folder_source,
    one_hot,
    source_folder,
    with_self_channel,
    write_listed,
)
from gcnbatch.data.importers.edges import EdgeFile
from gcnbatch.data.importers.scratch import Scratch
from gcnbatch.data.importers.targets import Targets, number_targets
from gcnbatch.data.outputs import output_path
from gcnbatch.data.schema import MAX_GRAPH_NODES, SPLIT_PARTS, Header, Level, Target
from gcnbatch.data.sparse import row_pointer
from gcnbatch.data.store import DatasetWriter
from gcnbatch.data.tables.files import open_text
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.numbers import load_numbers, open_numbers
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.imports import ImportOgbOptions
from gcnbatch.progress import counter
from gcnbatch.text import counted, listed, printable, quoted

EDGE_BLOCK = 1 << 18  # listed edges read at a time
FEATURE_BLOCK = 1 << 23  # feature values read at a time
MAX_ONE_HOT = 2048
_LABELS, _FEATURES, _EDGE_FEATURES = "node-label.csv.gz", "node-feat.csv.gz", "edge-feat.csv.gz"
_READ = {"edge.csv.gz", _FEATURES, _LABELS, "num-node-list.csv.gz", "num-edge-list.csv.gz"}


@arguments(ImportOgbOptions)
def import_ogb(given: ImportOgbOptions) -> ImportSummary:
    r"""Convert an OGB folder of a graph set or a node set in blocks, with its splits.

    Notes
    -----
    Whole-numbered node features of graph sets are categories and become one-hot columns, with the values found in the
    data; others stay numbers. Without node features, the one-hot degree is the feature. A node set must have features;
    they stay numbers. Self-loops are in the only channel, or in an extra channel ``self``.

    Raises
    ------
    InputError
        When a file is missing, or contradicts another one.

    Examples
    --------
    >>> import gzip
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> raw = {"num-node-list": "2\n1\n1", "num-edge-list": "1\n0\n0", "edge": "0,1", "graph-label": "0\n1\n1"}
    >>> files = {f"raw/{name}": text for name, text in raw.items()}
    >>> files |= {"split/scaffold/train": "0", "split/scaffold/valid": "2", "split/scaffold/test": "1"}
    >>> for name, text in files.items():
    ...     path = Path(f"ogbg_mini/{name}.csv.gz")
    ...     path.parent.mkdir(parents=True, exist_ok=True)
    ...     _ = path.write_bytes(gzip.compress(text.encode()))
    >>> gcnbatch.import_ogb("ogbg_mini", "mini.h5").graphs
    3
    """
    target = output_path(given.out)
    folder = source_folder(given.source)
    raw = folder / "raw"
    level: Level = "node" if (raw / _LABELS).exists() else "graph"
    if level == "node" and given.edge_channels:
        raise InputError("--edge-channels", f"given for {folder}, a node set", hint="Leave it out.")
    n_nodes, n_edges = (_counts(raw / f"num-{what}-list.csv.gz", level) for what in ("node", "edge"))
    if len(n_nodes) != len(n_edges):
        raise InputError(str(raw / "num-edge-list.csv.gz"), counted(len(n_edges), "row"), f"{len(n_nodes)}")
    node_ptr, edge_ptr = map(row_pointer, (n_nodes, n_edges))
    nodes, edges = int(node_ptr[-1]), int(edge_ptr[-1])
    if level == "graph":
        path, rows = raw / "graph-label.csv.gz", len(n_nodes)
        labels = _graph_labels(path, rows)
    else:
        path, rows = raw / _LABELS, nodes
        labels = _node_labels(path, rows)
    targets = _targets(path, labels, given.task)
    splits, split_files = _stored_splits(folder / "split", rows, level)
    features = _graph_set_features(raw / _FEATURES, nodes) if level == "graph" else _features(raw / _FEATURES, nodes)
    kinds = _edge_kinds(raw / _EDGE_FEATURES, edges) if given.edge_channels else None
    channel_names = ("edge",) if kinds is None else tuple(f"type {value:g}" for value in kinds)
    channel_names, loop_channel = with_self_channel(channel_names, given.self_loops)
    mapping = folder / "mapping"
    ids, about_ids = (_molecule_ids(mapping / "mol.csv.gz", rows), "") if level == "graph" else _node_ids(mapping, rows)
    header = Header(
        name=printable(folder.resolve().name),
        level=level,
        **targets.in_header(),
        n_features=len(DEGREE_NAMES) if features is None else features.width,
        feature_names=DEGREE_NAMES if features is None else features.names,
        channel_names=channel_names,
        source=folder_source(folder, [*sorted(raw.glob("*.csv.gz")), *split_files]),
    )
    graphs = outline(header, node_ptr, targets.y, ids, np.uint8 if features is None else features.dtype)
    bar = counter(edges + nodes, " rows", "reading", scale=True, quiet=not given.progress, delay=0.5)
    with DatasetWriter(target) as writer, Scratch(target) as scratch, bar:
        listed_edges = EdgeFile(scratch, node_ptr, weighted=False, undirected=given.undirected)
        loops = _read_edges(raw, node_ptr, edge_ptr, kinds, listed_edges, bar.update)
        blocks = listed_edges.blocks(np.arange(MAX_CHANNELS, dtype=np.uint8), loop_channel, lambda rows: None)
        written = write_listed(writer, graphs, blocks, None if features is None else features.blocks(bar.update))
        writer.finish(header, splits)
    summary = ImportSummary(target.path, header)
    summary.add(written)
    if level == "node":
        how = "both ways, once" if given.undirected else "from its first node to its second, once"
        added = "I is added" if given.self_loops else "no self-loops are added"
        notes = [f"each listed edge counts {how}; {added}", about_ids]
        if loops:
            notes.append(f"{counted(loops, 'listed edge joins', 'listed edges join')} a node to itself")
        if ignored := [path.name for path in sorted(raw.iterdir()) if path.name not in _READ]:
            notes.append(f"not read: {listed(ignored)} in {raw}")
        summary.notes = tuple(notes)
    return summary


def _counts(path: Path, level: Level) -> Int64:
    """Return the number of nodes or edges of each graph."""
    values = load_numbers(path, np.int64)
    if values.shape[1] != 1 or (values < 0).any():
        raise InputError(str(path), "more than one number in a row, or a negative one", "one count per graph")
    if values.max() > MAX_GRAPH_NODES:
        raise InputError(str(path), f"a count of {values.max()}", f"at most {MAX_GRAPH_NODES}")
    if level == "node" and len(values) != 1:
        raise InputError(str(path), counted(len(values), "graph"), "one graph, as nodes have labels")
    return values[:, 0]


# ------------------------------------------------------------------------------------------------ features


@dataclass(frozen=True)
class _Features:
    """The rows of ``node-feat.csv.gz``: numbers, or one-hot columns of the `values` of each column."""

    path: Path
    nodes: int
    width: int
    names: tuple[str, ...] = ()
    values: list[NDArray[np.float64]] | None = None

    @property
    def dtype(self) -> type[np.generic]:
        return np.float32 if self.values is None else np.uint8

    def blocks(self, advance: Callable[[int], object]) -> Iterator[NDArray[Any]]:
        """Yield all rows; at the end, none may be left."""
        with open_numbers(self.path, np.float32 if self.values is None else np.float64) as reader:
            for block in reader.blocks(self.nodes, max(FEATURE_BLOCK // self.width, 1)):
                if self.values is None:
                    yield block
                else:
                    columns = zip(self.values, block.T, strict=True)
                    yield np.hstack([one_hot(np.searchsorted(known, column), len(known)) for known, column in columns])
                advance(len(block))


def _features(path: Path, nodes: int) -> _Features:
    """Return the features of a node set, which stay numbers."""
    if not path.exists():
        hint = "A set of other features can be made with 'gcnbatch data import csv'."
        raise InputError(str(path), "no such file", "features of the nodes", hint)
    if nodes == 0:
        raise InputError(str(path.parent / "num-node-list.csv.gz"), "0 nodes", "at least one")
    with open_numbers(path, np.float32) as reader:
        return _Features(path, nodes, reader.read(1).shape[1])


def _graph_set_features(path: Path, nodes: int) -> _Features | None:
    """Return the features of a graph set: whole numbers are categories; None without a file."""
    if not path.exists():
        return None
    found = _vocabulary(path, nodes)
    if all(np.array_equal(values, np.round(values)) for values in found) and sum(map(len, found)) <= MAX_ONE_HOT:
        names = tuple(f"feature{column}={value:g}" for column, values in enumerate(found) for value in values)
        return _Features(path, nodes, len(names), names, found)
    return _Features(path, nodes, len(found), tuple(f"feature{column}" for column in range(len(found))))


def _edge_kinds(path: Path, edges: int) -> NDArray[np.float64]:
    """Return the values of the first feature of edges, each of which is a channel."""
    kinds = _vocabulary(path, edges)[0]
    if len(kinds) >= MAX_CHANNELS:
        raise InputError(str(path), f"{counted(len(kinds), 'value')} in the first column", f"fewer than {MAX_CHANNELS}")
    return kinds


def _vocabulary(path: Path, rows: int) -> list[NDArray[np.float64]]:
    """Return the sorted distinct values of each column."""
    found: list[NDArray[np.float64]] = []
    with open_numbers(path, np.float64) as reader:
        for block in reader.blocks(rows, EDGE_BLOCK):
            known = found or [np.zeros(0)] * block.shape[1]
            found = [np.union1d(old, column) for old, column in zip(known, block.T, strict=True)]
    if not found:
        raise InputError(str(path), "no rows", "a row per node or edge")
    return found


# ------------------------------------------------------------------------------------------------ edges


def _read_edges(
    raw: Path,
    node_ptr: Int64,
    edge_ptr: Int64,
    kinds: NDArray[np.float64] | None,
    out: EdgeFile,
    advance: Callable[[int], object],
) -> int:
    """Add the listed edges to `out`; return how many join a node to itself."""
    path, loops, before = raw / "edge.csv.gz", 0, 0
    with ExitStack() as stack:
        reader = stack.enter_context(open_numbers(path, np.int64))
        features = None if kinds is None else stack.enter_context(open_numbers(raw / _EDGE_FEATURES, np.float64))
        for pairs in reader.blocks(int(edge_ptr[-1]), EDGE_BLOCK):
            if pairs.shape[1] != 2:
                raise InputError(str(path), f"{counted(pairs.shape[1], 'number')} per row", "2: the ends of an edge")
            counts = np.diff(edge_ptr.clip(before, before + len(pairs)))
            graph = np.repeat(np.arange(len(counts)), counts)
            limit = np.diff(node_ptr)[graph]
            wrong = ((pairs < 0) | (pairs >= limit[:, None])).any(axis=1)
            if wrong.any():
                index = int(np.argmax(wrong))
                where = f" in graph {graph[index]}" if len(node_ptr) > 2 else ""
                got = f"edge {pairs[index, 0]},{pairs[index, 1]}{where}"
                raise InputError(f"{path}, row {before + index + 1}", got, f"nodes 0 to {limit[index] - 1}")
            channel = np.zeros(len(pairs), np.uint8)
            if kinds is not None and features is not None:
                channel = np.searchsorted(kinds, features.read(len(pairs))[:, 0]).astype(np.uint8)
            src, dst = (pairs + node_ptr[graph][:, None]).T
            loops += int((src == dst).sum())
            out.add(src, dst, channel, None)
            before += len(pairs)
            advance(len(pairs))
    return loops


# ------------------------------------------------------------------------------------------------ labels, ids, splits


def _graph_labels(path: Path, graphs: int) -> NDArray[np.float64]:
    """Return the labels (G, K) of a graph set, NaN where missing."""
    with open_text(path) as file:
        lines = [[field.strip() or "nan" for field in line.split(",")] for line in file.lines()]
    if len(lines) != graphs:
        raise InputError(str(path), counted(len(lines), "row"), f"{graphs}, one per graph")
    width = len(lines[0])
    y = np.empty((graphs, width))
    for row, fields in enumerate(lines):
        if len(fields) != width:
            raise InputError(f"{path}, row {row + 1}", counted(len(fields), "label"), f"{width}")
        try:
            y[row] = [float(field) for field in fields]
        except ValueError as error:
            raise InputError(f"{path}, row {row + 1}", str(error), "numbers or blanks") from error
    return y


def _node_labels(path: Path, nodes: int) -> NDArray[np.float64]:
    with open_numbers(path, np.float64) as reader:
        labels = reader.read(nodes)
        reader.finish()
    return labels


def _targets(path: Path, y: NDArray[np.float64], task: Target | None) -> Targets:
    """Return labels `y (R, K)`, NaN where missing, as targets; one column of 0, 1, … C-1 is classes."""
    if np.isinf(y).any():
        raise InputError(f"{path}, row {np.argwhere(np.isinf(y))[0][0] + 1}", "an infinite label", "a finite number")
    names = [f"task{column}" for column in range(y.shape[1])]
    values = np.unique(y[~np.isnan(y)])
    classes = y.shape[1] == 1 and len(values) > 2 and np.array_equal(values, np.arange(len(values)))
    if task != "multiclass" and not (task is None and classes):
        return number_targets(path, names, y, task)
    if y.shape[1] != 1 or len(values) < 2:
        raise InputError(
            str(path),
            f"{counted(y.shape[1], 'column')}, {counted(len(values), 'value')}",
            "one column of at least 2 classes",
        )
    numbers = np.where(np.isnan(y), -1, np.searchsorted(values, y)).astype(np.int32)
    return Targets(numbers, "multiclass", ("class",), tuple(f"{value:g}" for value in values))


def _molecule_ids(mapping: Path, graphs: int) -> NDArray[np.str_]:
    """Return the molecules' ids if OGB lists them, else OGB's graph numbers from 0."""
    if mapping.exists():
        with open_table(mapping) as table:
            if "mol_id" in table.names:
                ids = list(map(str.strip, table.columns()["mol_id"]))
                if len(ids) != graphs:
                    raise InputError(str(mapping), counted(len(ids), "row"), f"{graphs}, one per graph")
                return np.array(ids, dtype=np.str_)
    return np.arange(graphs).astype(np.str_)


def _node_ids(mapping: Path, nodes: int) -> tuple[NDArray[np.str_], str]:
    """Return the nodes' names from ``nodeidx2<name>.csv.gz``, else their numbers; and a note."""
    files = sorted(mapping.glob("nodeidx2*.csv.gz")) if mapping.is_dir() else []
    if len(files) != 1:
        return np.arange(nodes).astype(np.str_), "ids: the nodes' numbers"
    (path,) = files
    names, numbers = [], []
    with open_table(path) as table:
        if len(table.names) != 2:
            raise InputError(str(path), counted(len(table.names), "column"), "2: a node's number and its name")
        for block in table.blocks():
            number, name = (block[column] for column in table.names)
            try:
                numbers.append(np.array(number, np.int64))
            except ValueError as error:
                raise InputError(f"{path}, column {quoted(table.names[0])}", str(error), "numbers of nodes") from error
            names.append(np.array(name, np.str_))
    order = np.concatenate([np.zeros(0, np.int64), *numbers])
    if not np.array_equal(np.sort(order), np.arange(nodes)):
        raise InputError(str(path), counted(len(order), "row"), f"each node from 0 to {nodes - 1} once")
    return np.concatenate(names)[np.argsort(order)], f"ids: column {quoted(table.names[1])} of {path}"


def _stored_splits(folder: Path, rows_of_set: int, what: str) -> tuple[dict[str, Split], list[Path]]:
    """Return the splits of a folder by name, and their files; `what` names a row."""
    splits, files = {}, []
    for kind in sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else ():
        rows = {}
        for part in SPLIT_PARTS:
            file = kind / f"{part}.csv.gz"
            rows[part] = load_numbers(file, np.int64).reshape(-1)
            files.append(file)
        every = np.concatenate(list(rows.values()))
        if (every < 0).any() or (every >= rows_of_set).any() or len(np.unique(every)) != len(every):
            raise InputError(
                str(kind), f"a {what} twice or out of range", f"{what}s 0 to {rows_of_set - 1}, each at most once"
            )
        splits[kind.name] = Split(**rows)
    return splits, files
