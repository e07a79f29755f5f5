"""Sampled products of dense rows, compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.cases import Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity


def edges(case: Case) -> Problem:
    """Return the gradient of `spmm` by the edges' values: in their own order, with repeated ones."""
    rng = case.rng()
    src, dst, channel = case.edge_list(rng)
    return _sampled(normal(rng, case.N, case.P), normal(rng, case.N, case.columns), dst, src * case.C + channel)


def each_row_with_itself(case: Case) -> Problem:
    rng, rows = case.rng(), np.arange(case.N)
    return _sampled(normal(rng, case.N, case.F), normal(rng, case.N, case.F), rows, rows)


def _sampled(a, b, rows, columns) -> Problem:
    def run(ops, a, b, rows, columns):
        return {"out": ops.sddmm(a, b, rows, columns)}

    return Problem(run, {"a": a, "b": b, "rows": rows.astype(np.int32), "columns": columns.astype(np.int32)})


PROBLEMS = {"edges": edges, "each row with itself": each_row_with_itself}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_sddmm(backend: Adapter, case: Case, problem: str):
    assert_parity(backend, PROBLEMS[problem](case))


MUTANTS = {
    "a column short": mutant(sddmm=lambda right, a, b, *at: right(a[:, 1:], b.reshape(-1, a.shape[1])[:, 1:], *at)),
    "float16 rows": mutant(sddmm=lambda right, a, b, *at: right(half(a), b, *at)),
    "an entry off": mutant(sddmm=lambda right, *given: np.roll(right(*given), 1)),
    "the ends exchanged": mutant(sddmm=lambda right, a, b, rows, columns: right(a, b, rows, columns[::-1])),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], edges(case))
