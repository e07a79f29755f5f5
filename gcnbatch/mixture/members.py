"""The members that need no network: the kernel and the trees, fitted to the same parts of the training rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np

from gcnbatch.mixture import kernel as kernels
from gcnbatch.mixture import trees as forests
from gcnbatch.mixture.forest import load_library
from gcnbatch.mixture.kernel import Invert, KernelRidge
from gcnbatch.mixture.molecules import Molecules, Preparation
from gcnbatch.mixture.normal_scores import Arrays
from gcnbatch.mixture.problem import Float64, Problem, Scales, Target
from gcnbatch.mixture.similarity import BLOCK, blas_threads
from gcnbatch.mixture.steps import Advance, Steps, no_progress
from gcnbatch.mixture.store import join, split
from gcnbatch.mixture.transforms import Kind, Transforms
from gcnbatch.mixture.trees import Trees
from gcnbatch.timeline import span

KERNEL, TREES = "kernel", "trees"
NAMES = (KERNEL, TREES)


@dataclass(frozen=True)
class Members:
    """Fitted members and the maps of their inputs and outputs.

    Parameters
    ----------
    target : {"regression", "binary", "multiclass"}
    preparation : Preparation
    transforms : Transforms
        Of each output, chosen by the kernel's out-of-fold error; other members may learn with them, too.
    kernel : KernelRidge or None
    trees : Trees or None
        None where the mixture does without it.
    """

    target: Target
    preparation: Preparation
    transforms: Transforms
    kernel: KernelRidge | None
    trees: Trees | None

    def predict(self, molecules: Molecules, jobs: int = 1) -> dict[str, Float64]:
        """Return each member's outputs (n, K): values in the user's units, or probabilities.

        Memory beside inputs and outputs does not grow with n. NaN in tasks that could not be learnt.
        """
        self.get_ready()
        found = {name: np.empty((len(molecules), len(self.transforms.each))) for name in self._each}

        def predict_block(first: int) -> None:
            rows = slice(first, first + BLOCK)
            prepared = self.preparation.apply(molecules[rows])
            if self.kernel:
                found[KERNEL][rows] = self.outputs_of_kernel(self.kernel.predict(prepared))
            if self.trees:
                outputs = self.trees.predict(self.preparation.table(prepared))
                found[TREES][rows] = self.transforms.invert(outputs)

        first, *others = range(0, max(len(molecules), 1), BLOCK)
        with blas_threads(1), ThreadPoolExecutor(jobs) as threads:
            calls = threads.map(predict_block, others)
            predict_block(first)  # here: few molecules need no further thread
            list(calls)
        return found

    def outputs_of_kernel(self, regressions: Float64) -> Float64:
        """Return the kernel's outputs (n, K), as `predict` does, from what `KernelRidge.predict` returns."""
        return self.transforms.invert(kernels.activate(self.target, regressions))

    @property
    def _each(self) -> dict[str, KernelRidge | Trees]:
        return {name: of for name, of in ((KERNEL, self.kernel), (TREES, self.trees)) if of is not None}

    def get_ready(self) -> None:
        """Compute what the threads, or the processes, of predictions share."""
        for member in self._each.values():
            member.get_ready()

    def arrays(self) -> Arrays:
        """Return what `from_arrays` takes beside the target."""
        parts = {"preparation": self.preparation.arrays(), "transforms": self.transforms.arrays()}
        if self.kernel:
            parts[KERNEL] = self.kernel.arrays()
        if self.trees:
            parts[TREES] = self.trees.arrays()
        return join(parts)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], target: Target) -> Members:
        """Return the object that `arrays` was called on."""
        parts = split(arrays)
        preparation = Preparation.from_arrays(parts["preparation"])
        trees = Trees.from_arrays(parts[TREES]) if TREES in parts else None
        for _, forest in trees.forests if trees else ():
            forest.check(len(preparation.fragments) + len(preparation.scores.varied))
        return cls(
            target,
            preparation,
            Transforms.from_arrays(parts["transforms"]),
            KernelRidge.from_arrays(parts[KERNEL]) if KERNEL in parts else None,
            trees,
        )


def fit_members(
    problem: Problem, molecules: Molecules, advance: Advance = no_progress, invert: Invert | None = None
) -> tuple[Members, dict[str, Float64]]:
    """Return the members fitted to all rows, and each one's out-of-fold outputs (n, K), like those of `predict`.

    `advance` is called with a member's name, and its steps that are done and all of them. The trees grow beside the
    choice of the ridge and the fit of the kernel, but not while its matrix is computed, which takes all cores. Where
    no cell lacks a target, `invert` may compute and invert it.

    Nothing that predicts a row has seen the targets of the part that it is in, except the choice of one ridge and one
    kind of transform for each task, of one weight of descriptors, and of the bounds that are learnt.
    """
    with span("prepare the features"):
        preparation = Preparation.fit(molecules)
        prepared = preparation.apply(molecules)
        with blas_threads(kernels.threads_of(problem)):
            problem = kernels.with_violated_bounds(problem, prepared, invert)
    failed = Event()

    def advance_trees(member: str, done: int, count: int) -> None:
        if failed.is_set():
            raise CancelledError
        advance(member, done, count)

    def start_trees(scales: Scales) -> Future[tuple[Trees, Float64]]:
        return beside.submit(forests.fit, problem, preparation, prepared, scales, advance_trees)

    with ThreadPoolExecutor(1) as beside, _set_on_error(failed):
        beside.submit(load_library)  # while the kernel is computed
        kinds = kernels.known_kinds(problem)
        with blas_threads(kernels.threads_of(problem)):
            steps = Steps(advance, KERNEL, kernels.count_steps(problem, prepared))
            with span("compute the kernel"):
                invert, whole = kernels.invert_or_whole(problem, prepared, invert)
            if kinds is None:
                with span("choose transforms"):
                    kinds = kernels.choose_kinds(problem, prepared, steps.take, whole)
            scales = Scales.fit(problem, kinds)
            trees = start_trees(scales)
            with span("choose the ridge"):
                choices = kernels.choose(problem, prepared, kinds, steps.take, whole)
            with span("fit the kernel"):
                kernel, of_kernel = kernels.fit(problem, prepared, choices, scales, whole, steps.take, invert)
        del whole
        with span("wait for the trees"):
            forest, of_trees = trees.result()
    of_kernel = kernels.activate(problem.target, of_kernel)
    left_out = {name: scales.invert(of, problem.folds) for name, of in ((KERNEL, of_kernel), (TREES, of_trees))}
    return Members(problem.target, preparation, scales.whole, kernel, forest), left_out


def choose_kinds(problem: Problem, read: Callable[[], Molecules]) -> tuple[Kind, ...]:
    """Return the kind of transform of each output that gives the kernel the least out-of-fold error.

    Its bits depend on no number of threads. `read` returns the molecules; it is called if there is a choice.
    """
    if (kinds := kernels.known_kinds(problem)) is not None:
        return kinds
    molecules = read()
    prepared = Preparation.fit(molecules).apply(molecules)
    return kernels.choose_kinds(problem, prepared)


@contextmanager
def _set_on_error(event: Event) -> Iterator[None]:
    """Set the event if the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        event.set()
        raise
