"""ReLU compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.cases import Case, multiples_of_half, normal
from tests.ops.mutants import assert_rejected, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity


def relu(case: Case) -> Problem:
    def run(ops, x, dy, over, dover):
        y = ops.relu(x)
        return {
            "y": y,
            "dx": ops.relu_backward(dy, y),
            "over": ops.relu(over, out=over),
            "dover": ops.relu_backward(dover, over, out=dover),
        }

    rng = case.rng()
    x, dy = multiples_of_half(normal(rng, case.N, case.P)), normal(rng, case.N, case.P)
    return Problem(run, {"x": x, "dy": dy, "over": x, "dover": dy})


PROBLEMS = {"ReLU": relu}


def test_relu(backend: Adapter, case: Case):
    assert_parity(backend, relu(case))


MUTANTS = {
    "leaky": mutant(relu=lambda right, x, out=None: np.maximum(x, np.float32(1e-6) * x, out=out)),
    "gradient at 0": mutant(relu_backward=lambda right, dy, y, out=None: np.multiply(dy, y >= 0, out=out)),
    "a row off": mutant(relu_backward=lambda right, dy, y, out=None: right(dy, np.roll(y, 1, axis=0), out)),
    "a rounding too much": mutant(
        relu_backward=lambda right, dy, y, out=None: right(dy * np.float32(1 + 2**-23), y, out)
    ),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], relu(case))
