"""The member "trees": a forest for each task, on fragments and normal scores of descriptors.

Each tree leaves one part of the rows out, and so predicts it; all trees together are the forest. Classes with labels in
most rows share one forest: a missing label is taken as the mean of its task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.mixture.forest import CLASSES, VALUES, Forest, Growth, grow, tree_count, without_warnings
from gcnbatch.mixture.molecules import Preparation, Prepared
from gcnbatch.mixture.normal_scores import Arrays
from gcnbatch.mixture.problem import Float64, Problem, Scales
from gcnbatch.mixture.steps import Advance, Steps, no_progress
from gcnbatch.mixture.store import split

_COPIES = 1 << 30  # bytes of the rows of parts that grow trees at the same time
# Fewest trees that predict a left-out part; of the largest forest, 20 of each are kept. With weights that were found on
# 50, the test error of ten sets of MoleculeACE is the same within 0.2 %.
_OF_A_PART = 30


@dataclass(frozen=True)
class Trees:
    """Forests of tasks.

    Parameters
    ----------
    forests : sequence of pairs
        The columns of the outputs that a forest has, int64, and the forest; a task that could not be learnt has none.
    outputs : int
    """

    forests: Sequence[tuple[NDArray[np.int64], Forest]]
    outputs: int

    def predict(self, x: NDArray[np.float16]) -> Float64:
        """Return transformed values, or probabilities, (n, K) for rows `x (n, P)`."""
        return self.of_forests((forest.predict(x) for _, forest in self.forests), len(x))

    def of_forests(self, means: Iterable[Float64], rows: int) -> Float64:
        """Return what `predict` does, (rows, K), from the mean of the values of each forest."""
        found = np.full((rows, self.outputs), np.nan)
        for (columns, _), mean in zip(self.forests, means, strict=True):
            found[:, columns] = mean
        return found

    def get_ready(self) -> None:
        """Compute what the threads of a prediction share."""
        for _, forest in self.forests:
            forest.get_ready()

    def arrays(self) -> Arrays:
        """Return what `from_arrays` takes."""
        forests = {
            f"{number}.{key}": array
            for number, (columns, forest) in enumerate(self.forests)
            for key, array in {"columns": columns, **forest.arrays()}.items()
        }
        return {"outputs": np.array([self.outputs], np.int64), **forests}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Trees:
        """Return the object that `arrays` was called on."""
        of_forests = split({key: array for key, array in arrays.items() if key != "outputs"})
        forests = [(of["columns"], Forest.from_arrays(of)) for _, of in sorted(of_forests.items())]
        return cls(forests, int(arrays["outputs"][0]))


def fit(
    problem: Problem,
    preparation: Preparation,
    molecules: Prepared,
    scales: Scales,
    advance: Advance = no_progress,
) -> tuple[Trees, Float64]:
    """Return the forests, and out-of-fold predictions (n, K) like those of `predict`.

    Steps are trees that are grown.
    """
    x = preparation.table(molecules)
    values, seeds = problem.values, philox.generator(problem.seed, "mixture.trees")
    left_out = np.full_like(values, np.nan)
    growth = VALUES if problem.target == "regression" else CLASSES
    groups = [(rows, problem.columns(tasks)) for rows, tasks in _groups(problem)]
    count = tree_count(len(x), [(len(rows), len(columns)) for rows, columns in groups], growth)
    of_parts = [transforms.apply(values) for transforms in scales.without]
    plan = [(*group, np.unique(problem.folds[group[0]]).tolist()) for group in groups]
    forests = []
    kept_of_part = [-(-count // len(parts)) for *_, parts in plan]
    grown_of_part = [max(kept, _OF_A_PART) for kept in kept_of_part]
    sizes = zip(plan, grown_of_part, strict=True)
    steps = Steps(advance, "trees", sum(grown * len(parts) for (*_, parts), grown in sizes))
    for (rows, columns, parts), kept, grown in zip(plan, kept_of_part, grown_of_part, strict=True):
        drawn = zip(parts, seeds.integers(2**32, size=len(parts)).tolist(), strict=True)
        of_group = []
        for part, own, forest in _grown(problem, x, of_parts, rows, columns, dict(drawn), growth, grown):
            left_out[np.ix_(own, columns)] = forest.predict(x[own])
            first = forest.first(kept)
            of_group.append(replace(first, values=scales.without_to_whole(part, columns, first.values)))
            steps.take(grown)
        forests.append((columns, Forest.join(of_group)))
    left_out[np.isnan(values)] = np.nan
    return Trees(forests, values.shape[1]), left_out


def _grown(
    problem: Problem,
    x: NDArray[np.float16],
    of_parts: Sequence[Float64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    seeds: Mapping[int, int],
    growth: Growth,
    trees: int,
) -> Iterator[tuple[int, NDArray[np.int64], Forest]]:
    """Yield each part that has a seed, its rows, and so many trees grown from the other `rows`.

    Parts that grow at the same time keep all cores at work; their copies of rows take at most `_COPIES` bytes.
    """
    beside = min(problem.jobs, len(seeds), max(_COPIES // (4 * x.size), 1))
    jobs = -(-problem.jobs // beside)

    def grow_without(part: int) -> tuple[int, NDArray[np.int64], Forest]:
        is_own = problem.folds[rows] == part
        others = rows[~is_own]
        z, weights = _without_gaps(of_parts[part][np.ix_(others, columns)]), problem.weights_of(others)
        return part, rows[is_own], grow(x[others], z, growth, trees, seeds[part], jobs, weights)

    with without_warnings(), ThreadPoolExecutor(beside) as threads:
        yield from threads.map(grow_without, seeds)


def _groups(problem: Problem) -> list[tuple[NDArray[np.int64], list[int]]]:
    """Return tasks that share a forest, with the rows that have labels of them."""
    if problem.target == "binary":
        return problem.sharing()
    tasks = [task for task, columns in enumerate(problem.tasks) if problem.is_learnable(columns)]
    return [(problem.rows(problem.tasks[task]), [task]) for task in tasks]


def _without_gaps(z: Float64) -> Float64:
    """Return targets (n, C) with the mean of a column in place of NaN."""
    return np.where(np.isnan(z), np.nanmean(z, axis=0), z)
