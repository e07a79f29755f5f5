"""The member "trees": extremely randomised trees, grown by scikit-learn and kept as plain arrays.

Nodes of a tree are numbered level by level, so that the children of its k-th inner node are the nodes 2k + 1 and
2k + 2: no child is stored. A node takes 2 bytes, an inner node 2 more, a leaf 4 for each output.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.mixture.normal_scores import Arrays

TREES = 300
_LEAST_TREES = 30
_BYTES = 40_000_000  # of the arrays for 10,000 rows; fewer trees where they would be larger
_SPLIT = 4  # rows of the smallest node that is split
_BLOCK = 4096
_LEVELS = 4  # that rows descend before those at leaves are taken out
_LEAF = -1


class Growth(NamedTuple):
    """How trees grow.

    Parameters
    ----------
    features : float
        Share of the features that each node tries.
    leaf : int
        Fewest rows of a leaf.
    leaves : float
        Leaves of a tree, at most about, for each row.
    """

    features: float
    leaf: int
    leaves: float


VALUES, CLASSES = Growth(0.1, 1, 0.75), Growth(0.05, 3, 1 / 3)


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
        A row goes to the second child if its value, a number that float16 can represent, is larger.
    values : float32, (leaves, K)
    """

    nodes: NDArray[np.int32]
    features: NDArray[np.int16]
    thresholds: NDArray[np.float16]
    values: NDArray[np.float32]

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the mean of the trees' values, (n, K), for rows `x (n, P)`."""
        found = np.zeros((len(x), self.values.shape[1]))
        for first in range(0, len(x), _BLOCK):
            rows = slice(first, first + _BLOCK)
            self._add(np.ascontiguousarray(x[rows].T).ravel(), found[rows])
        return found / len(self.nodes)

    def _add(self, x: NDArray[np.float32], found: NDArray[np.float64]) -> None:
        """Add the value of each tree; `x` has the columns of a block one after the other."""
        count = len(found)
        columns, thresholds, children, leaves = self._links
        final = np.empty(count, np.int64)
        for root in self._roots.tolist():
            rows, nodes = np.arange(count), np.full(count, root)
            while len(rows):
                for _ in range(_LEVELS):
                    second = x.take(columns.take(nodes) * count + rows) > thresholds.take(nodes)
                    nodes = children.take(nodes) + second
                leaf = leaves.take(nodes)
                final[rows] = leaf  # of rows that go on, it is written again
                inner = leaf < 0
                rows, nodes = rows[inner], nodes[inner]
            found += self.values[final]

    @property
    def _roots(self) -> NDArray[np.int64]:
        return np.cumsum(self.nodes, dtype=np.int64) - self.nodes

    @cached_property
    def _links(self) -> tuple[NDArray[Any], ...]:
        """Column, threshold and first child of each node, and the number of a leaf or -1.

        A leaf has itself as its child, and no value is above its threshold.
        """
        is_leaf = self.features == _LEAF
        tree = np.repeat(np.arange(len(self.nodes)), self.nodes)
        before = np.cumsum(~is_leaf) - ~is_leaf  # inner nodes before each node
        roots = self._roots
        children = roots[tree] + 2 * (before - before[roots][tree]) + 1
        children[is_leaf] = np.flatnonzero(is_leaf)
        thresholds = np.full(len(is_leaf), np.inf, np.float32)
        thresholds[~is_leaf] = self.thresholds
        leaves = np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)
        return np.maximum(self.features, 0).astype(np.int64), thresholds, children, leaves

    def first(self, count: int) -> Forest:
        """Return the forest of the first trees."""
        nodes = int(self.nodes[:count].sum())
        leaves = int((self.features[:nodes] == _LEAF).sum())
        inner = nodes - leaves
        return Forest(self.nodes[:count], self.features[:nodes], self.thresholds[:inner], self.values[:leaves])

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
        """Return what `arrays` was called of."""
        return cls(*(arrays[key] for key in ("nodes", "features", "thresholds", "values")))


def grow(
    x: NDArray[np.float32],
    z: NDArray[np.float64],
    growth: Growth,
    trees: int,
    seed: int,
    jobs: int = 1,
    weights: NDArray[np.float64] | None = None,
) -> Forest:
    """Return a forest fitted to targets `z (n, K)` of rows `x (n, P)` with weights (n,); float16 can represent `x`.

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
    with warnings.catch_warnings():  # threads of scikit-learn can lose the filters of each other, and it warns of that
        warnings.simplefilter("ignore")
        model.fit(x, z if z.shape[1] > 1 else z[:, 0], weights)
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
    """Return float16 that compare with every float16 as the float64 do."""
    rounded = thresholds.astype(np.float16)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float16(-np.inf)), rounded).astype(np.float16)
