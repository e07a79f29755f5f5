"""Losses with missing labels compared with the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from gcnbatch.backends.ops import LossKind
from gcnbatch.data import weighted_targets
from tests.ops.adapters import Adapter
from tests.ops.cases import Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity

MISSING = {"all labelled": 0.0, "some missing": 0.3, "all missing": 1.0}


def sigmoid(case: Case, missing: float) -> Problem:
    """Return a problem with logits scaled by 30, some beyond 88, where exp overflows in float32."""

    def run(ops, logits, y, pos_weight):
        total, number, dlogits = ops.sigmoid_cross_entropy(logits, y, pos_weight)
        return {"total": total, "number": number, "dlogits": dlogits}

    rng, shape = case.rng(), (case.N, case.F)
    y = np.where(rng.random(shape) < missing, np.nan, rng.integers(0, 2, shape)).astype(np.float32)
    pos_weight = rng.uniform(0.5, 20, case.F).astype(np.float32)
    return Problem(run, {"logits": 30 * normal(rng, *shape), "y": y, "pos_weight": pos_weight})


def run_softmax(ops, logits, y, class_weight):
    total, weight, dlogits = ops.softmax_cross_entropy(logits, y, class_weight)
    return {"total": total, "weight": weight, "dlogits": dlogits}


def softmax(case: Case, missing: float) -> Problem:
    rng = case.rng()
    y = np.where(rng.random((case.N, 1)) < missing, -1, rng.integers(0, case.F, (case.N, 1))).astype(np.int32)
    class_weight = rng.uniform(0.5, 3, case.F).astype(np.float32)
    return Problem(run_softmax, {"logits": 30 * normal(rng, case.N, case.F), "y": y, "class_weight": class_weight})


def softmax_of_near_logits(case: Case, missing: float) -> Problem:
    """Return a problem with logits of about 1, so every class contributes."""
    found = softmax(case, missing)
    return Problem(found.run, {**found.inputs, "logits": found.inputs["logits"] / np.float32(30)})


def squared(case: Case, missing: float) -> Problem:
    def run(ops, logits, y):
        total, number, dlogits = ops.mean_squared_error(logits, y)
        return {"total": total, "number": number, "dlogits": dlogits}

    rng, shape = case.rng(), (case.N, case.F)
    y = np.where(rng.random(shape) < missing, np.nan, rng.normal(size=shape)).astype(np.float32)
    return Problem(run, {"logits": normal(rng, *shape), "y": y})


def weighted(kind: str) -> Callable[[Case, float], Problem]:
    """Return problems of a loss with weights, some of them 0, and bounds of both directions."""

    def run(ops, logits, y, parameters):
        total, weight, dlogits = ops.weighted_loss(logits, y, kind, parameters)
        return {"total": total, "weight": weight, "dlogits": dlogits}

    def make(case: Case, missing: float) -> Problem:
        rng, shape = case.rng(), (case.N, 1 if kind == "softmax" else case.F)
        logits = 3 * normal(rng, case.N, case.F)
        values = rng.integers(0, case.F if kind == "softmax" else 2, shape)
        if kind in ("squared", "absolute", "huber"):
            values = rng.normal(size=shape)
            values[:1] = logits[:1]  # no difference
        values = np.where(rng.random(shape) < missing, np.nan, values).astype(np.float32)
        weights = rng.integers(0, 3, shape) * rng.uniform(0.5, 2, shape)
        y = weighted_targets.join(values, weights, rng.integers(-1, 2, shape))
        return Problem(run, {"logits": logits, "y": y, "parameters": rng.uniform(0.5, 3, case.F).astype(np.float32)})

    return make


WEIGHTED = {f"weighted {kind}": weighted(kind) for kind in get_args(LossKind)}
LOSSES = {
    **WEIGHTED,
    "sigmoid": sigmoid,
    "softmax": softmax,
    "softmax, near logits": softmax_of_near_logits,
    "squared": squared,
}
PROBLEMS = {
    f"{loss}, {labels}": lambda case, make=make, missing=missing: make(case, missing)
    for loss, make in LOSSES.items()
    for labels, missing in MISSING.items()
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_losses(backend: Adapter, case: Case, problem: str):
    assert_parity(backend, PROBLEMS[problem](case))


def test_softmax_cross_entropy_without_weight(backend: Adapter):
    logits = np.array([[1, 2], [3, -1]], np.float32)
    inputs = {"logits": logits, "y": np.array([[0], [0]], np.int32), "class_weight": np.array([0, 1], np.float32)}
    assert_parity(backend, Problem(run_softmax, inputs))


def a_row_missing(right, logits, y, *weights):
    """Leave the last row out of the sum, but not out of the gradient."""
    _, weight, dlogits = right(logits, y, *weights)
    return right(logits[:-1], y[:-1], *weights)[0], weight, dlogits


def one_more(right, logits, y, *weights):
    total, weight, dlogits = right(logits, y, *weights)
    return total, weight, dlogits * np.float32(weight / (weight + 1))


def of_other(change):
    """Return a loss that receives changed logits, labels and weights."""
    return lambda right, *given: right(*change(*given))


SIGMOID = {
    "no weight": of_other(lambda z, y, w: (z, y, np.ones_like(w))),
    "weight of the next task": of_other(lambda z, y, w: (z, y, np.roll(w, 1))),
    "float16 logits": of_other(lambda z, y, w: (half(z), y, w)),
    "missing labels as 0": of_other(lambda z, y, w: (z, np.nan_to_num(y), w)),
    "a row missing": a_row_missing,
    "divided by one more": one_more,
}
SOFTMAX = {
    "no weight": of_other(lambda z, y, w: (z, y, np.ones_like(w))),
    "class of the next row": of_other(lambda z, y, w: (z, np.roll(y, 1, axis=0), w)),
    "float16 logits": of_other(lambda z, y, w: (half(z), y, w)),
    "missing labels as 0": of_other(lambda z, y, w: (z, np.maximum(y, 0), w)),
    "a row missing": a_row_missing,
    "divided by one more": one_more,
}
SQUARED = {
    "float16 logits": of_other(lambda z, y: (half(z), y)),
    "missing labels as 0": of_other(lambda z, y: (z, np.nan_to_num(y))),
    "a row missing": a_row_missing,
    "divided by one more": one_more,
}


def of_labels(**changes):
    """Return a weighted loss that receives changed values, weights or bounds."""

    def wrong(right, logits, y, kind, parameters):
        labels = weighted_targets.split(y)
        parts = (changes.get(name, lambda part: part)(part) for name, part in labels._asdict().items())
        return right(logits, weighted_targets.join(*parts), kind, parameters)

    return wrong


OF_WEIGHTED = {
    "no weights": of_labels(weights=np.ones_like),
    "weights of the next row": of_labels(weights=lambda w: np.roll(w, 1, axis=0)),
    "half of the rows missing": lambda right, z, y, *about: (
        right(z[::2], y[::2], *about)[0],
        *right(z, y, *about)[1:],
    ),
    "a hundredth less of the gradient": lambda right, z, *about: (
        *right(z, *about)[:2],
        np.float32(0.99) * right(z, *about)[2],
    ),
}
OF_REGRESSIONS = {
    "no bounds": of_labels(bounds=np.zeros_like),
    "bounds the other way round": of_labels(bounds=np.negative),
}
MUTANTS = {
    **{
        f"{kind}: {name}": (make, mutant(weighted_loss=wrong))
        for kind, make in WEIGHTED.items()
        for name, wrong in OF_WEIGHTED.items()
    },
    **{
        f"weighted {kind}: {name}": (weighted(kind), mutant(weighted_loss=wrong))
        for kind in ("squared", "absolute", "huber")
        for name, wrong in OF_REGRESSIONS.items()
    },
    "huber: another delta": (
        weighted("huber"),
        mutant(weighted_loss=lambda right, z, y, kind, delta: right(z, y, kind, 1.1 * delta)),
    ),
    "absolute: squared": (
        weighted("absolute"),
        mutant(weighted_loss=lambda right, z, y, kind, delta: right(z, y, "squared", delta)),
    ),
    **{f"sigmoid: {name}": (sigmoid, mutant(sigmoid_cross_entropy=wrong)) for name, wrong in SIGMOID.items()},
    **{f"softmax: {name}": (softmax, mutant(softmax_cross_entropy=wrong)) for name, wrong in SOFTMAX.items()},
    **{
        f"softmax, near logits: {name}": (softmax_of_near_logits, mutant(softmax_cross_entropy=wrong))
        for name, wrong in SOFTMAX.items()
    },
    "softmax: a class missing": (
        softmax_of_near_logits,
        mutant(softmax_cross_entropy=of_other(lambda z, y, w: (np.where(np.arange(len(w)) > 0, z, -np.inf), y, w))),
    ),
    **{f"squared: {name}": (squared, mutant(mean_squared_error=wrong)) for name, wrong in SQUARED.items()},
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    problem, wrong = MUTANTS[name]
    assert_rejected(wrong, problem(case, MISSING["some missing"]))
