"""``data import ogb`` of node sets, such as ogbn-products: one graph in blocks; edges are sorted on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.importers.common import ImportSummary, folder_source
from gcnbatch.data.importers.edges import EdgeFile
from gcnbatch.data.importers.ogb_files import counts, label_targets, stored_splits
from gcnbatch.data.importers.scratch import Scratch
from gcnbatch.data.schema import Header, Target
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.numbers import NumberReader, open_numbers
from gcnbatch.data.writer import DatasetWriter
from gcnbatch.errors import InputError
from gcnbatch.progress import counter
from gcnbatch.text import counted, listed, quoted

EDGE_BLOCK = 1 << 18  # listed edges read at a time
FEATURE_BLOCK = 1 << 23  # feature values read at a time
LABELS = "node-label.csv.gz"
_READ = {"edge.csv.gz", "node-feat.csv.gz", LABELS, "num-node-list.csv.gz", "num-edge-list.csv.gz"}


def import_nodes(
    folder: Path, out: Path, task: Target | None, undirected: bool, self_loops: bool, progress: bool
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
            name=folder.resolve().name,
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
    summary = ImportSummary(out, header, notes=tuple(notes))
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
