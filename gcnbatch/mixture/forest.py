"""The member "trees": extremely randomised trees, grown by scikit-learn and kept as plain arrays.

Nodes of a tree are numbered level by level, so that the children of its k-th inner node are the nodes 2k + 1 and
2k + 2: no child is stored. A node takes 2 bytes, an inner node 2 more, a leaf 4 for each output.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.mixture.normal_scores import Arrays

TREES = 200
_LEAST_TREES = 30
_BYTES = 40_000_000  # of the arrays for 10,000 rows; fewer trees where they would be larger
_SPLIT = 4  # rows of the smallest node that is split
_BLOCK = 256  # rows that descend together
_LEVELS = 3  # that rows descend before those at leaves are taken out
_LEAF = -1
_COLUMN = 0xFFFF


class Growth(NamedTuple):
    """How trees grow.

    Parameters
    ----------
    features : float
        Share of the features that each node tries.
    leaf : int
        Fewest rows of a leaf.
    leaves : float
        Estimate from above of a tree's leaves per row.
    """

    features: float
    leaf: int
    leaves: float


VALUES, CLASSES = Growth(0.07, 1, 0.75), Growth(0.035, 3, 1 / 3)


@dataclass(frozen=True)
class Forest:
    """Regression trees with K outputs.

    Parameters
    ----------
    nodes : int32, (trees,)
        Number of nodes of each tree.
    features : int16, (nodes of all trees,)
        Column that a node compares; -1 at leaves.
    thresholds : float16, (inner nodes,)
        A row goes to the second child if its value is larger.
    values : float32, (leaves, K)
    """

    nodes: NDArray[np.int32]
    features: NDArray[np.int16]
    thresholds: NDArray[np.float16]
    values: NDArray[np.float32]

    def predict(self, x: NDArray[np.float16]) -> NDArray[np.float64]:
        """Return the mean of the trees' values, (n, K), for rows `x (n, P)`."""
        found = np.empty((len(x), self.values.shape[1]))
        values = self.values.T.astype(np.float64)
        for first in range(0, len(x), _BLOCK):
            rows = slice(first, first + _BLOCK)
            leaves = self._leaves(x[rows])
            for column, of in enumerate(values):
                found[rows, column] = of.take(leaves).sum(axis=1)
        return found / len(self.nodes)

    def get_ready(self) -> None:
        """Compute what the threads of a prediction share."""
        _ = self.packed

    def _leaves(self, x: NDArray[np.float16]) -> NDArray[np.int64]:
        """Return the leaf of each row and tree, (n, trees); all descend at once, in few operations on long arrays."""
        inner, leaf_of = self.packed
        count, trees = len(x), len(self.nodes)
        values = ordered(x).ravel()
        rows, nodes = np.repeat(np.arange(count) * x.shape[1], trees), np.tile(self.roots, count)
        found, places = np.empty(count * trees, np.int64), np.arange(count * trees)
        while len(places):
            for _ in range(_LEVELS):
                packed = inner.take(nodes)
                columns = packed & _COLUMN
                columns += rows
                is_second = values.take(columns) > (packed >> 16).astype(np.int16)
                nodes = packed >> 32
                nodes += is_second
            leaves = leaf_of.take(nodes)
            found[places] = leaves  # of rows that go on, it is written again
            goes_on = leaves < 0
            rows, nodes, places = rows[goes_on], nodes[goes_on], places[goes_on]
        return found.reshape(count, trees)

    @property
    def roots(self) -> NDArray[np.int64]:
        """The first node of each tree."""
        return np.cumsum(self.nodes, dtype=np.int64) - self.nodes

    @cached_property
    def packed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each node: first child, threshold and column in 32, 16 and 16 bits; the number of a leaf or -1.

        A leaf has itself as its child, and no value is above its threshold.
        """
        is_leaf = self.features == _LEAF
        tree = np.repeat(np.arange(len(self.nodes)), self.nodes)
        before = np.cumsum(~is_leaf) - ~is_leaf  # inner nodes before each node
        roots = self.roots
        packed = roots[tree] + 2 * (before - before[roots][tree]) + 1
        packed[is_leaf] = np.flatnonzero(is_leaf)
        thresholds = np.full(len(is_leaf), np.iinfo(np.int16).max, np.int64)
        thresholds[~is_leaf] = ordered(self.thresholds)
        packed = packed << 32 | (thresholds & 0xFFFF) << 16 | np.maximum(self.features, 0)
        return packed, np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)

    def first(self, count: int) -> Forest:
        """Return the forest of the first trees."""
        nodes = int(self.nodes[:count].sum())
        leaves = int((self.features[:nodes] == _LEAF).sum())
        inner = nodes - leaves
        return Forest(self.nodes[:count], self.features[:nodes], self.thresholds[:inner], self.values[:leaves])

    def check(self, columns: int) -> None:
        """Raise ValueError unless every node has its children, and reads one of so many columns."""
        inner, ends = self.features != _LEAF, np.cumsum(self.nodes, dtype=np.int64)
        sizes = len(self.features), int(inner.sum()), int((~inner).sum())
        if sizes != (self.nodes.sum(), len(self.thresholds), len(self.values)) or np.any(self.nodes < 1):
            raise ValueError(f"a forest of {sizes[0]} nodes, of which {sizes[1]} have children")
        if np.any(self.nodes != 2 * np.add.reduceat(inner.astype(np.int64), ends - self.nodes) + 1):
            raise ValueError("a tree whose nodes lack children")
        if self.features.min() < _LEAF or self.features.max() >= columns:
            raise ValueError("a node that reads a column that rows lack")

    @classmethod
    def join(cls, forests: Sequence[Forest]) -> Forest:
        """Return the forest of the trees of all."""
        keys = ("nodes", "features", "thresholds", "values")
        return cls(*(np.concatenate([getattr(forest, key) for forest in forests]) for key in keys))

    def arrays(self) -> Arrays:
        """Return what `from_arrays` takes."""
        return {
            "nodes": self.nodes,
            "features": self.features,
            "thresholds": self.thresholds,
            "values": self.values,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Forest:
        """Return the object that `arrays` was called on."""
        return cls(*(arrays[key] for key in ("nodes", "features", "thresholds", "values")))


def load_library() -> None:
    """Import what `grow` needs; it takes a second, most of it of one core."""
    import sklearn.ensemble  # noqa: F401


@contextmanager
def without_warnings() -> Iterator[None]:
    """Show no warnings: threads of scikit-learn reset the filters of each other, and it warns of that."""
    with warnings.catch_warnings():  # which restores the function
        warnings.showwarning = lambda *about, **more: None
        yield


def grow(
    x: NDArray[np.float16],
    z: NDArray[np.float64],
    growth: Growth,
    trees: int,
    seed: int,
    jobs: int = 1,
    weights: NDArray[np.float64] | None = None,
) -> Forest:
    """Return a forest fitted to targets `z (n, K)` of rows `x (n, P)` with weights (n,), in `without_warnings`.

    Classes are columns of 0 and 1.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(
        trees,
        max_features=growth.features,
        min_samples_leaf=growth.leaf,
        min_samples_split=_SPLIT,
        random_state=seed,
        n_jobs=jobs,
    )
    model.fit(x.astype(np.float32), z if z.shape[1] > 1 else z[:, 0], weights)
    return from_sklearn(model)


def from_sklearn(model: Any) -> Forest:
    """Return the arrays of a fitted `ExtraTreesRegressor`."""
    trees = [_by_level(estimator.tree_) for estimator in model.estimators_]
    nodes = np.array([len(features) for features, _, _ in trees], np.int32)
    return Forest(nodes, *(np.concatenate(part) for part in zip(*trees, strict=True)))


def tree_count(rows: int, forests: Sequence[tuple[int, int]], growth: Growth) -> int:
    """Return the number of trees of each forest, so that all arrays keep their size.

    Parameters
    ----------
    rows : int
        Training rows.
    forests : pairs of int
        Labelled rows and outputs of each forest.
    growth : Growth
    """
    of_all = sum(labelled * growth.leaves * (2 * 2 + 2 + 4 * outputs) for labelled, outputs in forests)
    return int(np.clip(_BYTES * max(rows / 10_000, 1) / of_all, _LEAST_TREES, TREES))


def _by_level(tree: Any) -> tuple[NDArray[np.int16], NDArray[np.float16], NDArray[np.float32]]:
    """Return columns of nodes, thresholds of inner nodes and values of leaves, each in the order of levels."""
    levels = []
    level = np.zeros(1, np.int64)
    while len(level):
        levels.append(level)
        inner = level[tree.children_left[level] >= 0]
        level = np.stack([tree.children_left[inner], tree.children_right[inner]], axis=1).ravel()
    order = np.concatenate(levels)
    is_leaf = tree.children_left[order] < 0
    features = np.where(is_leaf, _LEAF, tree.feature[order]).astype(np.int16)
    return features, _round_down(tree.threshold[order[~is_leaf]]), tree.value[order[is_leaf], :, 0].astype(np.float32)


def _round_down(thresholds: NDArray[np.float64]) -> NDArray[np.float16]:
    """Return float16 that compare with every float16 as the float64 do; 0 is positive, as `ordered` reads it."""
    rounded = thresholds.astype(np.float16)
    lower = np.where(rounded > thresholds, np.nextafter(rounded, np.float16(-np.inf)), rounded)
    return (lower + np.float16(0)).astype(np.float16)


def ordered(numbers: NDArray[np.float16]) -> NDArray[np.int16]:
    """Return integers in the order of the numbers: the bits, those of a negative number inverted but for its sign.

    -0 comes before 0; as no threshold is -0, both take the same branch.
    """
    bits = np.ascontiguousarray(numbers).view(np.int16)
    return bits ^ ((bits >> 15) & np.int16(0x7FFF))
