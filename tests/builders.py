"""Small graph sets for tests: one deterministic builder, hypothesis strategies over the whole format, and equality."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcnbatch.data.graph_features import FeatureTable
from gcnbatch.data.graphs import GraphSet, Split
from gcnbatch.data.schema import Header, Level, Target
from gcnbatch.data.sparse import Csr, row_pointer

DENSE_DTYPES = ("uint8", "int8", "float16", "float32")
CORES = ("c1ccccc1{}", "C1CCCCC1{}", "c1ccncc1{}", "CCCC{}", "C1CCOC1{}")
TAILS = ("", "C", "CC", "O", "CO", "N", "F", "Cl", "CN", "CCC", "CCO", "C#N")


def small_molecules(tails: int = len(TAILS)) -> list[str]:
    """Return SMILES of five molecules with each of the first `tails` substituents."""
    return [core.format(tail) for core in CORES for tail in TAILS[:tails]]


def build_graphset(
    n_graphs: int = 6,
    *,
    level: Level = "graph",
    target: Target = "binary",
    n_tasks: int = 2,
    n_classes: int = 3,
    n_features: int = 4,
    n_channels: int = 2,
    features: str = "float32",
    max_nodes: int = 5,
    edges_per_node: int = 2,
    weights: bool = False,
    groups: bool = False,
    missing: float = 0.2,
    splits: bool = False,
    graph_features: int = 0,
    n_counts: int = 0,
    censored: bool = False,
    sample_weight: bool = False,
    seed: int = 0,
) -> GraphSet:
    """Build a valid set from a seed.

    Sizes cycle from `max_nodes` down to 0, so six graphs include an empty one.
    `features` is a dense dtype's name or ``"csr"``; `edges_per_node` random edges start at each node on average;
    `missing` is the share of missing targets; `splits` adds one split, "first", of three equal parts;
    `graph_features` features of whole graphs, some missing, the last `n_counts` of them counts; `censored` targets of
    regression and the unit of the first one; `sample_weight` of each row, some 0.
    """
    rng = np.random.default_rng(seed)
    sizes = max_nodes - np.arange(n_graphs, dtype=np.int64) % (max_nodes + 1)
    counts = sizes * edges_per_node
    n_nodes, n_edges = int(sizes.sum()), int(counts.sum())
    limit = np.repeat(sizes, counts)
    n_rows = n_graphs if level == "graph" else n_nodes
    tasks = 1 if target == "multiclass" else n_tasks
    thirds = np.array_split(rng.permutation(n_rows).astype(np.int64), 3)
    has_bounds = censored and target == "regression"
    return GraphSet(
        header=Header(
            name="built",
            level=level,
            target=target,
            task_names=tuple(f"task{k}" for k in range(tasks)),
            class_names=tuple(f"class{k}" for k in range(n_classes)) if target == "multiclass" else (),
            n_features=n_features,
            channel_names=tuple(f"channel{c}" for c in range(n_channels)),
            graph_feature_names=tuple(f"of graph {d}" for d in range(graph_features)),
            graph_feature_counts=n_counts,
            units={"task0": "uM"} if has_bounds else {},
        ),
        node_ptr=row_pointer(sizes),
        edge_ptr=row_pointer(counts),
        src=(rng.random(n_edges) * limit).astype(np.int32),
        dst=(rng.random(n_edges) * limit).astype(np.int32),
        channel=rng.integers(0, n_channels, n_edges).astype(np.uint8),
        weight=rng.normal(size=n_edges).astype(np.float32) if weights else None,
        x=_features(rng, n_nodes, n_features, features),
        y=(y := _targets(rng, target, n_rows, tasks, n_classes, missing)),
        ids=np.array([f"row-{i}" for i in range(n_rows)], dtype=np.str_),
        groups=rng.integers(0, max(1, n_graphs // 2), n_graphs).astype(np.int32) if groups else None,
        splits={"first": Split(*thirds)} if splits else {},
        graph_features=_of_graphs(rng, n_graphs, graph_features, n_counts) if graph_features else None,
        censored=(rng.integers(-1, 2, y.shape) * ~np.isnan(y)).astype(np.int8) if has_bounds else None,
        sample_weight=rng.integers(0, 4, n_rows).astype(np.float32) / 2 if sample_weight else None,
    )


def _features(rng: np.random.Generator, rows: int, columns: int, kind: str) -> Any:
    if kind == "csr":
        matrix = sp.csr_array(rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.4), dtype=np.float32)
        matrix.indices = matrix.indices.astype(np.int32)
        return matrix
    if np.issubdtype(np.dtype(kind), np.integer):
        return rng.integers(0, 4, (rows, columns)).astype(kind)
    return rng.normal(size=(rows, columns)).astype(kind)


def _targets(
    rng: np.random.Generator, target: Target, rows: int, tasks: int, classes: int, missing: float
) -> NDArray[Any]:
    absent = rng.random((rows, tasks)) < missing
    if target == "multiclass":
        return np.where(absent, -1, rng.integers(0, classes, (rows, tasks))).astype(np.int32)
    values = rng.integers(0, 2, (rows, tasks)) if target == "binary" else rng.normal(size=(rows, tasks))
    return np.where(absent, np.nan, values).astype(np.float32 if target == "binary" else np.float64)


def _of_graphs(rng: np.random.Generator, graphs: int, columns: int, counts: int) -> FeatureTable:
    values = rng.normal(5, 3, (graphs, columns))
    values[rng.random(values.shape) < 0.2] = np.nan
    found = rng.integers(0, 3, (graphs, counts)).astype(np.uint32)
    return FeatureTable(values[:, : columns - counts].astype(np.float32), Csr.of(found))


@st.composite
def graphsets(draw: st.DrawFn, **fixed: Any) -> GraphSet:
    """Draw a valid set: any level, target and feature layout, with or without weights, groups, splits, edges or graphs.

    Keywords fix arguments of `build_graphset`: ``graphsets(level="graph", features="csr")``.
    """
    options: dict[str, Any] = {
        "n_graphs": draw(st.integers(0, 8)),
        "level": draw(st.sampled_from(["graph", "node"])),
        "target": draw(st.sampled_from(["binary", "multiclass", "regression"])),
        "n_tasks": draw(st.integers(1, 3)),
        "n_classes": draw(st.integers(2, 4)),
        "n_features": draw(st.integers(1, 5)),
        "n_channels": draw(st.integers(1, 3)),
        "features": draw(st.sampled_from([*DENSE_DTYPES, "csr"])),
        "max_nodes": draw(st.integers(0, 6)),
        "edges_per_node": draw(st.integers(0, 3)),
        "weights": draw(st.booleans()),
        "groups": draw(st.booleans()),
        "missing": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "splits": draw(st.booleans()),
        "censored": draw(st.booleans()),
        "sample_weight": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }
    options["graph_features"] = draw(st.integers(0, 3)) if {**options, **fixed}["level"] == "graph" else 0
    options["n_counts"] = draw(st.integers(0, options["graph_features"]))
    return build_graphset(**{**options, **fixed})


def assert_graphsets_equal(left: GraphSet, right: GraphSet) -> None:
    """Assert that two sets are equal: header, splits, values and dtypes of all arrays (missing equals missing)."""
    assert left.header == right.header
    edges, others = ("src", "dst", "channel", "weight"), ("y", "groups", "censored", "sample_weight")
    for name in ("node_ptr", "edge_ptr", *edges, *others):
        _assert_arrays_equal(name, getattr(left, name), getattr(right, name))
    for one, other in zip(arrays_of(left.graph_features), arrays_of(right.graph_features), strict=True):
        _assert_arrays_equal("graph_features", one, other)
    assert left.ids.tolist() == right.ids.tolist()
    assert sp.issparse(left.x) == sp.issparse(right.x)
    if sp.issparse(left.x):
        assert left.x.shape == right.x.shape
        for name in ("indptr", "indices", "data"):
            _assert_arrays_equal(f"x.{name}", getattr(left.x, name), getattr(right.x, name))
    else:
        _assert_arrays_equal("x", left.x, right.x)
    assert left.splits.keys() == right.splits.keys()
    for name, split in left.splits.items():
        for part, rows in split.parts().items():
            _assert_arrays_equal(f"splits/{name}/{part}", rows, right.splits[name].parts()[part])


def arrays_of(table: FeatureTable | None) -> list[NDArray[Any]]:
    """Return the arrays of features of graphs; none without such."""
    return [] if table is None else [table.measured, table.counts.indptr, table.counts.indices, table.counts.data]


def _assert_arrays_equal(name: str, left: Any, right: Any) -> None:
    assert (left is None) == (right is None), name
    if left is not None:
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, err_msg=name)


def scipy_csr(matrix: Csr) -> sp.csr_array:
    """Return a Csr as a SciPy matrix."""
    return sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(len(matrix.indptr) - 1, matrix.n_cols))


def dense(matrix: Csr) -> NDArray[Any]:
    """Return a Csr as a dense array."""
    return scipy_csr(matrix).toarray()
