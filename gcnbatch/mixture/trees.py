"""The member "trees": a forest for each task, on fragments and normal scores of descriptors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count as count_from
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.mixture.forest import Forest, grow, tree_count
from gcnbatch.mixture.molecules import Preparation, Prepared
from gcnbatch.mixture.normal_scores import Arrays
from gcnbatch.mixture.problem import Float64, Problem, Scales

_OF_A_PART = 50  # trees that predict a left-out part
_BLOCK = 4096
Advance = Callable[[int, int], object]


@dataclass(frozen=True)
class Trees:
    """Forests of tasks.

    Parameters
    ----------
    forests : dict
        By the first output of the task; a task that could not be learnt has none.
    outputs : int
    """

    forests: Mapping[int, Forest]
    outputs: int

    def predict(self, preparation: Preparation, molecules: Prepared, jobs: int = 1) -> Float64:
        """Return transformed values, or probabilities, (n, K), block by block in threads."""
        found = np.full((len(molecules), self.outputs), np.nan)

        def predict_block(first: int) -> None:
            rows = slice(first, first + _BLOCK)
            x = preparation.table(molecules[rows])
            for output, forest in self.forests.items():
                found[rows, output : output + forest.values.shape[1]] = forest.predict(x)

        if len(molecules) <= _BLOCK:  # a thread takes longer to start
            predict_block(0)
            return found
        with ThreadPoolExecutor(jobs) as threads:
            list(threads.map(predict_block, range(0, len(molecules), _BLOCK)))
        return found

    def arrays(self) -> Arrays:
        """Return what `from_arrays` takes."""
        found: Arrays = {"outputs": np.array([self.outputs], np.int64)}
        for output, forest in self.forests.items():
            found |= {f"{output}.{key}": array for key, array in forest.arrays().items()}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Trees:
        """Return what `arrays` was called of."""
        of_forests: dict[int, dict[str, NDArray[Any]]] = {}
        for key, array in arrays.items():
            output, _, name = key.partition(".")
            if name:
                of_forests.setdefault(int(output), {})[name] = array
        forests = {output: Forest.from_arrays(of_forests[output]) for output in sorted(of_forests)}
        return cls(forests, int(arrays["outputs"][0]))


def no_progress(done: int, count: int) -> None:
    """Report nothing."""


def fit(
    problem: Problem,
    preparation: Preparation,
    molecules: Prepared,
    scales: Scales,
    advance: Advance = no_progress,
) -> tuple[Trees, Float64]:
    """Return the forests, and out-of-fold predictions (n, K) like those of `predict`.

    `advance` is called after each forest with the number of those that are grown, and of those to grow.
    """
    x = preparation.table(molecules)
    left_out = np.full_like(problem.values, np.nan)
    tasks = [task for task in problem.tasks if problem.is_learnable(task)]
    labelled = sum(len(problem.rows(task)) for task in tasks)
    count = tree_count(len(x), labelled, tasks[0].stop - tasks[0].start)
    whole = scales.whole.apply(problem.values)
    of_parts = [transforms.apply(problem.values) for transforms in scales.without]
    forests = {}
    parts = {task.start: np.unique(problem.folds[problem.rows(task)]).tolist() for task in tasks}
    total = sum(len(of) + 1 for of in parts.values())
    done = count_from(1)
    for task in tasks:
        rows = problem.rows(task)
        for part in parts[task.start]:
            own = problem.folds[rows] == part
            others = rows[~own]
            z, weights = of_parts[part][others, task], problem.weights_of(others)
            forest = grow(x[others], z, min(count, _OF_A_PART), problem.seed, problem.jobs, weights)
            left_out[rows[own], task] = forest.predict(x[rows[own]])
            advance(next(done), total)
        z, weights = whole[rows, task], problem.weights_of(rows)
        forests[task.start] = grow(x[rows], z, count, problem.seed, problem.jobs, weights)
        advance(next(done), total)
    return Trees(forests, problem.values.shape[1]), left_out
