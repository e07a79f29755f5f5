"""Common parts of the importers: checks of paths, the header's source, features and the summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64
from gcnbatch.data.importers.edges import Edges
from gcnbatch.data.label_ranges import LabelRange, known_labels
from gcnbatch.data.schema import UNLABELLED, Header
from gcnbatch.data.writer import DatasetWriter
from gcnbatch.errors import InputError
from gcnbatch.fileio import StrPath, sha256
from gcnbatch.text import counted, listed, printable, quoted

MAX_CHANNELS = 256
MAX_DEGREE = 63
NODE_BLOCK = 1 << 16  # nodes per block of degrees
DEGREE_NAMES = (*(f"degree={number}" for number in range(MAX_DEGREE)), f"degree>={MAX_DEGREE}")


def source_folder(path: StrPath) -> Path:
    """Check that `path` is a folder; return it."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(str(folder), "is a file" if folder.exists() else "no such folder", "the data set's folder")
    return folder


def folder_source(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """Return the header's `source` for several files: the folder's name and each file's SHA-256."""
    digests = {printable(path.relative_to(folder).as_posix()): f"sha256 {sha256(path)}" for path in files}
    return {"folder": printable(folder.resolve().name), **digests}


def with_self_channel(channels: tuple[str, ...], self_loops: bool) -> tuple[tuple[str, ...], int | None]:
    """Return the channel names and the channel of self-loops: the only channel, else an extra one named ``self``."""
    if not self_loops:
        return channels, None
    if len(channels) == 1:
        return channels, 0
    return (*channels, "self"), len(channels)


def compact(x: NDArray[Any]) -> NDArray[Any]:
    """Return features as uint8 or int8 if that is exact, else as float32."""
    whole = x.size > 0 and np.array_equal(x, np.round(x))
    return x.astype(compact_type(x.min(), x.max()) if whole else np.float32)


def compact_type(low: float, high: float) -> type[np.generic]:
    """Return the smallest type for features that are whole numbers from `low` to `high`."""
    if low >= 0 and high <= 255:
        return np.uint8
    return np.int8 if low >= -128 and high <= 127 else np.float32


def one_hot(codes: NDArray[np.integer[Any]], width: int) -> NDArray[np.uint8]:
    """Return an array (N, width) with a 1 in column ``codes[n]`` of row n."""
    x = np.zeros((len(codes), width), dtype=np.uint8)
    x[np.arange(len(codes)), codes] = 1
    return x


def degree_features(edges: Edges, node_ptr: Int64) -> NDArray[np.uint8]:
    """Return one-hot in-degrees, named DEGREE_NAMES, as features of nodes without features."""
    return one_hot_degree(in_degree(edges, node_ptr))


def in_degree(edges: Edges, node_ptr: Int64) -> Int64:
    """Return each node's in-degree without self-loops, (N,)."""
    first = np.repeat(node_ptr[:-1], np.diff(edges.edge_ptr))
    proper = edges.src != edges.dst
    return np.bincount((first + edges.dst)[proper], minlength=int(node_ptr[-1]))


def one_hot_degree(degree: Int64) -> NDArray[np.uint8]:
    """Return (N, MAX_DEGREE + 1); degrees of MAX_DEGREE and more share the last column."""
    return one_hot(np.minimum(degree, MAX_DEGREE), MAX_DEGREE + 1)


def write_listed(
    writer: DatasetWriter,
    graphs: GraphSet,
    edges: Iterable[tuple[int, Edges]],
    features: Iterable[NDArray[Any]] | None,
    advance: Callable[[int], object] = lambda rows: None,
) -> GraphSet:
    """Write an `outline` with the blocks of an EdgeFile, then of features; return it with its edge pointer.

    Without features, the one-hot degree is the feature; `advance` is called with the numbers of these rows.
    """
    degree = np.zeros(graphs.n_nodes if features is None else 0, dtype=np.int64)

    def parts() -> Iterator[tuple[int, GraphSet]]:
        for first, block in edges:
            bounds = graphs.node_ptr[first : first + len(block.edge_ptr)]
            if features is None:
                degree[bounds[0] : bounds[-1]] += in_degree(block, bounds - bounds[0])
            yield first, replace(graphs, node_ptr=bounds - bounds[0], **vars(block))

    def degrees() -> Iterator[NDArray[Any]]:
        for start in range(0, len(degree), NODE_BLOCK):
            block = one_hot_degree(degree[start : start + NODE_BLOCK])
            yield block
            advance(len(block))

    return writer.append_blocks(graphs, parts(), degrees() if features is None else features)


@dataclass
class ImportSummary:
    """Counts of an import, and the names of its splits.

    `columns` has, for a table, a line per column: name, role, kind, labelled rows, remark.
    """

    path: Path
    header: Header | None = None
    graphs: int = 0
    nodes: int = 0
    edges: int = 0
    targets: int = 0
    labelled: int = 0
    skipped: int = 0
    splits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    columns: tuple[tuple[str, str, str | None, int | None, str], ...] = ()
    _labels: LabelRange | None = field(default=None, repr=False)

    def add(self, part: GraphSet) -> None:
        """Count a written part."""
        self.graphs += part.n_graphs
        self.nodes += part.n_nodes
        self.edges += part.n_edges
        self.targets += part.y.size
        self.labelled += int(known_labels(part.y).sum())
        found = LabelRange.of(part.y)
        self._labels = found if self._labels is None else self._labels.joined(found)

    def said(self) -> list[str]:
        """Return the notes, and one on tasks whose labels are all equal."""
        if self._labels is None or self.header is None or not self._labels.equal.any():
            return list(self.notes)
        named = listed(self._labels.described(self.header, np.flatnonzero(self._labels.equal)))
        return [*self.notes, f"labels are all equal and teach nothing: {named}"]

    def roles(self) -> list[str]:
        """Return a line for each column of a table that is used, and for each reason why others are not."""
        uses: dict[tuple[str, str], list[str]] = {}
        for name, role, kind, labelled, remark in self.columns:
            about = [role, *([kind] if kind else []), *([counted(labelled, "label")] if labelled is not None else [])]
            use = f"{', '.join(about)}{f' ({remark})' if remark else ''}"
            uses.setdefault((use, "" if role == "ignored" else name), []).append(name)
        return [f"{listed(map(quoted, names))}: {use}" for (use, _), names in uses.items()]

    def lines(self) -> list[str]:
        """Return the summary as lines of text; the last one is the path."""
        assert self.header is not None
        header = self.header
        what = (
            counted(len(header.class_names), "class", "classes")
            if header.target == "multiclass"
            else f"{len(header.task_names)}"
        )
        tasks = f"{what} ({header.target}, {header.level} level)"
        if header.task_names == (UNLABELLED,):
            tasks = "none"
        share = f"{100.0 * self.labelled / self.targets:.1f} %" if self.targets else "none"
        rows = [
            ("graphs", f"{self.graphs:,}"),
            ("nodes", f"{self.nodes:,}"),
            ("edges", f"{self.edges:,}"),
            ("features", f"{header.n_features:,}"),
            ("channels", ", ".join(header.channel_names)),
            ("tasks", tasks),
            ("labelled", share),
            ("skipped rows", f"{self.skipped:,}"),
        ]
        if header.graph_feature_names:
            rows.insert(4, ("of graphs", counted(len(header.graph_feature_names), "feature")))
        return [f"{name:<13} {value}" for name, value in rows] + [str(self.path)]
