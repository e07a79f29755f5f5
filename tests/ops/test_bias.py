"""Bias addition compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.cases import Case, normal, of_layer
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity


def bias(case: Case, convolution: bool) -> Problem:
    def run(ops, y, b, dy, over, graphs=None):
        return {
            "out": ops.bias_add(y, b, graphs),
            "over": ops.bias_add(over, b, graphs, out=over),
            "db": ops.bias_add_backward(dy, graphs=graphs),
        }

    rng, (P, graphs) = case.rng(), of_layer(case, convolution)
    y, b, dy = normal(rng, case.N, P), normal(rng, P), normal(rng, case.N, P)
    return Problem(run, {"y": y, "b": b, "dy": dy, "over": y, **graphs})


PROBLEMS = {
    "dense layer": lambda case: bias(case, convolution=False),
    "graph convolution": lambda case: bias(case, convolution=True),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_bias(backend: Adapter, case: Case, problem: str):
    assert_parity(backend, PROBLEMS[problem](case))


MUTANTS = {
    "no bias": mutant(bias_add=lambda right, y, b, *_, out=None: right(y, 0 * b, out=out)),
    "one column off": mutant(bias_add=lambda right, y, b, *_, out=None: right(y, np.roll(b, 1), out=out)),
    "float16 bias": mutant(bias_add=lambda right, y, b, *_, out=None: right(y, half(b), out=out)),
    "a row short": mutant(bias_add_backward=lambda right, dy, *_, **about: right(dy[1:])),
    "a row twice": mutant(bias_add_backward=lambda right, dy, *_, **about: right(dy) + dy[-1]),
    "float16 gradients": mutant(bias_add_backward=lambda right, dy, *_, **about: right(half(dy))),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], PROBLEMS["dense layer"](case))
