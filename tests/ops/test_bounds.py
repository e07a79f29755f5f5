"""The bounds of operations: correct float32 in any order of summation is within them; faults in any input are not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gcnbatch.data.sparse import Adjacency, Csr
from gcnbatch.reference import ReferenceOps
from gcnbatch.reference.rounding import UNIT, gamma
from tests.ops.adapters import Adapter, open_adapter
from tests.ops.bounds import Rounded
from tests.ops.cases import CASES, Sparse
from tests.ops.catalogue import PROBLEMS
from tests.ops.mutants import TELLING, half
from tests.ops.parity import Problem, assert_parity, compare, error_ratios, evaluate, largest_ratio


def test_every_operation_has_a_problem() -> None:
    called: set[str] = set()

    class Noted(ReferenceOps):
        def __getattribute__(self, name: str) -> Any:
            called.add(name)
            return super().__getattribute__(name)

    case = next(case for case in CASES if case.name == "four channels")
    for make in PROBLEMS.values():
        error_ratios(Adapter(Noted(), np.array, np.array), make(case))
    assert called == {name for name in dir(ReferenceOps) if not name.startswith("_")}


# ---- honest arithmetic


def one_by_one(terms: NDArray[Any]) -> NDArray[Any]:
    return np.add.accumulate(terms, axis=0)[-1]


def in_pairs(terms: NDArray[Any]) -> NDArray[Any]:
    while len(terms) > 1:
        odd = terms[2 * (len(terms) // 2) :]
        terms = np.concatenate([terms[: len(terms) - len(odd) : 2] + terms[1 : len(terms) - len(odd) : 2], odd])
    return terms[0]


def largest_first(terms: NDArray[Any]) -> NDArray[Any]:
    return one_by_one(np.take_along_axis(terms, np.argsort(-np.abs(terms), axis=0, kind="stable"), axis=0))


ORDERS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "one by one": one_by_one,
    "last to first": lambda terms: one_by_one(terms[::-1]),
    "in pairs": in_pairs,
    "largest first": largest_first,
}


def ordered(add_up: Callable[[NDArray[Any]], NDArray[Any]]) -> Adapter:
    """Return the reference on arrays whose sums and products use another order of summation."""

    class Ordered(np.ndarray):
        def sum(self, axis: int | None = None, **about: Any) -> Any:
            plain = self.view(np.ndarray)
            if plain.dtype.kind != "f":
                return plain.sum(axis=axis)
            terms = plain.ravel() if axis is None else np.moveaxis(plain, axis, 0)
            return add_up(terms) if len(terms) else terms.sum(axis=0)

        def __matmul__(self, other: Any) -> Any:
            left, right = self.view(np.ndarray), other.view(np.ndarray)
            if not len(right):
                return (left @ right).view(Ordered)
            rows = [add_up(left[i][:, None] * right) for i in range(len(left))]
            return np.array(rows, left.dtype).reshape(len(left), right.shape[1]).view(Ordered)

    def upload(host: NDArray[Any]) -> NDArray[Any]:
        return np.array(host).view(Ordered) if host.dtype.kind == "f" else np.array(host)

    return Adapter(ReferenceOps(), upload, np.array)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "name", [pytest.param("one graph of 257", marks=pytest.mark.slow), "eleven mixed sizes", "four channels"]
)
def test_sums_in_any_order_are_within_the_bounds(problem: str, order: str, name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    assert_parity(ordered(ORDERS[order]), PROBLEMS[problem](case))


# ---- faults in an input


def middle_missing(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values without the one in the middle of those that are positive."""
    positive = np.where(values > 0, values, np.nan).ravel()
    kept = np.ones(values.size, bool)
    kept[np.nanargmin(np.abs(positive - np.nanmedian(positive)))] = False
    return np.where(kept.reshape(values.shape), values, 0).astype(values.dtype)


FAULTS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "rounded to float16": half,
    "a row off": lambda values: np.roll(values, 1, axis=0),
    "an element missing": middle_missing,
}


def with_fault(value: Any, fault: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """Return an input with a fault; of a sparse matrix, in its entries."""
    if isinstance(value, Sparse):
        return value._replace(matrix=with_fault(value.matrix, fault))
    if isinstance(value, Adjacency):
        return Adjacency(with_fault(value.forward, fault), with_fault(value.transpose, fault), value.n_channels)
    if isinstance(value, Csr):
        return Csr(value.indptr, value.indices, fault(value.data), value.n_cols)
    return fault(value)


@pytest.mark.parametrize("problem", [name for name in PROBLEMS if "all missing" not in name])
def test_a_fault_in_any_input_is_rejected(problem: str) -> None:
    """Faults that do not change the exact results (a dropped element, a float16 number) do not count."""
    rejected = 0
    for right, fault in product([PROBLEMS[problem](case) for case in TELLING], FAULTS):
        for name, value in right.inputs.items():
            if name == "graphs" or not faulty(value):
                continue
            wrong = Problem(right.run, {**right.inputs, name: with_fault(value, FAULTS[fault])})
            if any(not np.array_equal(wrong.exact[key], right.exact[key]) for key in right.exact):
                ratios = compare(evaluate(open_adapter("cpu"), wrong, np.float32), right)
                assert max(ratios.values()) > 1, f"{fault} in {name}: {ratios}"
                rejected += 1
    assert rejected


def faulty(value: Any) -> bool:
    """Return whether an input has floats, some of them positive."""
    return isinstance(value, Sparse) or (value.dtype.kind == "f" and bool((value > 0).any()))


# ---- the arithmetic of bounds


def test_gamma_is_the_number_of_roundings_until_they_cancel() -> None:
    np.testing.assert_allclose(gamma([0, 1, 64, 10_000]) / UNIT, [0, 1, 64, 800], rtol=1e-4)
    assert gamma(1, unit=2.0**-11) > 2.0**-11


def test_errors_are_propagated() -> None:
    """Check values computed by hand: operands (3 ± 0.5) and (2 ± 0.25), without roundings."""
    a, b = Rounded(3.0, 0.5), Rounded(2.0, 0.25)
    wanted = {
        (a + b).error.item(): 0.75,
        (a - b).error.item(): 0.75,
        (a * b).error.item(): 3.5 * 2.25 - 6,
        (a / b).error.item(): (0.5 + 1.5 * 0.25) / 1.75,
        a.sqrt().error.item(): 3**0.5 - 2.5**0.5,
        a.exp().error.item(): np.exp(3.5) - np.exp(3),
        a.log().error.item(): np.log(3) - np.log(2.5),
    }
    np.testing.assert_allclose(list(wanted), list(wanted.values()), rtol=1e-5)
    assert Rounded(-1.0, 0.5).positive().error == 0
    assert Rounded(-0.25, 0.5).positive().error == 0.5
    assert Rounded(np.ones(5)).sum().error == pytest.approx(5 * 4 * UNIT, rel=1e-6)


def test_an_error_beyond_a_bound_of_zero_and_a_nan_are_infinite() -> None:
    zero = np.zeros(1)
    assert largest_ratio(zero, zero) == 0
    assert largest_ratio(np.full(1, 1e-30), zero) == np.inf
    assert largest_ratio(np.full(1, np.nan), np.ones(1)) == np.inf
