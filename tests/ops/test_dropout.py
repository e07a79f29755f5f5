"""Dropout compared with the reference: the same mask, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch import philox
from gcnbatch.backends.ops import DropoutKey
from tests.ops.adapters import Adapter
from tests.ops.cases import Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity

KEY = DropoutKey(seed=2**63 - 1, purpose="conv1.dropout", epoch=3, step=41)
AT_THE_THRESHOLD = float(philox.bits(*KEY[:4], 1)[0]) / 2**32  # element 0 is kept at this rate, and at no higher one
RATES = [0.0, 0.5, 0.9, AT_THE_THRESHOLD]


def dropout(case: Case, rate: float, key: DropoutKey = KEY) -> Problem:
    def run(ops, x, dy, entries):
        y, mask = ops.dropout(x, rate, key)
        y_entries, _ = ops.dropout(entries, rate, key)
        return {"y": y, "dx": ops.dropout_backward(dy, mask, rate), "y_entries": y_entries}

    rng = case.rng()
    # Gradients of 1 reveal every element of the mask; the entries of sparse features are a one-dimensional input.
    x, dy = normal(rng, case.N, case.F), np.ones((case.N, case.F), np.float32)
    return Problem(run, {"x": x, "dy": dy, "entries": np.ones(3 * case.N, np.float32)})


PROBLEMS = {f"rate {rate:g}": lambda case, rate=rate: dropout(case, rate) for rate in RATES}


@pytest.mark.parametrize("rate", RATES)
def test_dropout(backend: Adapter, case: Case, rate: float):
    assert_parity(backend, dropout(case, rate))


@pytest.mark.parametrize("first", [4, 8, 13, 2**33 + 5])
def test_dropout_of_later_rows_of_a_global_batch(backend: Adapter, case: Case, first: int):
    assert_parity(backend, dropout(case, 0.5, KEY._replace(first=first)))


MUTANTS = {
    "not scaled": mutant(dropout_backward=lambda right, dy, mask, rate: dy * mask),
    "float16 values": mutant(dropout=lambda right, x, rate, key: right(half(x), rate, key)),
    "mask of the next step": mutant(
        dropout=lambda right, x, rate, key: right(x, rate, key._replace(step=key.step + 1))
    ),
    "mask of the first rows": mutant(dropout=lambda right, x, rate, key: right(x, rate, key._replace(first=0))),
    "mask of another element": mutant(dropout_backward=lambda right, dy, mask, rate: right(dy, np.roll(mask, 1), rate)),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], dropout(case, 0.9, KEY._replace(first=13)))


@on_telling_cases
def test_an_element_kept_above_the_threshold_is_rejected(case: Case):
    later = mutant(dropout=lambda right, x, rate, key: right(x, rate + 2.0**-32, key))
    assert_rejected(later, dropout(case, AT_THE_THRESHOLD))
