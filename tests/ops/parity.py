"""The parity rule of operations, and the evaluation of operations on any kind of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gcnbatch.backends.ops import Array
from gcnbatch.data.sparse import Adjacency, Csr
from tests.ops.adapters import REFERENCE, Adapter
from tests.ops.bounds import Rounded, RoundedOps
from tests.ops.cases import Sparse

ARRANGEMENTS = 2  # room for other arrangements of the same formula, such as gamma / std first
FLOAT64 = 2.0**-20  # rounding of float64 over that of float32, with room for long sums

Value = NDArray[Any] | Sparse
Results = dict[str, Array]


@dataclass(frozen=True)
class Problem:
    """Calls of operations with their inputs.

    ``run(ops, **inputs)`` returns results by name. A result that has an input's name is that input, changed in place as
    the operation's contract says; every other input must come out unchanged.
    """

    run: Callable[..., Results]
    inputs: Mapping[str, Value]

    @cached_property
    def exact(self) -> dict[str, NDArray[Any]]:
        """The results of the reference in float64."""
        return evaluate(REFERENCE, self, np.float64)

    @cached_property
    def bounds(self) -> dict[str, Rounded]:
        """The results with bounds of their errors in float32."""
        return rounded_results(self)


def assert_parity(backend: Adapter, problem: Problem) -> None:
    """Compare a backend with the reference: shapes, float type, and every element's error at most 2 times its bound.

    The error is the distance to the reference in float64; the bound is that of `RoundedOps`.
    """
    for name, ratio in error_ratios(backend, problem).items():
        assert ratio <= 1, f"{name}: error is {ratio:.3g} of its bound"


def error_ratios(backend: Adapter, problem: Problem) -> dict[str, float]:
    """Return the largest error over bound of a backend's elements, by name of result."""
    return compare(evaluate(backend, problem, np.float32), problem)


def compare(got: dict[str, NDArray[Any]], problem: Problem) -> dict[str, float]:
    """Return the largest error over bound of the given elements, by name of result."""
    exact, bounds = problem.exact, problem.bounds
    assert got.keys() == exact.keys() == bounds.keys()
    ratios = {}
    for name, want in exact.items():
        bound, found = bounds[name], got[name].reshape(()) if want.ndim == 0 else got[name]  # a device's scalar: (1,)
        assert found.shape == bound.shape == want.shape, name
        assert np.isfinite(bound.error).all(), name
        assert np.all(np.abs(bound.value - want) <= FLOAT64 * bound.error), f"{name}: the bound is of another formula"
        ratios[name] = largest_ratio(np.abs(found.astype(np.float64) - want), ARRANGEMENTS * bound.error)
    return ratios


def largest_ratio(error: NDArray[np.float64], bound: NDArray[np.float64]) -> float:
    """Return the largest error over bound; a NaN, or an error with bound 0, counts as infinite."""
    beyond = np.where(np.isnan(error), np.inf, error)
    ratio = np.divide(beyond, bound, out=np.where(beyond > 0, np.inf, 0.0), where=bound > 0)
    return float(ratio.max(initial=0))


def evaluate(adapter: Adapter, problem: Problem, dtype: DTypeLike) -> dict[str, NDArray[Any]]:
    """Run a problem on a backend in `dtype`; inputs must come out unchanged."""

    def upload(array: NDArray[Any]) -> Array:
        return adapter.upload(array.astype(dtype) if array.dtype.kind == "f" else array)

    inputs = problem.inputs
    formed = {name: adapter.form(value) if isinstance(value, Sparse) else value for name, value in inputs.items()}
    held = {name: _map_arrays(value, upload) for name, value in formed.items()}
    results = {name: adapter.download(value) for name, value in problem.run(adapter.ops, **held).items()}
    for name, result in results.items():
        assert result.ndim == 0 or result.dtype == dtype, name
    for name in inputs.keys() - results.keys():
        for before, after in zip(_arrays(formed[name]), _arrays(held[name]), strict=True):
            found = adapter.download(after)
            if not _same_bytes(found, before):  # the comparison below takes 0.1 ms
                np.testing.assert_array_equal(found, before, err_msg=f"{name} was changed")
    return results


def _same_bytes(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def rounded_results(problem: Problem) -> dict[str, Rounded]:
    """Return the results of a problem with bounds of their errors in float32."""

    def lift(array: NDArray[Any]) -> Array:
        return Rounded(array) if array.dtype.kind == "f" else array

    plain = {name: value.matrix if isinstance(value, Sparse) else value for name, value in problem.inputs.items()}
    return problem.run(RoundedOps(), **{name: _map_arrays(value, lift) for name, value in plain.items()})


def _map_arrays(value: Any, function: Callable[[NDArray[Any]], Array]) -> Any:
    if hasattr(value, "map"):
        return value.map(function)
    if isinstance(value, Adjacency):
        both = (_map_arrays(matrix, function) for matrix in (value.forward, value.transpose))
        return Adjacency(*both, value.n_channels)
    if isinstance(value, Csr):
        return Csr(function(value.indptr), function(value.indices), function(value.data), value.n_cols)
    return function(value)


def _arrays(value: Any) -> list[Any]:
    found: list[Any] = []

    def note(array: Any) -> Any:
        found.append(array)
        return array

    _map_arrays(value, note)
    return found
