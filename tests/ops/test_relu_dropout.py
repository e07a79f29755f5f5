"""ReLU and dropout in one operation, compared with the reference: the same mask, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.cases import Case, multiples_of_half, normal
from tests.ops.mutants import assert_rejected, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity
from tests.ops.test_dropout import KEY, RATES


def relu_dropout(case: Case, rate: float, first: int = 0) -> Problem:
    def run(ops, x, dy, over, dover):
        key = KEY._replace(first=first)
        y, kept = ops.relu_dropout(x, rate, key)
        again, kept_over = ops.relu_dropout(over, rate, key, out=over)
        return {
            "y": y,
            "dx": ops.relu_dropout_backward(dy, kept),
            "over": again,
            "dover": ops.relu_dropout_backward(dover, kept_over, out=dover),
        }

    rng = case.rng()
    x = multiples_of_half(normal(rng, case.N, case.P))  # some elements are 0
    ones = np.ones((case.N, case.P), np.float32)  # reveal every element of the mask
    return Problem(run, {"x": x, "dy": ones, "over": x, "dover": ones})


PROBLEMS = {f"rate {rate:g}": lambda case, rate=rate: relu_dropout(case, rate) for rate in RATES}


@pytest.mark.parametrize("rate", RATES)
def test_relu_dropout(backend: Adapter, case: Case, rate: float):
    assert_parity(backend, relu_dropout(case, rate))


@pytest.mark.parametrize("first", [4, 8, 13, 2**33 + 5])
def test_relu_dropout_of_later_rows_of_a_global_batch(backend: Adapter, case: Case, first: int):
    assert_parity(backend, relu_dropout(case, 0.5, first))


MUTANTS = {
    "no ReLU": mutant(relu_dropout=lambda right, x, rate, key, out=None: (x, right(x, rate, key)[1])),
    "not scaled": mutant(relu_dropout_backward=lambda right, dy, kept, out=None: np.multiply(dy, kept.mask, out=out)),
    "gradient at 0": mutant(
        relu_dropout=lambda right, x, rate, key, out=None: (
            right(x, rate, key, out)[0],
            right(np.abs(x) + 1, rate, key)[1],
        )
    ),
    "mask of the first rows": mutant(
        relu_dropout=lambda right, x, rate, key, out=None: right(x, rate, key._replace(first=0), out)
    ),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], relu_dropout(case, 0.5, 13))
