"""``data import ogb`` of node sets, such as ogbn-products: one graph in blocks; edges are sorted on disk.

At the end stand the readers of files that graph sets have, too: counts, labels, splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from gcnbatch.data.graphs import GraphSet, Int64, Split
from gcnbatch.data.importers.common import ImportSummary, folder_source
from gcnbatch.data.importers.edges import EdgeFile
from gcnbatch.data.importers.scratch import Scratch
from gcnbatch.data.importers.targets import Targets, number_targets
from gcnbatch.data.schema import MAX_GRAPH_NODES, SPLIT_PARTS, Header, Target
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.numbers import NumberReader, load_numbers, open_numbers
from gcnbatch.data.writer import DatasetWriter
from gcnbatch.errors import InputError
from gcnbatch.fileio import Output
from gcnbatch.progress import counter
from gcnbatch.text import counted, listed, printable, quoted

EDGE_BLOCK = 1 << 18  # listed edges read at a time
FEATURE_BLOCK = 1 << 23  # feature values read at a time
LABELS = "node-label.csv.gz"
_READ = {"edge.csv.gz", "node-feat.csv.gz", LABELS, "num-node-list.csv.gz", "num-edge-list.csv.gz"}


def import_nodes(
    folder: Path, out: Output, task: Target | None, undirected: bool, self_loops: bool, progress: bool
) -> ImportSummary:
    """Convert a checked folder; see `gcnbatch.data.importers.ogb.import_ogb`.

    In memory are ids, labels, splits and blocks of the rest. Next to `out`, temporary files take 9 bytes per stored
    edge.
    """
    raw = folder / "raw"
    nodes, edges = (_only(raw / f"num-{what}-list.csv.gz") for what in ("node", "edge"))
    targets = label_targets(raw / LABELS, _labels(raw / LABELS, nodes), task)
    splits, split_files = stored_splits(folder / "split", nodes, "node")
    ids, notes = _ids(folder / "mapping", nodes)
    with ExitStack() as stack:
        writer = stack.enter_context(DatasetWriter(out))
        scratch = stack.enter_context(Scratch(out))
        bar = stack.enter_context(counter(edges + nodes, " rows", "reading", scale=True, quiet=not progress, delay=0.5))
        features = stack.enter_context(_open_features(raw / "node-feat.csv.gz", nodes))
        header = Header(
            name=printable(folder.resolve().name),
            level="node",
            target=targets.kind,
            task_names=targets.task_names,
            class_names=targets.class_names,
            n_features=features.width,
            channel_names=("edge",),
            source=folder_source(folder, [*sorted(raw.glob("*.csv.gz")), *split_files]),
        )
        node_ptr = np.array([0, nodes], np.int64)
        graph = GraphSet(
            header=header,
            node_ptr=node_ptr,
            edge_ptr=np.zeros(2, np.int64),
            src=np.zeros(0, np.int32),
            dst=np.zeros(0, np.int32),
            channel=np.zeros(0, np.uint8),
            weight=None,
            x=np.zeros((0, features.width), np.float32),
            y=targets.y,
            ids=ids,
        )
        listed_edges = EdgeFile(scratch, node_ptr, weighted=False, undirected=undirected)
        repeated = _read_edges(raw / "edge.csv.gz", edges, nodes, listed_edges, bar)
        blocks = listed_edges.blocks(np.zeros(1, np.uint8), 0 if self_loops else None, lambda rows: None)
        written = writer.append_blocks(
            graph,
            ((first, replace(graph, **vars(block))) for first, block in blocks),
            features.blocks(bar),
        )
        writer.finish(header, splits)
    how = "both ways, once" if undirected else "from its first node to its second, once"
    notes = [f"each listed edge counts {how}; {'I is added' if self_loops else 'no self-loops are added'}", *notes]
    if repeated:
        notes.append(f"{counted(repeated, 'listed edge joins', 'listed edges join')} a node to itself")
    if ignored := [path.name for path in sorted(raw.iterdir()) if path.name not in _READ]:
        notes.append(f"not read: {listed(ignored)} in {raw}")
    summary = ImportSummary(out.path, header, notes=tuple(notes))
    summary.add(written)
    return summary


def _only(path: Path) -> int:
    found = counts(path)
    if len(found) != 1:
        raise InputError(str(path), counted(len(found), "graph"), "one graph, as nodes have labels")
    return int(found[0])


def _labels(path: Path, nodes: int) -> NDArray[np.float64]:
    with open_numbers(path, np.float64) as reader:
        labels = reader.read(nodes)
        reader.finish()
    return labels


class _Features:
    """The rows of ``node-feat.csv.gz`` as float32, in blocks; `width` is their number of columns."""

    def __init__(self, path: Path, nodes: int) -> None:
        self._path, self._nodes, self._stack = path, nodes, ExitStack()

    def __enter__(self) -> _Features:
        self._reader: NumberReader = self._stack.enter_context(open_numbers(self._path, np.float32))
        self._first = self._reader.read(min(self._nodes, 1))
        self.width = self._first.shape[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def blocks(self, bar: tqdm[Any]) -> Iterator[NDArray[np.float32]]:
        """Yield all rows; at the end, none may be left."""
        rows, done = max(FEATURE_BLOCK // max(self.width, 1), 1), 0
        while done < self._nodes:
            x = self._first if done == 0 else self._reader.read(min(rows, self._nodes - done))
            if not np.isfinite(x).all():
                row, column = (int(i) for i in np.argwhere(~np.isfinite(x))[0])
                place = f"{self._path}, row {done + row + 1}, column {column + 1}"
                raise InputError(place, str(x[row, column]), "a finite number")
            yield x
            done += len(x)
            bar.update(len(x))
        self._reader.finish()


def _open_features(path: Path, nodes: int) -> _Features:
    if not path.exists():
        hint = "A set of other features can be made with 'gcnbatch data import csv'."
        raise InputError(str(path), "no such file", "features of the nodes", hint)
    if nodes == 0:
        raise InputError(str(path.parent / "num-node-list.csv.gz"), "0 nodes", "at least one")
    return _Features(path, nodes)


def _read_edges(path: Path, edges: int, nodes: int, out: EdgeFile, bar: tqdm[Any]) -> int:
    """Add the listed edges to `out`; return how many join a node to itself."""
    loops = 0
    with open_numbers(path, np.int64) as reader:
        for before in range(0, edges, EDGE_BLOCK):
            pairs = reader.read(min(EDGE_BLOCK, edges - before))
            if pairs.shape[1] != 2:
                raise InputError(str(path), f"{counted(pairs.shape[1], 'number')} per row", "2: the ends of an edge")
            wrong = ((pairs < 0) | (pairs >= nodes)).any(axis=1)
            if wrong.any():
                at = int(np.argmax(wrong))
                got = f"edge {pairs[at, 0]},{pairs[at, 1]}"
                raise InputError(f"{path}, row {before + at + 1}", got, f"nodes 0 to {nodes - 1}")
            src, dst = pairs.T
            loops += int((src == dst).sum())
            out.add(src, dst, np.zeros(len(src), np.uint8), None)
            bar.update(len(src))
        reader.finish()
    return loops


def _ids(mapping: Path, nodes: int) -> tuple[NDArray[np.str_], list[str]]:
    """Return the nodes' names from ``nodeidx2<name>.csv.gz``, else their numbers; and a note."""
    files = sorted(mapping.glob("nodeidx2*.csv.gz")) if mapping.is_dir() else []
    if len(files) != 1:
        return np.arange(nodes).astype(np.str_), ["ids: the nodes' numbers"]
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
    return np.concatenate(names)[np.argsort(order)], [f"ids: column {quoted(table.names[1])} of {path}"]


def counts(path: Path) -> Int64:
    """Return the number of nodes or edges of each graph."""
    values = load_numbers(path, np.int64)
    if values.shape[1] != 1 or (values < 0).any():
        raise InputError(str(path), "more than one number in a row, or a negative one", "one count per graph")
    if values.max() > MAX_GRAPH_NODES:
        raise InputError(str(path), f"a count of {values.max()}", f"at most {MAX_GRAPH_NODES}")
    return values[:, 0]


def label_targets(path: Path, y: NDArray[np.float64], task: Target | None) -> Targets:
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


def stored_splits(folder: Path, rows_of_set: int, what: str) -> tuple[dict[str, Split], list[Path]]:
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
