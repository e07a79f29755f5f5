"""The member "kernel": kernel ridge regression on fingerprints and descriptors.

Classes are regressions of 0 and 1, squashed to probabilities. Tasks with labels in most rows share their linear algebra
and their ridge. The ridge, the transform of each task's targets, and the weight of descriptors beside fingerprints have
the least out-of-fold error on some rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch import philox
from gcnbatch.machine import cores
from gcnbatch.mixture.molecules import Prepared
from gcnbatch.mixture.normal_scores import Arrays
from gcnbatch.mixture.problem import Float64, Problem, Scales, Target
from gcnbatch.mixture.ridge import Inverse, Targets, added, solve, solve_by_landmarks, solve_with
from gcnbatch.mixture.similarity import Similarity, blas_threads, reweigh
from gcnbatch.mixture.steps import Step, no_step
from gcnbatch.mixture.transforms import KINDS, Kind, Transform

RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0)
_TUNED = 2000  # rows on which ridges and transforms are compared
_EXACT = 20_000  # rows whose whole kernel is solved; several tasks: less, see `_is_exact`
_LANDMARKS = 4000
_OF_A_THREAD = 4_000_000  # entries of the kernel
_GAIN = 0.005  # share of the error that a transform must save
SOFTNESS = 0.05


@dataclass(frozen=True)
class KernelRidge:
    """A fitted kernel ridge regression: similarity to M landmarks, times weights.

    Parameters
    ----------
    landmarks : Prepared
    weights : float64, (M, K)
    intercept : float64, (K,)
        NaN of a task that could not be learnt.
    weight : float
        Of the descriptors in the similarity.
    """

    landmarks: Prepared
    weights: Float64
    intercept: Float64
    weight: float = 1.0

    def predict(self, molecules: Prepared) -> Float64:
        """Return transformed values, or regressions of 0 and 1, (n, K), block by block."""
        return self._similarity.products(molecules, self.weights) + self.intercept

    def get_ready(self) -> None:
        """Compute what the threads of a prediction share."""
        _ = self._similarity

    @cached_property
    def _similarity(self) -> Similarity:
        return Similarity(self.landmarks, cores(), self.weight)

    def arrays(self) -> Arrays:
        """Return what `from_arrays` takes."""
        landmarks = {f"landmarks.{key}": array for key, array in self.landmarks.arrays().items()}
        own = {"weights": self.weights, "intercept": self.intercept, "weight": np.array([self.weight])}
        return own | landmarks

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> KernelRidge:
        """Return the object that `arrays` was called on."""
        prefix = "landmarks."
        own = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        weight = float(arrays["weight"][0]) if "weight" in arrays else 1.0  # older files lack it
        if (shape := arrays["weights"].shape) != (expected := (len(own["scores"]), len(arrays["intercept"]))):
            raise ValueError(f"weights of the kernel {shape}, not {expected}")
        return cls(Prepared.from_arrays(own), arrays["weights"], arrays["intercept"], weight)


# Returns the inverse of molecules' kernel with a weight of the descriptors, and a diagonal (n,) added; None: it cannot.
Invert = Callable[[Prepared, float, Float64], Inverse | None]


class Choice(NamedTuple):
    """The ridge of a task, and the weight of descriptors, equal for all tasks."""

    ridge: float
    weight: float = 1.0


def count_steps(problem: Problem, molecules: Prepared) -> int:
    """Return the number of steps that `choose_kinds`, where it is called, `choose` and `fit` report to `step`."""
    tried = len(RIDGES) * (len(_weights(molecules)) + (known_kinds(problem) is None))
    return 1 + sum(tried + len(problem.columns(tasks)) for _, tasks in problem.sharing())


def threads_of(problem: Problem) -> int:
    """Return the threads of BLAS that solve in the least time: all wait for the last one, which a busy core delays."""
    return min(problem.jobs, max(len(problem.y) ** 2 // _OF_A_THREAD, 1))


def whole_matrix(problem: Problem, molecules: Prepared) -> Float64 | None:
    """Return the kernel (n, n) that `fit` can solve exactly, also for `choose`; None where it takes landmarks.

    All fingerprints and the descriptors have equal weights in it.
    """
    if not _is_exact([len(rows) for rows, _ in problem.sharing()], len(molecules)):
        return None
    return Similarity(molecules, problem.jobs).square()


def _is_one_system(problem: Problem, molecules: Prepared) -> bool:
    """Whether `fit` solves one exact system of all rows: no cell lacks a target."""
    sizes = [len(rows) for rows, _ in problem.sharing()]
    return sizes == [len(molecules)] and _is_exact(sizes, len(molecules)) and not np.isnan(problem.values).any()


def invert_or_whole(
    problem: Problem, molecules: Prepared, invert: Invert | None
) -> tuple[Invert | None, Float64 | None]:
    """Return `invert` where `fit` can take it, else `whole_matrix`."""
    if invert is not None and _is_one_system(problem, molecules):
        return invert, None
    return None, whole_matrix(problem, molecules)


def choose_kinds(
    problem: Problem, molecules: Prepared, step: Step = no_step, whole: Float64 | None = None
) -> tuple[Kind, ...]:
    """Return the kind of transform of each output: that with the least out-of-fold error of the problem.

    It must be half a percent less than without it. Results do not depend on the number of threads.

    Parameters
    ----------
    whole : (n, n) or None
        What `whole_matrix` returned.
    """
    tried = _tried(problem)
    kinds = [kind for kind in KINDS if any(kind in of for of in tried.values())]
    scales = [Scales.fit(problem, (kind,) * problem.values.shape[1]) for kind in kinds]
    chosen: dict[int, Kind] = {}
    for rows, tasks, kernel in _samples(problem, molecules, whole):
        targets = _targets(problem, scales, rows, [problem.tasks[task] for task in tasks])
        (left_out,) = _by_ridge(problem, [kernel], targets, step)
        errors, ends = _errors(left_out, targets), _ends(problem, tasks)
        for task, first, end in zip(tasks, [0, *ends], ends, strict=False):
            column, options = problem.tasks[task], list[tuple[float, Kind]]()
            for number, (kind, scale) in enumerate(zip(kinds, scales, strict=True)):
                if kind not in tried[task]:
                    continue
                place = slice(number * ends[-1] + first, number * ends[-1] + end)
                outputs = np.full_like(problem.values, np.nan)
                outputs[rows, column] = left_out[np.argmin(errors[:, place].mean(axis=1))][:, place]
                options.append((problem.task_error(column, scale.invert(outputs, problem.folds)[:, column]), kind))
            chosen[task] = _best(options)
    return _kinds(problem, chosen)


def choose(
    problem: Problem,
    molecules: Prepared,
    kinds: tuple[Kind, ...],
    step: Step = no_step,
    whole: Float64 | None = None,
) -> dict[int, Choice]:
    """Return the choice for each learnable task, by its number, with these transforms of outputs.

    Ridge and weight have the least out-of-fold squared error of transformed targets, relative to the least of each
    task: the weight over all tasks. Results do not depend on the number of threads.

    Parameters
    ----------
    whole : (n, n) or None
        What `whole_matrix` returned.
    """
    scales, weights = Scales.fit(problem, kinds), _weights(molecules)
    total = dict.fromkeys(weights, 0.0)
    found: dict[float, dict[int, Choice]] = {weight: {} for weight in weights}
    for rows, tasks, kernel in _samples(problem, molecules, whole):
        targets = _targets(problem, [scales], rows, [problem.tasks[task] for task in tasks])
        kernels = [kernel, *(kernel.copy() for _ in weights[1:])]
        for weight, of_weight in zip(weights[1:], kernels[1:], strict=True):
            reweigh(of_weight, molecules[rows], weight, problem.jobs)
        ends, least = _ends(problem, tasks), None
        for weight, left_out in zip(weights, _by_ridge(problem, kernels, targets, step), strict=True):
            errors = _errors(left_out, targets)
            parts = zip([0, *ends], ends, strict=False)
            of_tasks = np.stack([errors[:, first:end].mean(axis=1) for first, end in parts])  # (tasks, ridges)
            least = of_tasks.min(axis=1, keepdims=True) if least is None else least
            relative = (of_tasks / least).sum(axis=0)
            ridge = RIDGES[int(np.argmin(relative))]
            total[weight] += float(relative.min())
            found[weight] |= {task: Choice(ridge, weight) for task in tasks}
    return found[min(total, key=lambda weight: total[weight])]


def known_kinds(problem: Problem) -> tuple[Kind, ...] | None:
    """Return the kind of transform of each output, if no task has a choice.

    Classes have none, the problem may name it, and a transform that would only change the unit is not compared.
    """
    tried = _tried(problem)
    if any(len(of) > 1 for of in tried.values()):
        return None
    return _kinds(problem, {task: of[0] for task, of in tried.items()})


def with_violated_bounds(problem: Problem, molecules: Prepared, invert: Invert | None = None) -> Problem:
    """Return the problem with the bounds that predictions violate as targets; the others stay missing.

    The predictions are those of a kernel fitted to the measured values alone.
    """
    bounds = problem.bounds
    if bounds is None:
        return problem
    invert, whole = invert_or_whole(problem, molecules, invert)
    kinds = known_kinds(problem) or choose_kinds(problem, molecules, whole=whole)
    choices, scales = choose(problem, molecules, kinds, whole=whole), Scales.fit(problem, kinds)
    fitted, _ = fit(problem, molecules, choices, scales, whole, invert=invert)
    predicted = scales.whole.invert(fitted.predict(molecules))
    is_violated = bounds.directions * (predicted - bounds.values) < 0  # not of a task that was not learnt, with NaN
    return replace(problem, y=np.where(is_violated, bounds.values, problem.y), bounds=None)


def fit(
    problem: Problem,
    molecules: Prepared,
    choices: Mapping[int, Choice],
    scales: Scales,
    whole: Float64 | None,
    step: Step = no_step,
    invert: Invert | None = None,
) -> tuple[KernelRidge, Float64]:
    """Return the regression, and out-of-fold predictions (n, K) like those of `predict`.

    `whole` is `whole_matrix` of the same problem; it may be overwritten. `invert` may take its place where
    `invert_or_whole` says so; it returns None if it cannot.
    """
    values = problem.values
    left_out = np.full_like(values, np.nan)
    systems, landmarks = problem.sharing(), molecules
    weight = next(iter(choices.values())).weight
    to_landmarks: tuple[Similarity, Float64] | None = None
    inverse: Inverse | None = None
    if whole is None and invert is not None:
        ((rows, tasks),) = systems
        targets = _targets(problem, [scales], rows, [problem.tasks[task] for task in tasks])
        inverse = invert(molecules, weight, added(choices[tasks[0]].ridge, targets))
        whole = whole_matrix(problem, molecules) if inverse is None else None
    if whole is None and inverse is None:
        order = philox.generator(problem.seed, "mixture.landmarks").permutation(len(values))
        landmarks = molecules[np.sort(order[:_LANDMARKS])]
        systems = problem.sharing(1.0)  # without missing cells
        similarity = Similarity(landmarks, problem.jobs, weight)
        to_landmarks = similarity, similarity.square()
    elif whole is not None and weight != 1:
        reweigh(whole, molecules, weight, problem.jobs)
    step()
    weights = np.zeros((len(landmarks), values.shape[1]))
    intercept = np.full(values.shape[1], np.nan)
    for rows, tasks in systems:
        ridge, columns = choices[tasks[0]].ridge, [problem.tasks[task] for task in tasks]
        targets = _targets(problem, [scales], rows, columns)
        places = problem.columns(tasks)
        if to_landmarks is not None:
            similarity, among = to_landmarks
            found = solve_by_landmarks(partial(similarity.blocks, molecules[rows]), among, ridge, targets)
            weights[:, places] = found.weights
            step(len(places))
        else:
            if inverse is not None:
                found = solve_with(inverse, targets, step, problem.jobs)
            else:
                assert whole is not None
                is_whole = len(systems) == 1 and len(rows) == len(whole)  # no copy, which may take gigabytes
                own = whole if is_whole else whole[np.ix_(rows, rows)]
                found = solve(own, ridge, targets, step, problem.jobs)
            weights[np.ix_(rows, places)] = found.weights
        left_out[np.ix_(rows, places)] = found.left_out
        intercept[places] = found.intercept
    return KernelRidge(landmarks, weights, intercept, weight), left_out


def activate(target: Target, regressions: Float64) -> Float64:
    """Return values (n, K) as they are, or probabilities of regressions of 0 and 1.

    Least squares estimate the probability itself, except that they leave the range from 0 to 1. They are bent into it
    smoothly, and keep their order:  s log(1 + e^(x/s)) - s log(1 + e^((x-1)/s)),  s = 0.05.
    """
    if target == "regression":
        return regressions
    scaled = regressions / SOFTNESS
    with np.errstate(invalid="ignore"):  # NaN of rows and tasks without predictions
        found = SOFTNESS * (np.logaddexp(0, scaled) - np.logaddexp(0, scaled - 1 / SOFTNESS))
    return found / found.sum(axis=1, keepdims=True) if target == "multiclass" else found


# ------------------------------------------------------------------------------------------------ internals


def _is_exact(sizes: Sequence[int], rows: int) -> bool:
    return rows <= _EXACT and sum(size**3 for size in sizes) <= _EXACT**3


def _weights(molecules: Prepared) -> tuple[float, ...]:
    """Return the weights of descriptors that are compared: that of a fingerprint, and that of all of them."""
    return (1.0, float(len(molecules.counts))) if len(molecules.counts) > 1 else (1.0,)


def _tried(problem: Problem) -> dict[int, tuple[Kind, ...]]:
    """Return the kinds of transform that are compared for each learnable task."""
    found: dict[int, tuple[Kind, ...]] = {}
    for task, column in enumerate(problem.tasks):
        if not problem.is_learnable(column):
            continue
        if problem.kinds is not None:
            found[task] = (problem.kinds[column.start],)
        elif problem.target == "regression":
            y = problem.values[:, column.start]
            found[task] = (KINDS[0], *(kind for kind in KINDS[1:] if Transform.fit(kind, y).bends(y)))
        else:
            found[task] = KINDS[:1]
    return found


def _kinds(problem: Problem, of_tasks: Mapping[int, Kind]) -> tuple[Kind, ...]:
    """Return the kind of transform of each output."""
    kinds: list[Kind] = ["none"] * problem.values.shape[1]
    for task, kind in of_tasks.items():
        kinds[problem.tasks[task].start] = kind
    return tuple(kinds)


def _samples(
    problem: Problem, molecules: Prepared, whole: Float64 | None
) -> Iterator[tuple[NDArray[np.int64], list[int], Float64]]:
    """Yield some rows for tasks that share a system, these tasks, and the kernel of the rows."""
    for rows, tasks in problem.sharing():
        order = philox.generator(problem.seed, "mixture.tuned").permutation(len(rows))
        some = np.sort(rows[order[:_TUNED]])
        own = whole[np.ix_(some, some)] if whole is not None else Similarity(molecules[some], problem.jobs).square()
        yield some, tasks, own


def _ends(problem: Problem, tasks: Sequence[int]) -> list[int]:
    """Return where the columns of each of these tasks end, side by side."""
    sizes = (problem.tasks[task].stop - problem.tasks[task].start for task in tasks)
    return list(accumulate(sizes))


def _by_ridge(problem: Problem, kernels: Sequence[Float64], targets: Targets, step: Step) -> Float64:
    """Return the predictions of left-out rows by each kernel and ridge, (kernels, ridges, n, C)."""
    systems = list(product(kernels, RIDGES))
    found = np.empty((len(systems), *targets.whole.shape))
    with blas_threads(1), ThreadPoolExecutor(min(problem.jobs, len(systems))) as threads:
        for number, left_out in enumerate(threads.map(partial(_left_out, targets), *zip(*systems, strict=True))):
            found[number] = left_out
            step()
    return found.reshape(len(kernels), len(RIDGES), *targets.whole.shape)


def _left_out(targets: Targets, kernel: Float64, ridge: float) -> Float64:
    return solve(kernel.copy(), ridge, targets).left_out


def _errors(left_out: Float64, targets: Targets) -> Float64:
    """Return the mean squared errors (ridges, C) of predictions of left-out rows."""
    return np.asarray(np.nanmean((left_out - _own_targets(targets)) ** 2, axis=1))


def _targets(problem: Problem, scales: Sequence[Scales], rows: NDArray[np.int64], columns: Sequence[slice]) -> Targets:
    """Return the targets of some rows in the columns of some tasks, once for each of `scales`."""

    def of(parts: Sequence[Any]) -> Float64:
        tables = [part.apply(problem.values[rows]) for part in parts]
        return np.concatenate([table[:, column] for table in tables for column in columns], axis=1)

    without = np.stack([of(parts) for parts in zip(*(scale.without for scale in scales), strict=True)])
    return Targets(problem.folds[rows], without, of([scale.whole for scale in scales]), problem.weights_of(rows))


def _own_targets(targets: Targets) -> Float64:
    """Return what each left-out row should have been predicted as, (n, C)."""
    return targets.without[targets.folds, np.arange(len(targets.folds))]


def _best(options: Sequence[tuple[float, Kind]]) -> Kind:
    error, kind = options[0]
    for other, better in options[1:]:
        if other < error - _GAIN * abs(error) or not np.isfinite(error):
            error, kind = other, better
    return kind
