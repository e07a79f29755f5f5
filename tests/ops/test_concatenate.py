"""Sums, maxima and concatenations of arrays compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.cases import Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity


def joined(case: Case) -> Problem:
    """Return a problem with parts of different widths, one of them of one column."""

    def run(ops, a, b, c, dy):
        widths = [case.P, case.P, 1]
        parts = ops.concatenate_backward(dy, widths)
        named = {f"part{i}": part for i, part in enumerate(parts)}
        da, db = ops.maximum_backward(a, a, b)
        return {
            **{"sum": ops.add(a, b), "joined": ops.concatenate([a, b, c]), **named},
            **{"largest": ops.maximum(a, b), "da": da, "db": db},
        }

    rng = case.rng()
    a, b, c = (normal(rng, case.N, columns) for columns in (case.P, case.P, 1))
    b[::3] = a[::3]
    return Problem(run, {"a": a, "b": b, "c": c, "dy": normal(rng, case.N, 2 * case.P + 1)})


def taken(case: Case) -> Problem:
    """Return a problem with rows in any order, some of them twice."""
    rng = case.rng()
    rows = rng.integers(0, max(case.N, 1), 2 * case.N // 3).astype(np.int32)
    return Problem(lambda ops, x, rows: {"y": ops.take(x, rows)}, {"x": normal(rng, case.N, case.P), "rows": rows})


PROBLEMS = {"sum and concatenation": joined, "rows by number": taken}


def test_sums_and_concatenations(backend: Adapter, case: Case):
    assert_parity(backend, joined(case))


def test_rows_by_number(backend: Adapter, case: Case):
    assert_parity(backend, taken(case))


@on_telling_cases
def test_a_row_off_is_rejected(case: Case):
    assert_rejected(mutant(take=lambda right, x, rows: right(np.roll(x, 1, axis=0), rows)), taken(case))


MUTANTS = {
    "parts in another order": mutant(concatenate=lambda right, parts: right(parts[::-1])),
    "a column off": mutant(concatenate_backward=lambda right, dy, widths: right(np.roll(dy, 1, axis=1), widths)),
    "float16 sum": mutant(add=lambda right, a, b: half(right(a, b))),
    "smaller": mutant(maximum=lambda right, a, b: np.minimum(a, b)),
    "gradient to both of equals": mutant(maximum_backward=lambda right, dy, a, b: (dy * (a >= b), dy * (b >= a))),
    "only one summand": mutant(add=lambda right, a, b: a.copy()),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], joined(case))
