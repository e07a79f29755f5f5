"""Batch normalisation compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.bounds import Rounded, RoundedOps
from tests.ops.cases import Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity

EPSILON, MOMENTUM = 1e-5, 0.1


def training(case: Case, relu: bool) -> Problem:
    """Return a problem whose dy is 0 where a ReLU input is within rounding of 0, because both sides are right there."""

    def run(ops, x, gamma, beta, running_mean, running_var, dy):
        numbers = (EPSILON, MOMENTUM)
        y, saved = ops.batch_norm(x, gamma, beta, running_mean, running_var, *numbers, training=True, relu=relu)
        dx, dgamma, dbeta = ops.batch_norm_backward(dy, saved, gamma)
        grown = {"running_mean": running_mean, "running_var": running_var}
        return {"y": y, "dx": dx, "dgamma": dgamma, "dbeta": dbeta, **grown}

    inputs = batch_norm_inputs(case)
    if relu:
        x, gamma, beta, mean, var = (Rounded(inputs[name]) for name in list(inputs)[:5])
        y, _ = RoundedOps().batch_norm(x, gamma, beta, mean, var, EPSILON, MOMENTUM, training=True)
        inputs["dy"] *= np.abs(y.value) > y.error
    return Problem(run, inputs)


def inference(case: Case, relu: bool) -> Problem:
    def run(ops, x, gamma, beta, running_mean, running_var, dy):
        numbers = (EPSILON, MOMENTUM)
        return {"y": ops.batch_norm(x, gamma, beta, running_mean, running_var, *numbers, training=False, relu=relu)[0]}

    return Problem(run, batch_norm_inputs(case))


def batch_norm_inputs(case: Case):
    """Draw columns far from mean 0, and every third one of mean 0 with a variance near epsilon.

    The first reveal a variance computed as E[x²] - E[x]², the others a wrong epsilon.
    """
    rng = case.rng()
    mean, deviation = 30 * normal(rng, case.P), rng.uniform(0.1, 3, case.P).astype(np.float32)
    mean[::3], deviation[::3] = 0, 0.01
    return {
        "x": mean + deviation * normal(rng, case.N, case.P),
        "gamma": normal(rng, case.P),
        "beta": normal(rng, case.P),
        "running_mean": normal(rng, case.P),
        "running_var": rng.uniform(0.5, 2, case.P).astype(np.float32),
        "dy": normal(rng, case.N, case.P),
    }


PROBLEMS = {
    "training": lambda case: training(case, relu=False),
    "training, ReLU": lambda case: training(case, relu=True),
    "inference": lambda case: inference(case, relu=False),
    "inference, ReLU": lambda case: inference(case, relu=True),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_batch_norm(backend: Adapter, case: Case, problem: str):
    assert_parity(backend, PROBLEMS[problem](case))


def two_moments(right, x, gamma, beta, running_mean, running_var, epsilon, momentum, training, relu):
    """Compute the variance as E[x²] - E[x]²."""
    y, (centred, inverse, positive) = right(
        x, gamma, beta, running_mean, running_var, epsilon, momentum, training, relu
    )
    mean = x.mean(axis=0)
    var = np.maximum((x * x).mean(axis=0) - mean * mean, np.float32(0))
    inverse = 1 / np.sqrt(var + np.float32(epsilon))
    y = centred * (gamma * inverse) + beta
    return (np.maximum(y, 0) if relu else y), (centred, inverse, positive)


def biased_running_var(right, x, gamma, beta, running_mean, running_var, epsilon, momentum, training, relu):
    before, n = running_var.copy(), len(x)
    results = right(x, gamma, beta, running_mean, running_var, epsilon, momentum, training, relu)
    kept = np.float32(1 - momentum) * before
    running_var[:] = kept + (running_var - kept) * np.float32((n - 1) / n)
    return results


def forward(change):
    """Return a mutant whose forward pass receives changed arguments."""
    names = ("x", "gamma", "beta", "running_mean", "running_var", "epsilon", "momentum", "training", "relu")

    def method(right, *arguments, **keywords):
        given = dict(zip(names, arguments, strict=False)) | keywords
        return right(**given | change(given))

    return mutant(batch_norm=method)


def keyworded(method):
    """Let a method with positional arguments be called with `training` and `relu` by name."""
    return lambda right, *arguments, training, relu: method(right, *arguments, training, relu)


def dx_without_dgamma(right, dy, saved, gamma, out=None):
    dx, dgamma, dbeta = right(dy, saved, gamma)
    centred, inverse, _ = saved
    return dx + gamma * inverse * centred * inverse * dgamma / np.float32(len(dy)), dgamma, dbeta


def dx_without_dbeta(right, dy, saved, gamma, out=None):
    dx, dgamma, dbeta = right(dy, saved, gamma)
    return dx + gamma * saved[1] * dbeta / np.float32(len(dy)), dgamma, dbeta


TRAINING_MUTANTS = {
    "no epsilon": forward(lambda given: {"epsilon": 0.0}),
    "epsilon a tenth too large": forward(lambda given: {"epsilon": 1.1e-5}),
    "momentum of the other side": forward(lambda given: {"momentum": 0.9}),
    "float16 input": forward(lambda given: {"x": half(given["x"])}),
    "gamma of the next column": forward(lambda given: {"gamma": np.roll(given["gamma"], 1)}),
    "E[x²] - E[x]²": mutant(batch_norm=keyworded(two_moments)),
    "biased running variance": mutant(batch_norm=keyworded(biased_running_var)),
    "dx without dgamma": mutant(batch_norm_backward=dx_without_dgamma),
    "dx without dbeta": mutant(batch_norm_backward=dx_without_dbeta),
    "a row short in the gradients": mutant(
        batch_norm_backward=lambda right, dy, saved, gamma, out=None: right(
            np.concatenate([dy[:-1], np.zeros_like(dy[:1])]), saved, gamma
        )
    ),
    "float16 gradients": mutant(batch_norm_backward=lambda right, dy, saved, gamma: right(half(dy), saved, gamma)),
}
INFERENCE_MUTANTS = {
    "no epsilon": TRAINING_MUTANTS["no epsilon"],
    "float16 input": TRAINING_MUTANTS["float16 input"],
    "mean of the next column": forward(lambda given: {"running_mean": np.roll(given["running_mean"], 1)}),
    "variance for standard deviation": forward(lambda given: {"running_var": given["running_var"] ** 2}),
}


@on_telling_cases
@pytest.mark.parametrize("problem", ["training", "training, ReLU"])
@pytest.mark.parametrize("name", TRAINING_MUTANTS)
def test_mutants_of_training_are_rejected(case: Case, problem: str, name: str):
    assert_rejected(TRAINING_MUTANTS[name], PROBLEMS[problem](case))


@on_telling_cases
@pytest.mark.parametrize("problem", ["inference", "inference, ReLU"])
@pytest.mark.parametrize("name", INFERENCE_MUTANTS)
def test_mutants_of_inference_are_rejected(case: Case, problem: str, name: str):
    assert_rejected(INFERENCE_MUTANTS[name], PROBLEMS[problem](case))


@on_telling_cases
def test_a_forgotten_relu_is_rejected(case: Case):
    assert_rejected(forward(lambda given: {"relu": False}), training(case, relu=True))
