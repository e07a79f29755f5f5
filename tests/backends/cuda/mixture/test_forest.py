"""Forests on a device."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.backends.mixtures import Nodes
from gcnbatch.backends.registry import open_backend
from gcnbatch.mixture.forest import VALUES, Forest, grow, ordered


def grown(outputs: int, trees: int, rows: int = 200) -> tuple[Forest, np.ndarray]:
    rng = np.random.default_rng(outputs)
    x = np.concatenate([rng.normal(size=(rows, 7)), rng.integers(0, 3, (rows, 5))], axis=1).astype(np.float16)
    x[::5, 0], x[1::7, 1] = -0.0, 0.0
    return grow(x, rng.normal(size=(rows, outputs)), VALUES, trees, seed=3), x


@pytest.mark.gpu
@pytest.mark.parametrize(("outputs", "trees"), [(1, 1), (1, 200), (8, 30), (19, 131)])
def test_a_forest_on_a_device_gives_the_mean_of_its_trees(outputs: int, trees: int) -> None:
    """The leaves are those of the host, so that only sums in another order differ."""
    forest, x = grown(outputs, trees)
    nodes, leaves = forest.packed
    there = Nodes(nodes, leaves.astype(np.int32), forest.roots.astype(np.int32), forest.values)
    found = open_backend("batched").mixture_ops().forest(there).means(ordered(x))
    bound = 2 * 2.0**-53 * (trees + 1) * np.abs(forest.values).max()
    assert np.all(np.abs(found - forest.predict(x)) <= bound)
    again = open_backend("batched").mixture_ops().forest(there)
    assert np.array_equal(np.concatenate([again.means(ordered(x[:33])), again.means(ordered(x[33:]))]), found)
