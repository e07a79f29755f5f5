"""Description of a data set in numbers: sizes, distributions, labels, splits; reads whole graphs in blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gcnbatch.data.graphs import GraphSet, Int64
from gcnbatch.data.schema import Header
from gcnbatch.data.splits import unlabelled
from gcnbatch.data.store import Dataset
from gcnbatch.moments import moments


class Statistics(NamedTuple):
    """Five order statistics and the mean of whole numbers; a percentile is one of the values."""

    min: int
    p5: int
    median: int
    mean: float
    p95: int
    max: int


@dataclass(frozen=True)
class Distribution:
    """Histogram of whole numbers: distinct `values`, ascending, and their `counts`, both int64."""

    values: Int64
    counts: Int64

    @classmethod
    def of(cls, numbers: Int64) -> Distribution:
        """Count the values of `numbers`."""
        values, counts = np.unique(numbers, return_counts=True)
        return cls(values.astype(np.int64), counts.astype(np.int64))

    def summary(self) -> Statistics | None:
        """Return the statistics; None when nothing was counted."""
        if not len(self.values):
            return None
        reached = np.cumsum(self.counts)
        total = int(reached[-1])
        quantile = {share: int(self.values[np.searchsorted(reached, share * total)]) for share in (0.05, 0.5, 0.95)}
        mean = float(np.dot(self.values, self.counts.astype(np.float64)) / total)
        return Statistics(
            int(self.values[0]), quantile[0.05], quantile[0.5], mean, quantile[0.95], int(self.values[-1])
        )


@dataclass(frozen=True)
class Features:
    """Node features: F columns, their storage (a dtype, or "csr float32") and the share of entries that are not 0."""

    columns: int
    storage: str
    density: float | None


@dataclass(frozen=True)
class GraphFeatureCounts:
    """Features of whole graphs: D `columns`, the last `counts` of which count fragments, and `missing` values."""

    columns: int
    counts: int
    missing: int


@dataclass(frozen=True)
class TaskLabels:
    """Labels of one task; the keys of `values` depend on the kind of target.

    Binary: positive, negative. Multiclass: the class names. Regression: min, mean, std, max (None if all are missing);
    unit, above and below (numbers of bounds) where the set has any.
    """

    name: str
    missing: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Description:
    """Contents of `gcnbatch data info`.

    `unlabelled` is the number of rows without any label. `degree` counts the stored edges into a node, over all
    channels, without self-loops. `groups` is the number of groups, `timed` that of graphs with a time, None if the set
    has none. `splits` has the number of rows of each part, by split name.
    """

    path: str
    header: Header
    graphs: int
    nodes: int
    edges: int
    self_loops: int
    edge_weights: str
    features: Features
    graph_features: GraphFeatureCounts | None
    nodes_per_graph: Distribution
    edges_per_graph: Distribution
    degree: Distribution
    channels: dict[str, int]
    tasks: tuple[TaskLabels, ...]
    unlabelled: int
    groups: int | None
    timed: int | None
    splits: dict[str, dict[str, int]]
    file_bytes: int
    memory_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a distribution becomes its statistics."""
        header = self.header.model_dump(
            mode="json",
            exclude={"task_names", "class_names", "channel_names", "feature_names", "graph_feature_names"},
        )
        spreads = {
            name: None if (summary := getattr(self, name).summary()) is None else summary._asdict()
            for name in ("nodes_per_graph", "edges_per_graph", "degree")
        }
        counts = {name: getattr(self, name) for name in ("graphs", "nodes", "edges", "self_loops", "edge_weights")}
        return {
            "path": self.path,
            **header,
            **counts,
            "features": asdict(self.features),
            "graph_features": self.graph_features and asdict(self.graph_features),
            **spreads,
            "channels": self.channels,
            "tasks": [asdict(task) for task in self.tasks],
            "unlabelled": self.unlabelled,
            "groups": self.groups,
            "timed": self.timed,
            "splits": self.splits,
            "file_bytes": self.file_bytes,
            "memory_bytes": self.memory_bytes,
        }


def describe(dataset: Dataset) -> Description:
    """Describe an open data set; node and edge arrays are read once, in blocks of whole graphs."""
    header = dataset.header
    scan = _Scan(header.n_channels)
    layout = dataset.read([])
    for _, part in dataset.blocks():
        scan.add(part)
    nodes = int(dataset.node_ptr[-1])
    storage = "csr float32" if sp.issparse(layout.x) else str(layout.x.dtype)
    entries, joined = nodes * header.n_features, len(header.graph_feature_names)
    weights = "none" if layout.weight is None else "normalized" if header.normalized else "stored"
    return Description(
        path=str(dataset.path),
        header=header,
        graphs=dataset.n_graphs,
        nodes=nodes,
        edges=int(dataset.edge_ptr[-1]),
        self_loops=scan.self_loops,
        edge_weights=weights,
        features=Features(header.n_features, storage, scan.nonzero / entries if entries else None),
        graph_features=GraphFeatureCounts(joined, header.graph_feature_counts, scan.missing) if joined else None,
        nodes_per_graph=Distribution.of(np.diff(dataset.node_ptr)),
        edges_per_graph=Distribution.of(np.diff(dataset.edge_ptr)),
        degree=scan.degree(),
        channels=dict(zip(header.channel_names, scan.channels.tolist(), strict=True)),
        tasks=tuple(label_counts(header, dataset.y, dataset.censored)),
        unlabelled=unlabelled(dataset.y),
        groups=None if dataset.groups is None else len(np.unique(dataset.groups)),
        timed=None if dataset.times is None else int((~np.isnan(dataset.times)).sum()),
        splits={
            name: {part: len(rows) for part, rows in split.parts().items()} for name, split in dataset.splits.items()
        },
        file_bytes=dataset.file_bytes,
        memory_bytes=dataset.nbytes,
    )


def label_counts(header: Header, y: NDArray[Any], censored: NDArray[np.int8] | None = None) -> list[TaskLabels]:
    """Count the labels of each task; `y` and `censored` are (R, K) as in GraphSet."""
    if header.target == "multiclass":
        counts = np.bincount(y[y >= 0], minlength=len(header.class_names)).tolist()
        return [
            TaskLabels(header.task_names[0], int((y < 0).sum()), dict(zip(header.class_names, counts, strict=True)))
        ]
    tasks = []
    for task, (name, column) in enumerate(zip(header.task_names, y.T, strict=True)):
        known = column[~np.isnan(column)].astype(np.float64)
        if header.target == "binary":
            positive = int(known.sum())
            values: dict[str, Any] = {"positive": positive, "negative": len(known) - positive}
        else:
            mean, std = (float(of[0]) for of in moments(known[:, None]))
            found = {"min": known.min(initial=np.inf), "mean": mean, "std": std, "max": known.max(initial=-np.inf)}
            values = {"unit": header.units.get(name)} if header.units else {}
            values |= {key: float(value) if len(known) else None for key, value in found.items()}
            if censored is not None:
                values |= {"above": int((censored[:, task] > 0).sum()), "below": int((censored[:, task] < 0).sum())}
        tasks.append(TaskLabels(name, len(column) - len(known), values))
    return tasks


class _Scan:
    """Counters over edges and features, updated block by block."""

    def __init__(self, channels: int) -> None:
        self.channels = np.zeros(channels, dtype=np.int64)
        self.self_loops = 0
        self.nonzero = 0
        self.missing = 0
        self._degrees: Counter[int] = Counter()

    def add(self, part: GraphSet) -> None:
        self.channels += np.bincount(part.channel, minlength=len(self.channels))
        loops = part.src == part.dst
        self.self_loops += int(np.count_nonzero(loops))
        first_node = np.repeat(part.node_ptr[:-1], np.diff(part.edge_ptr))
        degrees = np.bincount((first_node + part.dst)[~loops], minlength=part.n_nodes)
        values, counts = np.unique(degrees, return_counts=True)
        self._degrees.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if part.graph_features is not None:
            self.missing += int(np.count_nonzero(np.isnan(part.graph_features.measured)))
        self.nonzero += int(np.count_nonzero(part.x.data if sp.issparse(part.x) else part.x))

    def degree(self) -> Distribution:
        values = np.array(sorted(self._degrees), dtype=np.int64)
        return Distribution(values, np.array([self._degrees[value] for value in values.tolist()], dtype=np.int64))
