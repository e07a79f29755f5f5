"""Scaled features of graphs beside their readout, compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.data.graph_features import FeatureTable, GraphFeatures, HostFeatures
from tests.ops.adapters import Adapter, open_adapter
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


def join_linear(case: Case, form=lambda features: features, counts: int = 0) -> Problem:
    """Return a problem whose last `counts` columns are counts, which are not centred and have no missing values."""

    def run(ops, r, values, rows, mean, scale, w, b, dy, dw_out, db_out):
        y, saved = ops.join_linear(r, form(GraphFeatures(values, rows)), mean, scale, LIMIT, w, b)
        dr, dw, db = ops.join_linear_backward(dy, saved, w, case.P, out=(dw_out, db_out))
        not_needed, dw_alone, db_alone = ops.join_linear_backward(dy, saved, w, case.P, need_dr=False)
        assert not_needed is None
        return {"y": y, "dr": dr, "dw_out": dw, "db_out": db, "dw_alone": dw_alone, "db_alone": db_alone}

    inputs = {name: value.copy() for name, value in join(case).inputs.items() if name != "dy"}  # type: ignore[union-attr]
    rng, first, Q = case.rng(), case.F - counts, 4
    inputs["values"][:, first:] = rng.poisson(0.3, (SET, counts))
    inputs["mean"][first:] = 0
    w, b, dy = normal(rng, case.P + case.F, Q), 32 * normal(rng, Q), normal(rng, len(case.sizes), Q)
    out = {"dw_out": np.full_like(w, np.nan), "db_out": np.full_like(b, np.nan)}
    return Problem(run, {**inputs, "w": w, "b": b, "dy": dy, **out})


def test_join_linear(backend: Adapter, case: Case):
    assert_parity(backend, join_linear(case))


@pytest.mark.parametrize("name", ["cpu", pytest.param("cpu-fast", marks=pytest.mark.numba)])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_join_linear_of_counts_as_a_sparse_matrix(name: str, case: Case, share: float):
    counts = max(int(share * case.F), 1)

    def form(features: GraphFeatures) -> GraphFeatures:
        is_host = isinstance(features.values, np.ndarray)
        return HostFeatures(FeatureTable.of(features.values, counts), features.rows) if is_host else features

    assert_parity(open_adapter(name), join_linear(case, form, counts))


def test_counts_that_a_model_centres_are_no_sparse_matrix():
    features = HostFeatures(FeatureTable.of(np.eye(3, dtype=np.float32), 3), np.arange(3))
    ones = np.ones(3, np.float32)
    assert features.scaled_counts(ones, ones, LIMIT) is None
    assert features.scaled_counts(0 * ones, ones, LIMIT) is not None


PROBLEMS = {"features": join, "product": join_linear}


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
