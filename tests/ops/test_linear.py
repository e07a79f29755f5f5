"""A matrix product with bias, and all its gradients, compared with the reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest

from tests.ops.adapters import Adapter
from tests.ops.cases import Case, normal, of_layer
from tests.ops.mutants import assert_rejected, half, mutant, on_telling_cases
from tests.ops.parity import Problem, assert_parity


def linear(case: Case, convolution: bool) -> Problem:
    def run(ops, x, w, b, dy, dw_out, db_out, graphs=None):
        dx, dw, db = ops.linear_backward(dy, x, w, out=(dw_out, db_out), graphs=graphs)
        not_needed, dw_alone, db_alone = ops.linear_backward(dy, x, w, need_dx=False, graphs=graphs)
        assert not_needed is None
        alone = {"dw_alone": dw_alone, "db_alone": db_alone}
        return {"y": ops.linear(x, w, b, graphs), "dx": dx, "dw_out": dw, "db_out": db, **alone}

    rng, (P, graphs) = case.rng(), of_layer(case, convolution)
    x, w, b, dy = (normal(rng, *shape) for shape in ((case.N, case.F), (case.F, P), (P,), (case.N, P)))
    out = {"dw_out": np.full_like(w, np.nan), "db_out": np.full_like(b, np.nan)}
    return Problem(run, {"x": x, "w": w, "b": b, "dy": dy, **out, **graphs})


@lru_cache(maxsize=1)  # tests of one size follow each other
def linear_of(N: int, F: int, P: int) -> Problem:
    def run(ops, x, w, b, dy):
        dx, dw, db = ops.linear_backward(dy, x, w)
        return {"y": ops.linear(x, w, b), "dx": dx, "dw": dw, "db": db}

    rng = np.random.default_rng(N)
    inputs = {"x": (N, F), "w": (F, P), "b": (P,), "dy": (N, P)}
    return Problem(run, {name: normal(rng, *shape) for name, shape in inputs.items()})


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Iterator[None]:
    """Drop the last problem: forks of later tests would copy its pages."""
    yield
    linear_of.cache_clear()


PROBLEMS = {
    "dense layer": lambda case: linear(case, convolution=False),
    "graph convolution": lambda case: linear(case, convolution=True),
}
SIZES = [
    (1850, 256, 300),
    (4100, 31, 33),
    (129, 512, 512),
    (3000, 513, 2),
    (950, 100, 300),
    (16_800, 125, 127),
    (2_000, 2_100, 128),
]
SLOW = pytest.mark.slow


@pytest.mark.parametrize("problem", PROBLEMS)
def test_linear(backend: Adapter, case: Case, problem: str):
    assert_parity(backend, PROBLEMS[problem](case))


# In the scope of the module, all backends of a size follow each other.
@pytest.mark.parametrize(
    ("N", "F", "P"), [*SIZES[:-2], pytest.param(*SIZES[-2], marks=SLOW), SIZES[-1]], scope="module"
)
def test_linear_at_sizes_around_the_limit_of_one_launch(backend: Adapter, N: int, F: int, P: int):
    assert_parity(backend, linear_of(N, F, P))


def gradients_of_a_row_less(right, dy, x, w, need_dx=True, out=None, **about):
    return right(dy, x, w, need_dx)[0], *right(dy[1:], x[1:], w, out=out)[1:]


def dx_of_the_row_before(right, dy, x, w, need_dx=True, out=None, **about):
    return right(np.roll(dy, 1, axis=0), x, w, need_dx)[0], *right(dy, x, w, out=out)[1:]


MUTANTS = {
    "no bias": mutant(linear=lambda right, x, w, b, *_: right(x, w, 0 * b)),
    "a term short": mutant(linear=lambda right, x, w, b, *_: right(x[:, 1:], w[1:], b)),
    "float16 product": mutant(linear=lambda right, x, w, b, *_: half(right(x, w, 0 * b)) + b),
    "a row short in the gradients": mutant(linear_backward=gradients_of_a_row_less),
    "dx of the row before": mutant(linear_backward=dx_of_the_row_before),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.parametrize("size", [*SIZES[:-2], *(pytest.param(size, marks=SLOW) for size in SIZES[-2:])], ids=str)
def test_mutants_are_rejected_in_long_sums(size: tuple[int, int, int], name: str):
    assert_rejected(MUTANTS[name], linear_of(*size))


@on_telling_cases
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(case: Case, name: str):
    assert_rejected(MUTANTS[name], linear(case, convolution=False))
