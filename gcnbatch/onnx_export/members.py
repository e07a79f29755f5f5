"""The kernel and the trees of a mixture as ONNX nodes, and the maps of what they read and learn (`gcnbatch.mixture`).

Sums over many rows, normal scores and transforms are computed in float64, as in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.schema import Header
from gcnbatch.mixture.forest import Forest
from gcnbatch.mixture.kernel import SOFTNESS, KernelRidge
from gcnbatch.mixture.members import KERNEL, TREES, Members
from gcnbatch.mixture.molecules import LARGEST_COUNT, Preparation
from gcnbatch.mixture.normal_scores import NormalScores
from gcnbatch.mixture.problem import Target
from gcnbatch.mixture.similarity import THRESHOLDS
from gcnbatch.mixture.transforms import Transform, Transforms
from gcnbatch.mixture.trees import Trees
from gcnbatch.onnx_export.graph import Graph, Value

_SPLIT = 2.0**42 + 1  # Veltkamp's split of a float64: its high part has the 11 bits of a float16


def predictions(graph: Graph, members: Members, header: Header, features: Value) -> dict[str, Value]:
    """Return each member's outputs (B, K), float64, of the features (B, D) of molecules; 0 in tasks without a model."""
    counts, scores = _prepared(graph, members.preparation, header, features)
    found = {}
    if members.kernel:
        found[KERNEL] = _activate(graph, members.target, _kernel(graph, members.kernel, counts, scores))
    if members.trees:
        fragments = members.preparation.fragments_of([of.stop - of.start for of in header.fingerprints])
        read = [of.take(own, axis=1) for of, own in zip(counts, fragments, strict=True) if len(own)]
        table = graph("Concat", *read, scores, axis=1)
        found[TREES] = _trees(graph, members.trees, table)
    return {name: invert(graph, members.transforms, of) for name, of in found.items()}


def known(members: Members) -> dict[str, NDArray[np.bool_]]:
    """Return for which outputs (K,) each member has a model."""
    found = {}
    if members.kernel:
        found[KERNEL] = ~np.isnan(members.kernel.intercept)
    if members.trees:
        of_trees = np.zeros(members.trees.outputs, bool)
        for columns, _ in members.trees.forests:
            of_trees[columns] = True
        found[TREES] = of_trees
    return found


def apply(graph: Graph, transforms: Transforms, y: Value) -> Value:
    """Return transformed values (B, K)."""
    return _by_column(graph, transforms, y, _apply)


def invert(graph: Graph, transforms: Transforms, z: Value) -> Value:
    """Return values (B, K) in the user's units."""
    return _by_column(graph, transforms, z, _invert)


def _by_column(graph: Graph, transforms: Transforms, values: Value, function: Any) -> Value:
    if set(transforms.kinds) == {"none"}:
        return values
    columns = (values.take(np.array([column]), axis=1) for column in range(len(transforms.each)))
    found = [function(graph, of, column) for of, column in zip(transforms.each, columns, strict=True)]
    return graph("Concat", *found, axis=1)


def _apply(graph: Graph, of: Transform, y: Value) -> Value:
    if of.scores:
        return interpolated(graph, y, of.scores.values, of.scores.scores, of.scores.starts)
    if of.kind == "log":
        return graph("Log", graph("Max", y, np.float64(of.bounds[0])) + np.float64(of.shift))
    return y


def _invert(graph: Graph, of: Transform, z: Value) -> Value:
    if of.scores:
        return interpolated(graph, z, of.scores.scores, of.scores.values, of.scores.starts)
    if of.kind == "log":
        low, high = np.log(np.array(of.bounds) + of.shift)
        return graph("Exp", z.clip(np.float64(low), np.float64(high))) - np.float64(of.shift)
    return z


def interpolated(
    graph: Graph, x: Value, known: NDArray[np.float64], mapped: NDArray[np.float64], starts: NDArray[np.int64]
) -> Value:
    """Return `NormalScores` of `x (B, D)`, float64: the map of each column through its knots; NaN stays NaN."""
    counts = np.diff(starts)
    table = np.full((len(counts), int(counts.max())), np.inf)
    for row, (first, end) in enumerate(pairwise(starts.tolist())):
        table[row, : end - first] = known[first:end]
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.append(np.diff(mapped) / np.diff(known), 0.0)
    slopes[starts[1:] - 1] = 0.0  # after the last knot of each column
    inside = x.clip(known[starts[:-1]], known[starts[1:] - 1])
    below = (graph("Unsqueeze", x, np.array([2])) >= table).astype(np.int64).sum(2, keep=False)
    knot = (below - np.int64(1)).clip(np.int64(0), counts - 1) + starts[:-1]
    values, scores, steep = (graph.value(array).take(knot) for array in (known, mapped, slopes))
    return x.is_nan().where(x, (inside - values) * steep + scores)


def _prepared(graph: Graph, maps: Preparation, header: Header, features: Value) -> tuple[list[Value], Value]:
    """Return counts (B, F) of each fingerprint, and normal scores (B, S) of descriptors, float32."""
    counts = [
        features.take(np.arange(of.start, of.stop), axis=1).clip(np.float32(0), np.float32(LARGEST_COUNT))
        for of in header.fingerprints
    ]
    varied = maps.scores.varied
    described = features.take(varied, axis=1)
    if not len(varied):
        return counts, described
    of_varied = _some(maps.scores)
    described = graph("IsInf", described).where(np.float32(np.nan), described).astype(np.float64)
    scores = interpolated(graph, described, of_varied.values, of_varied.scores, of_varied.starts)
    wide = scores * np.float64(_SPLIT)
    rounded = wide - (wide - scores)  # once; a cast would round to float32 first
    return counts, scores.is_nan().where(np.float64(0), rounded).astype(np.float32)


def _some(scores: NormalScores) -> NormalScores:
    """Return the maps of the columns that vary."""
    ranges = [slice(scores.starts[column], scores.starts[column + 1]) for column in scores.varied]
    starts = np.concatenate([[0], np.cumsum([of.stop - of.start for of in ranges], dtype=np.int64)])
    values, mapped = (np.concatenate([array[of] for of in ranges]) for array in (scores.values, scores.scores))
    return NormalScores(values, mapped, starts)


def _kernel(graph: Graph, kernel: KernelRidge, counts: Sequence[Value], scores: Value) -> Value:
    """Return the regressions (B, K), float64; see `gcnbatch.mixture.similarity`."""
    landmarks = kernel.landmarks
    points = graph.value(landmarks.scores.T.astype(np.float16)).astype(np.float32)
    norms = (landmarks.scores**2).sum(axis=1)
    total = (scores @ points) * np.float32(2) - (scores * scores).sum(1) - norms
    total = graph("Exp", graph("Min", total / np.float32(max(landmarks.scores.shape[1], 1)), np.float32(0)))
    total = total * np.float32(kernel.weight)
    for own, theirs in zip(counts, landmarks.counts, strict=True):
        dense = theirs.T.toarray()  # (F, M)
        used = [np.flatnonzero((dense >= least).any(axis=1)) for least in THRESHOLDS]
        sizes = sum((dense >= least).sum(axis=0, dtype=np.float32) for least in THRESHOLDS)
        bits = graph("Concat", *(_bits(own, least) for least in THRESHOLDS), axis=1)
        some = graph(
            "Concat", *(_bits(own.take(of, axis=1), least) for least, of in zip(THRESHOLDS, used, strict=True)), axis=1
        )
        stored = graph.value(dense).astype(np.float32)
        others = [_bits(stored.take(of), least) for least, of in zip(THRESHOLDS, used, strict=True)]
        common = some @ graph("Concat", *others, axis=0)
        total = total + common / graph("Max", bits.sum(1) + sizes - common, np.float32(1))
    total = total / np.float32(kernel.weight + len(counts))
    return total.astype(np.float64) @ kernel.weights + np.nan_to_num(kernel.intercept)


def _bits(counts: Value, least: int) -> Value:
    return (counts >= np.float32(least)).astype(np.float32)


def _activate(graph: Graph, target: Target, regressions: Value) -> Value:
    """Return `gcnbatch.mixture.kernel.activate`."""
    if target == "regression":
        return regressions
    scaled = regressions / np.float64(SOFTNESS)
    found = (_softplus(graph, scaled) - _softplus(graph, scaled - np.float64(1 / SOFTNESS))) * np.float64(SOFTNESS)
    return found / found.sum(1) if target == "multiclass" else found


def _softplus(graph: Graph, x: Value) -> Value:
    """Return log(1 + e^x) without overflow."""
    small = graph("Exp", graph("Neg", graph("Abs", x)))
    return graph("Max", x, np.float64(0)) + graph("Log", small + np.float64(1))


def _trees(graph: Graph, trees: Trees, table: Value) -> Value:
    """Return the means (B, K), float64, of the forests; 0 in outputs without one."""
    nothing = table.take(np.array([0]), axis=1).astype(np.float64) * np.float64(0)
    found, order = [nothing], np.zeros(trees.outputs, np.int64)
    width = 1
    for columns, forest in trees.forests:
        found.append(_forest(graph, forest, table))
        order[columns] = width + np.arange(len(columns))
        width += len(columns)
    return graph("Concat", *found, axis=1).take(order, axis=1)


def _forest(graph: Graph, forest: Forest, table: Value) -> Value:
    """Return the mean (B, K) of the trees' values, float64.

    The node returns the number of each tree's leaf: it has one value per leaf, and would sum values as float32.
    """
    is_leaf, trees = forest.features < 0, len(forest.nodes)
    tree = np.repeat(np.arange(trees), forest.nodes)
    roots = np.cumsum(forest.nodes, dtype=np.int64) - forest.nodes
    number = np.where(is_leaf, np.cumsum(is_leaf), np.cumsum(~is_leaf)) - 1  # among the leaves, or the inner nodes
    inner, of_leaf = np.flatnonzero(~is_leaf), tree[is_leaf]
    rank = np.arange(len(inner)) - np.searchsorted(tree[inner], tree[inner])  # in its tree
    first = roots[tree[inner]] + 2 * rank + 1
    stumps = is_leaf[roots]  # a tree of one leaf gets a node whose children are both this leaf
    count = int(stumps.sum())
    starts = np.where(stumps, len(inner) + np.cumsum(stumps) - 1, number[roots])
    first_leaf = np.searchsorted(of_leaf, np.arange(trees))

    def ids(children: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        lone = number[roots[stumps]].tolist()
        return [*number[children].tolist(), *lone], [*is_leaf[children].astype(int).tolist(), *[1] * count]

    (true, true_leaf), (false, false_leaf) = ids(first), ids(first + 1)
    splits = np.append(forest.thresholds, np.zeros(count)).astype(np.float32)
    leaves = graph(
        "TreeEnsemble",
        table,
        domain="ai.onnx.ml",
        n_targets=trees,
        aggregate_function=1,
        tree_roots=starts.tolist(),
        nodes_featureids=[*forest.features[inner].tolist(), *[0] * count],
        nodes_splits=graph.tensor(splits),
        nodes_modes=graph.tensor(np.zeros(len(splits), np.uint8)),  # first child: x <= threshold
        nodes_truenodeids=true,
        nodes_trueleafs=true_leaf,
        nodes_falsenodeids=false,
        nodes_falseleafs=false_leaf,
        leaf_targetids=of_leaf.tolist(),
        leaf_weights=graph.tensor((np.arange(len(of_leaf)) - first_leaf[of_leaf]).astype(np.float32)),
    )
    places = leaves.astype(np.int64) + first_leaf  # (B, trees)
    values = graph.value(forest.values).take(places).astype(np.float64)  # (B, trees, K)
    return values.sum(1, keep=False) / np.float64(trees)
