"""Whether backends agree: losses, every gradient, the state after each of some steps, held to the reference in float64.

Every step begins with the state that the reference in float64 had there, rounded to float32. Runs that each continued
from their own state would diverge: over some steps, ReLU and Adam amplify a rounding to any size. Adam's first update
is the sign of the gradient, which rounding decides where the gradient is almost 0. So parameters after the first step
are not compared, but moments are.

The rule. The reference computes every quantity in float64 (taken as exact) and several times in float32. With e(run) =
max |run - exact| over an array, a backend agrees when

    e(backend) <= 2 max over the float32 runs of e(run) + 1e-6 max |exact|.

The first float32 run is the reference as it is. The others are Monte Carlo arithmetic (Parker, UCLA, 1997): they move
every intermediate value, at random and seeded, by up to sqrt(K) units in its last place, K being the longest sum in
the model's products. That is what another order of summation may do (Higham, Mary: "A new approach to probabilistic
rounding error analysis", SIAM J. Sci. Comput. 41, 2019). Single operations are held to bounds from running error
analysis (``tests/ops/bounds.py``). Bounds of whole models would allow too much: ReLU, a maximum and Adam's first
steps are not continuous. A value within rounding of zero may fall on either side, and one element that does moves a
gradient by far more than rounding; a single run cannot show all of these. Of 270 other runs with moves of this size
(nine models, 30 seeds each) 36 broke the rule when the reference ran eight times, ten steps and Adam's first update
were compared. One broke it of four steps and 16 runs, and none with moves of 0.6 times the size.

With products in TF32 the values move by a rounding to TF32 besides, and so do the operands of products, in twice as
many runs: rounded operands push sums that cancel past zero far more often. The reference stays what it is. Of 72
honest runs in TF32 (three models, 24 seeds) 14 broke the rule when results alone were moved, 2 with operands; of 120
none with 32 runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend, Runner
from gcnbatch.backends.cpu import HostFeed
from gcnbatch.data.graphs import Int64
from gcnbatch.lab.backend_comparison.reference import LOOP_ENTRIES, ReferenceBackend, entries, jitters
from gcnbatch.lab.backend_comparison.workload import Effort, Say, Workload
from gcnbatch.model.gcn import Gcn
from gcnbatch.runners.choice import make_runner
from gcnbatch.runners.ops import OpsRunner
from gcnbatch.text import counted

RULE = (
    "the error of an array (largest distance to the reference in float64) is at most twice that of the reference in "
    "float32 plus 1e-6 of the array's largest value. The reference runs {samples} times in float32, the largest error "
    "counts; all runs but the first move every intermediate value by up to {units:,.3g} units in its last place: {why}"
)
ORDER = "the square root of the {terms} terms of the model's longest sum, which another order of summation may do"
TF32 = (
    ", and tensor cores that round their inputs to 11 bits (cuda.precision = 'tf32'), by which operands of products "
    "are moved, too"
)
TF32_UNITS, TF32_RUNS = 2.0**12, 2  # half the distance of TF32 neighbours, in units of float32; times as many runs
SCALE_SHARE = 1e-6
Key = TypeVar("Key")
Observed = dict[tuple[str, str], NDArray[Any]]


@dataclass(frozen=True)
class Deviation:
    """How far one array is from the reference.

    Parameters
    ----------
    where : str
        Such as ``"batch 2 (50 graphs)"`` or ``"after step 10"``.
    name : str
        ``"loss"``, or an array of `Runner.state`; of a batch, a parameter, for its gradient.
    error, bound, scale : float
        Largest distance, what is allowed, largest value of the reference.
    """

    where: str
    name: str
    error: float
    bound: float
    scale: float

    @property
    def agrees(self) -> bool:
        """Whether the error is within its bound; a value that is not a number is not."""
        return self.error <= self.bound

    @property
    def ratio(self) -> float:
        """Error over bound; 0 when both are 0."""
        if self.error == 0:
            return 0.0
        return self.error / self.bound if self.bound and math.isfinite(self.error) else math.inf

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the report."""
        figures = {name: or_none(getattr(self, name)) for name in ("error", "bound", "scale", "ratio")}
        return {"where": self.where, "name": self.name, "agrees": self.agrees, **figures}


@dataclass(frozen=True)
class Agreement:
    """What was found of one backend: every deviation, and its losses step by step."""

    backend: str
    deviations: list[Deviation]
    losses: list[float]

    @property
    def passed(self) -> bool:
        """Whether every array agrees."""
        return all(deviation.agrees for deviation in self.deviations)

    @property
    def worst(self) -> Deviation:
        """The deviation that comes closest to its bound, or exceeds it most."""
        return max(self.deviations, key=lambda deviation: deviation.ratio)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the report."""
        return {
            "passed": self.passed,
            "worst": self.worst.to_json(),
            "failures": sum(not deviation.agrees for deviation in self.deviations),
            "losses": [or_none(loss) for loss in self.losses],
            "deviations": [deviation.to_json() for deviation in self.deviations],
        }


class Parity:
    """Holds backends to the reference, whose runs are made once.

    Parameters
    ----------
    workload : Workload
    effort : Effort
    tick : callable
        Called with the name of what runs next.
    runner : callable or None
        Returns the reference's runner on a backend; None: that of one process.

    Attributes
    ----------
    exact : dict of arrays
        What the reference in float64 gives, by place and name; see `observe`.
    bounds : dict of float
        The largest error of each that the rule allows.
    """

    def __init__(
        self,
        workload: Workload,
        effort: Effort,
        tick: Say = lambda what: None,
        runner: Callable[[ReferenceBackend], Runner] | None = None,
    ) -> None:
        self._workload, self._effort = workload, effort
        self.batches = _chosen(workload.batches, effort.parity_batches)
        task = workload.task
        self._terms = longest_sum(task.model)
        self._signs = task.model.layout().names(trainable=True) if task.train.optimizer == "adam" else []
        self._tf32 = workload.experiment.config.cuda.precision == "tf32"
        operands = TF32_UNITS if self._tf32 else 0.0
        self.units = self._terms**0.5 + operands
        first = HostFeed(task.source, task.targets).gather(workload.batches[0])
        self.by_loops = entries(first) <= LOOP_ENTRIES
        tick("reference in float64")
        self._runner = runner or (lambda backend: OpsRunner(backend, task))
        self.exact: Observed = {}
        self.exact = self.observe(self._runner(ReferenceBackend(np.float64, self.by_loops)))
        self.losses = _losses(self.exact)
        self._runs = effort.samples * (TF32_RUNS if self._tf32 else 1)
        self.bounds = bounds(self.exact, self._float32_runs(operands, tick))

    @property
    def rule(self) -> str:
        """The rule in words."""
        why = ORDER.format(terms=self._terms) + (TF32 if self._tf32 else "")
        return RULE.format(samples=self._runs, units=self.units, why=why)

    def to_json(self, agreements: Mapping[str, Agreement]) -> dict[str, Any]:
        """Return the verdict, the rule, and every deviation of every backend, for the report."""
        return {
            "passed": all(agreement.passed for agreement in agreements.values()),
            "rule": self.rule,
            "batches": [where for where, _ in self.batches],
            "reference_losses": [or_none(loss) for loss in self.losses],
            "backends": {name: found.to_json() for name, found in agreements.items()},
        }

    def check(self, backend: Backend) -> Agreement:
        """Return how far `backend` is from the reference."""
        found = self.observe(make_runner(backend, [self._workload.task]))
        return Agreement(backend.name, self.deviations(found), _losses(found))

    def observe(self, runner: Runner) -> Observed:
        """Return what is compared of a runner of the workload's task, and close the runner."""
        try:
            return observe(runner, self.batches, self._workload, self._effort.parity_steps, self.exact)
        finally:
            runner.close()

    def deviations(self, found: Observed) -> list[Deviation]:
        """Return how far each array that `observe` returned is from the reference."""
        signs = {(_before(1), name) for name in self._signs}
        return [self._deviation(key, found.get(key), exact) for key, exact in self.exact.items() if key not in signs]

    def _float32_runs(self, operands: float, tick: Say) -> Iterator[Observed]:
        for run, jitter in enumerate(jitters(self._runs, self.units, operands), 1):
            tick(f"reference in float32, run {run} of {self._runs}")
            yield self.observe(self._runner(ReferenceBackend(np.float32, by_loops=False, jitter=jitter)))

    def _deviation(self, key: tuple[str, str], got: NDArray[Any] | None, exact: NDArray[Any]) -> Deviation:
        scale = float(np.max(np.abs(exact), initial=0))
        error = math.inf if got is None or got.shape != exact.shape else distance(got, exact)
        return Deviation(*key, error, self.bounds[key], scale)


def observe(
    runner: Runner,
    batches: Sequence[tuple[str, Int64]],
    workload: Workload,
    steps: int,
    exact: Observed | None = None,
) -> Observed:
    """Return what is compared, by place and name.

    First the state; loss and gradients of each batch; loss and state of each of `steps` steps. Each step begins with
    the state that `exact` has before it, without `exact` with the runner's own, rounded to float32.
    """
    initial = runner.state()
    found = _placed(_before(0), initial)
    for where, graphs in batches:
        runner.load_state(initial)
        loss, gradients = runner.gradients(graphs)
        found[where, "loss"] = np.asarray(loss)
        found |= {(where, name): gradient for name, gradient in gradients.items()}
    for step in range(steps):
        runner.load_state(_start(exact or found, step))
        runner.begin_epoch(workload.epoch(steps, first=step))
        runner.step(step)
        ((total, weight),) = runner.take_losses()
        found[f"step {step + 1}", "loss"] = np.asarray(total / weight if weight else 0.0)
        found |= _placed(_before(step + 1), runner.state())
    return found


def _placed(where: str, state: Mapping[str, NDArray[Any]]) -> Observed:
    return {(where, name): value for name, value in state.items() if name != "loss"}


def _before(step: int) -> str:
    return f"after step {step}" if step else "before training"


def _start(observed: Observed, step: int) -> dict[str, NDArray[Any]]:
    """Return the state before a step, rounded to float32."""
    state = {name: value for (where, name), value in observed.items() if where == _before(step)}
    return {name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in state.items()}


def _chosen(batches: Sequence[Int64], count: int) -> list[tuple[str, Int64]]:
    """The first batches and the epoch's last one, which may be smaller."""
    numbers = [*range(min(count - 1, len(batches) - 1)), len(batches) - 1]
    return [(_name(number, batches[number]), batches[number]) for number in numbers]


def _name(number: int, graphs: Int64) -> str:
    return f"batch {number + 1} ({counted(len(graphs), 'graph')})"


def longest_sum(model: Gcn) -> int:
    """K: the most terms that an element of a product with a weight adds up."""
    specs = (spec for layer in model.layers for spec in layer.specs())
    return max(spec.shape[0] for spec in specs if len(spec.shape) == 2)


def bounds(exact: Mapping[Key, NDArray[Any]], runs: Iterable[Mapping[Key, NDArray[Any]]]) -> dict[Key, float]:
    """Return the largest error of each array that the rule allows, from runs of the reference in float32."""
    rounding = dict.fromkeys(exact, 0.0)
    for found in runs:
        for key, value in exact.items():
            rounding[key] = max(rounding[key], distance(found[key], value))
    scales = {key: float(np.max(np.abs(value), initial=0)) for key, value in exact.items()}
    return {key: 2 * rounding[key] + SCALE_SHARE * scales[key] for key in exact}


def _losses(found: Observed) -> list[float]:
    return [float(value) for (where, name), value in found.items() if where.startswith("step ")]


def or_none(value: float) -> float | None:
    """Return the value, or None for infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None


def distance(got: NDArray[Any], exact: NDArray[Any]) -> float:
    """Largest distance; infinite where a value is not a number on either side."""
    distance = np.max(np.abs(got.astype(np.float64) - exact), initial=0)
    return float(distance) if np.isfinite(distance) else math.inf
