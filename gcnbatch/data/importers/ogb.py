"""``data import ogb``: the raw folder of a data set of the Open Graph Benchmark (``raw/*.csv.gz``).

This module converts graph-property sets, `gcnbatch.data.importers.ogb_nodes` node-property sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64, bounded_ranges
from gcnbatch.data.importers.common import (
    DEGREE_NAMES,
    MAX_CHANNELS,
    ImportSummary,
    degree_features,
    folder_source,
    source_folder,
    with_self_channel,
)
from gcnbatch.data.importers.edges import build_edges
from gcnbatch.data.importers.ogb_nodes import LABELS, counts, import_nodes, label_targets, stored_splits
from gcnbatch.data.importers.targets import Targets
from gcnbatch.data.outputs import output_path
from gcnbatch.data.schema import Header, Target
from gcnbatch.data.store import DatasetWriter
from gcnbatch.data.tables.files import open_text
from gcnbatch.data.tables.formats import open_table
from gcnbatch.data.tables.numbers import open_numbers
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.imports import ImportOgbOptions
from gcnbatch.text import counted, printable

BLOCK_ROWS = 500_000  # nodes (and about as many edges) in memory at a time
MAX_ONE_HOT = 2048


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
    if (raw / LABELS).exists():
        if given.edge_channels:
            raise InputError("--edge-channels", f"given for {folder}, a node set", hint="Leave it out.")
        return import_nodes(folder, target, given.task, given.undirected, given.self_loops, given.progress)
    sizes = [counts(raw / f"num-{what}-list.csv.gz") for what in ("node", "edge")]
    if len(sizes[0]) != len(sizes[1]):
        raise InputError(str(raw / "num-edge-list.csv.gz"), counted(len(sizes[1]), "row"), f"{len(sizes[0])}")
    targets = _targets(raw / "graph-label.csv.gz", len(sizes[0]), given.task)
    splits, split_files = stored_splits(folder / "split", len(sizes[0]), "graph")
    reader = _Raw(raw, sizes[0], sizes[1], given.edge_channels)
    channel_names, loop_channel = with_self_channel(reader.channel_names, given.self_loops)
    header = Header(
        name=printable(folder.resolve().name),
        level="graph",
        target=targets.kind,
        task_names=targets.task_names,
        class_names=targets.class_names,
        n_features=len(reader.feature_names),
        feature_names=reader.feature_names,
        channel_names=channel_names,
        source=folder_source(folder, [*sorted(raw.glob("*.csv.gz")), *split_files]),
    )
    ids = _ids(folder / "mapping" / "mol.csv.gz", len(sizes[0]))
    summary = ImportSummary(target.path, header)
    with DatasetWriter(target) as writer:
        for block in reader.blocks():
            edges = build_edges(
                block.node_ptr,
                block.src,
                block.dst,
                channel=block.channel,
                undirected=given.undirected,
                loop_channel=loop_channel,
            )
            part = GraphSet(
                header=header,
                node_ptr=block.node_ptr,
                **vars(edges),
                x=degree_features(edges, block.node_ptr) if block.x is None else block.x,
                y=targets.y[block.graphs],
                ids=ids[block.graphs],
            )
            writer.append(part)
            summary.add(part)
        writer.finish(header, splits)
    return summary


@dataclass(frozen=True)
class _GraphBlock:
    """Consecutive graphs of the files; node numbers count from the block's first node."""

    graphs: slice
    node_ptr: Int64
    src: Int64
    dst: Int64
    channel: NDArray[np.uint8]
    x: NDArray[Any] | None


class _Raw:
    """Reader of ``raw/`` in blocks of whole graphs; it collects the vocabularies first."""

    def __init__(self, raw: Path, n_nodes: Int64, n_edges: Int64, edge_channels: bool) -> None:
        self._raw, self._n_nodes, self._n_edges = raw, n_nodes, n_edges
        self._values: list[NDArray[Any]] | None = None
        features = raw / "node-feat.csv.gz"
        self._has_features = features.exists()
        if self._has_features:
            vocabulary = _vocabulary(features, int(n_nodes.sum()))
            whole = all(np.array_equal(values, np.round(values)) for values in vocabulary)
            if whole and sum(len(values) for values in vocabulary) <= MAX_ONE_HOT:
                self._values = vocabulary
                pairs = [(column, value) for column, values in enumerate(vocabulary) for value in values]
                self.feature_names = tuple(f"feature{column}={value:g}" for column, value in pairs)
            else:
                self.feature_names = tuple(f"feature{column}" for column in range(len(vocabulary)))
        else:
            self.feature_names = DEGREE_NAMES
        self._kinds: NDArray[Any] | None = None
        self.channel_names: tuple[str, ...] = ("edge",)
        if edge_channels:
            self._kinds = _vocabulary(raw / "edge-feat.csv.gz", int(n_edges.sum()))[0]
            if len(self._kinds) >= MAX_CHANNELS:
                place = str(raw / "edge-feat.csv.gz")
                raise InputError(
                    place, f"{counted(len(self._kinds), 'value')} in the first column", f"fewer than {MAX_CHANNELS}"
                )
            self.channel_names = tuple(f"type {value:g}" for value in self._kinds)

    def blocks(self) -> Iterator[_GraphBlock]:
        """Yield the set in blocks; at the end, no file may have rows left."""
        with ExitStack() as stack:
            edge = stack.enter_context(open_numbers(self._raw / "edge.csv.gz", np.int64))
            features = kinds = None
            if self._has_features:
                features = stack.enter_context(open_numbers(self._raw / "node-feat.csv.gz", np.float64))
            if self._kinds is not None:
                kinds = stack.enter_context(open_numbers(self._raw / "edge-feat.csv.gz", np.float64))
            rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._n_nodes + self._n_edges)])
            for first, stop in bounded_ranges(rows, BLOCK_ROWS):
                nodes, edges = int(self._n_nodes[first:stop].sum()), int(self._n_edges[first:stop].sum())
                node_ptr = np.concatenate([[0], np.cumsum(self._n_nodes[first:stop])]).astype(np.int64)
                src, dst = self._ends(edge.read(edges), first, stop, node_ptr)
                channel = np.zeros(edges, np.uint8)
                if kinds is not None and self._kinds is not None and edges:
                    channel = np.searchsorted(self._kinds, kinds.read(edges)[:, 0]).astype(np.uint8)
                x = None if features is None else self._encode(features.read(nodes), nodes)
                yield _GraphBlock(slice(first, stop), node_ptr, src, dst, channel, x)
            edge.finish()

    def _ends(self, pairs: Int64, first: int, stop: int, node_ptr: Int64) -> tuple[Int64, Int64]:
        if len(pairs) == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        path = self._raw / "edge.csv.gz"
        if pairs.shape[1] != 2:
            raise InputError(str(path), f"{counted(pairs.shape[1], 'number')} per row", "2: the ends of an edge")
        graph = np.repeat(np.arange(stop - first), self._n_edges[first:stop])
        limit = self._n_nodes[first:stop][graph]
        wrong = np.flatnonzero(((pairs < 0) | (pairs >= limit[:, None])).any(axis=1))
        if len(wrong):
            at = int(wrong[0])
            row = int(self._n_edges[:first].sum()) + at + 1
            got = f"edge {pairs[at, 0]},{pairs[at, 1]} in graph {first + graph[at]}"
            raise InputError(f"{path}, row {row}", got, f"nodes 0 to {limit[at] - 1}")
        offset = node_ptr[graph]
        return pairs[:, 0] + offset, pairs[:, 1] + offset

    def _encode(self, values: NDArray[Any], nodes: int) -> NDArray[Any]:
        if self._values is None:
            return values.astype(np.float32).reshape(nodes, len(self.feature_names))
        x = np.zeros((nodes, len(self.feature_names)), dtype=np.uint8)
        first = 0
        for column, known in enumerate(self._values):
            if nodes:
                x[np.arange(nodes), first + np.searchsorted(known, values[:, column])] = 1
            first += len(known)
        return x


def _vocabulary(path: Path, rows: int) -> list[NDArray[Any]]:
    """Return the sorted distinct values of each column, read in blocks."""
    found: list[NDArray[Any]] = []
    with open_numbers(path, np.float64) as reader:
        for first in range(0, rows, BLOCK_ROWS):
            block = reader.read(min(BLOCK_ROWS, rows - first))
            if not np.isfinite(block).all():
                row, column = (int(i) for i in np.argwhere(~np.isfinite(block))[0])
                place = f"{path}, row {first + row + 1}, column {column + 1}"
                raise InputError(place, str(block[row, column]), "a finite number")
            known = found or [np.zeros(0)] * block.shape[1]
            found = [np.union1d(old, block[:, column]) for column, old in enumerate(known)]
        reader.finish()
    if not found:
        raise InputError(str(path), "no rows", "a row per node or edge")
    return found


def _targets(path: Path, graphs: int, task: Target | None) -> Targets:
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
    return label_targets(path, y, task)


def _ids(mapping: Path, graphs: int) -> NDArray[np.str_]:
    """Return the molecules' ids if OGB lists them, else OGB's graph numbers from 0."""
    if mapping.exists():
        with open_table(mapping) as table:
            if "mol_id" in table.names:
                ids = list(map(str.strip, table.columns()["mol_id"]))
                if len(ids) != graphs:
                    raise InputError(str(mapping), counted(len(ids), "row"), f"{graphs}, one per graph")
                return np.array(ids, dtype=np.str_)
    return np.arange(graphs).astype(np.str_)
