"""Matrix products, dense and sparse, compared with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from gcnbatch.backends.ops import DropoutKey
from tests.ops.adapters import NAIVE_MATMUL, Adapter, open_adapter
from tests.ops.cases import Case, multiples_of_half, normal, of_layer
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity


def dense(case: Case, convolution: bool) -> Problem:
    def run(ops, x, w, dy, graphs=None):
        dx, dw = ops.matmul_backward(dy, x, w, graphs=graphs)
        not_needed, dw_alone = ops.matmul_backward(dy, x, w, need_dx=False, graphs=graphs)
        assert not_needed is None
        return {"y": ops.matmul(x, w, graphs), "dx": dx, "dw": dw, "dw_alone": dw_alone}

    rng, (P, graphs) = case.rng(), of_layer(case, convolution)
    x, w, dy = (normal(rng, *shape) for shape in ((case.N, case.F), (case.F, P), (case.N, P)))
    return Problem(run, {"x": x, "w": w, "dy": dy, **graphs})


def dx_alone(case: Case, convolution: bool) -> Problem:
    def run(ops, w, dy, graphs=None):
        return {"dx": ops.matmul_dx(dy, w, graphs)}

    rng, (P, graphs) = case.rng(), of_layer(case, convolution)
    return Problem(run, {"w": normal(rng, case.F, P), "dy": normal(rng, case.N, P), **graphs})


def dx_before_relu_and_dropout(case: Case, convolution: bool, first: int = 0) -> Problem:
    def run(ops, x, w, dy, graphs=None):
        _, kept = ops.relu_dropout(x, 0.5, DropoutKey(3, "conv2.dropout", 5, 7, first))
        return {"dx": ops.matmul_dx(dy, w, graphs, kept)}

    rng, (P, graphs) = case.rng(), of_layer(case, convolution)
    x, w, dy = (normal(rng, *shape) for shape in ((case.N, case.F), (case.F, P), (case.N, P)))
    return Problem(run, {"x": multiples_of_half(x), "w": w, "dy": dy, **graphs})


def sparse(case: Case) -> Problem:
    def run(ops, x, w, dy):
        return {"y": ops.sparse_matmul(x, w), "dw": ops.sparse_matmul_backward(dy, x)}

    rng = case.rng()
    w, dy = normal(rng, case.F, case.columns), normal(rng, case.N, case.columns)
    return Problem(run, {"x": case.sparse_features(rng), "w": w, "dy": dy})


PROBLEMS = {
    "dense layer": lambda case: dense(case, convolution=False),
    "graph convolution": lambda case: dense(case, convolution=True),
    "dense layer, by X alone": lambda case: dx_alone(case, convolution=False),
    "graph convolution, by X alone": lambda case: dx_alone(case, convolution=True),
    "dense layer, before ReLU and dropout": lambda case: dx_before_relu_and_dropout(case, convolution=False),
    "graph convolution, before ReLU and dropout": lambda case: dx_before_relu_and_dropout(case, convolution=True),
    "the same of later rows": lambda case: dx_before_relu_and_dropout(case, convolution=True, first=2**33 + 13),
    "sparse features": sparse,
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_matmul(backend: Adapter, case: Case, problem: str):
    assert_parity(backend, PROBLEMS[problem](case))


@pytest.mark.gpu
def test_naive_matmul(case: Case):
    assert_parity(open_adapter(NAIVE_MATMUL), dense(case, convolution=False))


def one_entry_short(x):
    return type(x)(np.minimum(x.indptr, len(x.data) - 1), x.indices, x.data, x.n_cols)


def dx_of_reversed_weights(right, dy, x, w, need_dx=True, **about):
    return right(dy, x, w[::-1], need_dx)


def dw_of_a_row_less(right, dy, x, w, need_dx=True, **about):
    return right(dy, x, w, need_dx)[0], right(dy[1:], x[1:], w)[1]


MUTANTS = {
    "a term short": ("dense layer", mutant(matmul=lambda right, x, w, *_: right(x[:, 1:], w[1:]))),
    "float16 weights": ("dense layer", mutant(matmul=lambda right, x, w, *_: right(x, half(w)))),
    "one row off": ("dense layer", mutant(matmul=lambda right, x, w, *_: np.roll(right(x, w), 1, axis=0))),
    "dx of weights in reverse": ("dense layer", mutant(matmul_backward=dx_of_reversed_weights)),
    "a row short in dw": ("dense layer", mutant(matmul_backward=dw_of_a_row_less)),
    "a column short in dx": (
        "dense layer, by X alone",
        mutant(matmul_dx=lambda right, dy, w, *_: right(dy[:, 1:], w[:, 1:])),
    ),
    "dx of all elements": (
        "dense layer, before ReLU and dropout",
        mutant(matmul_dx=lambda right, dy, w, graphs, kept: right(dy, w)),
    ),
    "dx that is not scaled": (
        "graph convolution, before ReLU and dropout",
        mutant(matmul_dx=lambda right, dy, w, graphs, kept: right(dy, w) * kept.mask),
    ),
    "an entry short": ("sparse features", mutant(sparse_matmul=lambda right, x, w: right(one_entry_short(x), w))),
    "float16 entries": (
        "sparse features",
        mutant(sparse_matmul=lambda right, x, w: right(type(x)(x.indptr, x.indices, half(x.data), x.n_cols), w)),
    ),
    "an entry short in dw": (
        "sparse features",
        mutant(sparse_matmul_backward=lambda right, dy, x, *_: right(dy, one_entry_short(x))),
    ),
}


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    problem, wrong = MUTANTS[name]
    assert_rejected(wrong, PROBLEMS[problem](case))
