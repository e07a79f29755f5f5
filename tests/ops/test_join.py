"""Scaled features of graphs beside their readout, compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.data.graph_features import GraphFeatures
from tests.ops.adapters import Adapter
from tests.ops.cases import Case, normal
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity

LIMIT = 2.0
SET = 7  # graphs of the data set


def join(case: Case) -> Problem:
    """Return a problem: F features of graphs with missing values and some beyond the limit."""

    def run(ops, r, values, rows, mean, scale, dy):
        y = ops.join(r, GraphFeatures(values, rows), mean, scale, LIMIT)
        return {"y": y, "dr": ops.join_backward(dy, case.P)}

    rng, B = case.rng(), len(case.sizes)
    values = normal(rng, SET, case.F)
    values[rng.random(values.shape) < 0.2] = np.nan
    inputs = {
        "r": normal(rng, B, case.P),
        "values": values,
        "rows": rng.integers(0, SET, B).astype(np.int32),
        "mean": normal(rng, case.F),
        "scale": np.abs(normal(rng, case.F)) + 0.5,
        "dy": normal(rng, B, case.P + case.F),
    }
    return Problem(run, inputs)


PROBLEMS = {"features": join}


def test_join(backend: Adapter, case: Case):
    assert_parity(backend, join(case))


def of_other_graphs(right, r, features, *scaling):
    return right(r, GraphFeatures(np.roll(features.values, 1, axis=0), features.rows), *scaling)


def missing_as_zero(right, r, features, *scaling):
    return right(r, GraphFeatures(np.nan_to_num(features.values), features.rows), *scaling)


MUTANTS = {
    "other graphs": mutant(join=of_other_graphs),
    "missing values not the mean": mutant(join=missing_as_zero),
    "no limit": mutant(join=lambda right, r, features, mean, scale, limit: right(r, features, mean, scale, np.inf)),
    "not centred": mutant(join=lambda right, r, features, mean, *about: right(r, features, 0 * mean, *about)),
    "float16": mutant(join=lambda right, *arguments: half(right(*arguments))),
    "gradient of the last columns": mutant(join_backward=lambda right, dy, width: dy[:, -width:].copy()),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], join(case))
