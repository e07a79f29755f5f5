"""Layer normalisation compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.bounds import Rounded, RoundedOps
from tests.ops.cases import Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity

EPSILON = 1e-5


def layer_norm(case: Case, relu: bool) -> Problem:
    """Return a problem whose dy is 0 where a ReLU input is within rounding of 0, because both sides are right there.

    Every third row has a variance near epsilon, the others a mean far from 0.
    """

    def run(ops, x, gamma, beta, dy):
        y, saved = ops.layer_norm(x, gamma, beta, EPSILON, relu=relu)
        dx, dgamma, dbeta = ops.layer_norm_backward(dy, saved, gamma)
        return {"y": y, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}

    rng = case.rng()
    mean, deviation = 30 * normal(rng, case.N, 1), rng.uniform(0.1, 3, (case.N, 1)).astype(np.float32)
    mean[::3], deviation[::3] = 0, 0.01
    x, gamma, beta = mean + deviation * normal(rng, case.N, case.P), normal(rng, case.P), normal(rng, case.P)
    inputs = {"x": x, "gamma": gamma, "beta": beta, "dy": normal(rng, case.N, case.P)}
    if relu:
        y, _ = RoundedOps().layer_norm(Rounded(x), Rounded(gamma), Rounded(beta), EPSILON)
        inputs["dy"] *= np.abs(y.value) > y.error
    return Problem(run, inputs)


PROBLEMS = {"plain": lambda case: layer_norm(case, relu=False), "ReLU": lambda case: layer_norm(case, relu=True)}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_layer_norm(backend: Adapter, case: Case, problem: str):
    assert_parity(backend, PROBLEMS[problem](case))


def dx_without_mean(right, dy, saved, gamma, out=None):
    dx, dgamma, dbeta = right(dy, saved, gamma)
    return dx + saved[1] * (dy * gamma).mean(axis=1, keepdims=True), dgamma, dbeta


MUTANTS = {
    "no epsilon": mutant(layer_norm=lambda right, x, gamma, beta, epsilon, relu: right(x, gamma, beta, 0.0, relu)),
    "float16 input": mutant(
        layer_norm=lambda right, x, gamma, beta, epsilon, relu: right(half(x), gamma, beta, epsilon, relu)
    ),
    "gamma of the next column": mutant(
        layer_norm=lambda right, x, gamma, beta, epsilon, relu: right(x, np.roll(gamma, 1), beta, epsilon, relu)
    ),
    "dx without a mean": mutant(layer_norm_backward=dx_without_mean),
    "a row short in the gradients": mutant(
        layer_norm_backward=lambda right, dy, saved, gamma: right(
            np.concatenate([dy[:-1], np.zeros_like(dy[:1])]), saved, gamma
        )
    ),
    "float16 gradients": mutant(layer_norm_backward=lambda right, dy, saved, gamma: right(half(dy), saved, gamma)),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], layer_norm(case, relu=False))


@on_telling_cases
def test_a_forgotten_relu_is_rejected(case: Case):
    forgetful = mutant(layer_norm=lambda right, x, gamma, beta, epsilon, relu: right(x, gamma, beta, epsilon))
    assert_rejected(forgetful, layer_norm(case, relu=True))
